"""How often gates accuse, or pass, at the worst case: no more often than they say."""

from __future__ import annotations

import numpy as np
import pytest
from gate_rows import at, points_of, record, rows, verdicts_of
from sampled import sampled
from scipy import stats
from scored import score_rows

from vflsec.audit.gate import Gate
from vflsec.audit.judge import judge


@pytest.mark.parametrize("attacks", sampled([1, 4]))
def test_false_accusation_rate_at_the_worst_case(attacks: int) -> None:
    """Advantage exactly at the threshold, five seeds: FAIL in 5 % of audits, no more, no less."""
    rng = np.random.default_rng(attacks)
    audits, records = 400, []
    for a in range(audits):
        for i in range(attacks):
            records += rows(0.05, rng.normal(0, 0.04, 5), attack=f"a{i}", dataset=f"d{a}")
    verdicts = verdicts_of(records, Gate(max=0.05))
    assert len(verdicts) == audits
    wrong = sum(v.verdict == "FAIL" for v in verdicts)
    assert stats.binom.ppf(1e-3, audits, 0.035) <= wrong <= stats.binom.ppf(1 - 1e-3, audits, 0.05)


@pytest.mark.slow
def test_false_pass_rate_at_the_worst_case() -> None:
    rng = np.random.default_rng(9)
    audits, records = 400, []
    for a in range(audits):
        for i, (mean, sd) in enumerate(((0.05, 0.04), (0.0, 0.004))):
            records += rows(mean, rng.normal(0, sd, 5), attack=f"a{i}", dataset=f"d{a}")
    verdicts = verdicts_of(records, Gate(max=0.05))
    wrong = sum(v.verdict == "PASS" for v in verdicts)
    assert stats.binom.ppf(1e-3, audits, 0.05) <= wrong <= stats.binom.ppf(1 - 1e-3, audits, 0.05)


def test_sealed_world_from_guesses_to_verdicts() -> None:
    """Attack and control guess at random on the same rows: nobody is accused beyond the level."""
    rng = np.random.default_rng(11)
    audits, records, y = 200, [], np.arange(100) % 2
    for a in range(audits):
        for s in range(5):
            attack, control = (
                score_rows(rng.normal(size=100), y, "auc")["auc"].value for _ in range(2)
            )
            own = {"own": {"value": control, "cv": 0.5}}
            records.append(record(s, attack, n=500, dataset=f"d{a}", controls=own))
    points = points_of(records)
    wrong = sum(v.verdict == "FAIL" for v in judge(points, [Gate(max=0.0)], at(points)))
    assert wrong <= stats.binom.ppf(1 - 1e-3, audits, 0.05)
    bounds = [(p.advantage.low, p.advantage.high) for p in points]
    covered = sum(low <= 0 <= high for low, high in bounds if low is not None is not high)
    assert stats.binom.ppf(1e-3, audits, 0.95) <= covered <= stats.binom.ppf(1 - 1e-3, audits, 0.95)
