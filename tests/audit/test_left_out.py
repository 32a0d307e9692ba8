"""Membership under a split that the data give: the control that leaves rows out stands alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_rows import STEADY, WIDE, one, points_of, rows

from vflsec.audit.baseline_verdicts import _rankings
from vflsec.audit.controls import find_strongest
from vflsec.audit.gate import Gate, Rule
from vflsec.audit.leakage import complete_rows
from vflsec.audit.point import Point
from vflsec.audit.result_row import ResultRow
from vflsec.report.steps import find_step
from vflsec.report.tree import StepKind
from vflsec.specs import LEFT_OUT

GATE = Gate(max=0.05)


def asked(
    value: float, left: float, noise: Any = STEADY, *, spread: Any = None, **extra: Any
) -> list[ResultRow]:
    """Figures of the attack, and of itself on systems without the rows, one per seed."""
    made = rows(value - 0.5, noise, attack="membership", target="membership", chance=None, **extra)
    return [
        replace(r, controls={LEFT_OUT: {"value": left + e, "cv": None}})
        for r, e in zip(made, np.zeros(len(noise)) if spread is None else spread, strict=True)
    ]


def point(records: list[ResultRow]) -> Point:
    (found,) = points_of(records)
    return found


@pytest.mark.parametrize(
    ("value", "left", "verdict", "rule"),
    [
        (0.524, 0.308, "FAIL", Rule.EXCEEDED),  # test rows are easier, and hide it from chance
        (0.579, 0.576, "PASS", Rule.WITHIN),  # they are harder, and accuse by chance
        (0.30, 0.30, "PASS", Rule.WITHIN), (0.80, 0.80, "PASS", Rule.WITHIN),
        (0.30, 0.40, "INCONCLUSIVE", Rule.REVERSED_RANKING),  # rows answered worse for being in
    ],
)  # fmt: skip
def test_it_is_judged_by_its_gain_over_rows_that_are_left_out(
    value: float, left: float, verdict: str, rule: Rule
) -> None:
    records = asked(value, left)
    found, judged = point(records), one(records, GATE)
    assert found.leakage is not None
    assert [a.name for a in found.leakage.against] == [found.leakage.named] == [LEFT_OUT]
    assert found.advantage.mean == pytest.approx(value - left)
    assert found.mirrored.mean == pytest.approx(left - value)
    assert found.turned.mean == pytest.approx(1 - value)
    assert (judged.verdict, judged.rule) == (verdict, rule)
    alone = [(0, records[0].controls)]
    assert (found.chance, find_strongest(alone, "auc", has_chance=False)) == (None, LEFT_OUT)
    (flipped,) = _rankings(complete_rows([replace(r, control=LEFT_OUT) for r in records])).values()
    assert flipped == pytest.approx(left - value)


def test_hits_at_few_false_alarms_turned_round_have_no_control() -> None:
    """Turned round the left out rows have other hits than these; the ranking says what is so."""
    of: dict[str, Any] = {"metric": "tpr_at_1pct_fpr", "turned": 0.4, "primary": "auc"}
    hits = asked(0.02, 0.02, np.array(STEADY) / 2, **of)
    assert (point(hits).mirrored.mean, point(hits).turned.mean) == (None, 0.4)
    gate = Gate(max=0.05, of="tpr_at_1pct_fpr")
    for left, verdict in ((0.30, "PASS"), (0.40, "INCONCLUSIVE")):
        both = hits + asked(0.30, left, primary="auc")
        assert one(both, gate).verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize("left", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("limit", [0.01, 0.05])
def test_at_the_limit_it_fails_in_at_most_one_audit_of_twenty(left: float, limit: float) -> None:
    """The figures vary together over seeds, since the rows do, and each a little alone."""
    rng = np.random.default_rng(7)
    n, failed = 400, 0
    for _ in range(n):
        alike, own, other = 0.02 * rng.standard_normal((3, 5)) * [[1.0], [0.3], [0.3]]
        made = asked(left + limit, left, alike + own, spread=alike + other)
        failed += one(made, replace(GATE, max=limit)).verdict == "FAIL"
    assert failed / n <= 0.05 + 2 * (0.05 * 0.95 / n) ** 0.5


def test_an_open_gate_asks_for_seeds_and_one_that_no_seed_decides_for_test_rows() -> None:
    open_ = one(asked(0.33, 0.30, WIDE), GATE)
    assert (open_.rule, find_step(open_)) == (Rule.UNDECIDED, StepKind.MORE_SEEDS)
    assert (open_.more_seeds or 0) > 0
    stuck = one(asked(0.3499, 0.30, WIDE), GATE)
    assert (stuck.more_seeds, find_step(stuck)) == (None, StepKind.STUCK)
