"""What a PASS could have detected, and gates that ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gate_rows import STEADY, WIDE, at, one, points_of, rows, task
from scipy import stats

from vflsec.audit.dosing import identify_curve
from vflsec.audit.gate import Gate, Verdict, exit_code
from vflsec.audit.judge import judge
from vflsec.audit.result_row import ResultRow


def test_a_pass_says_what_it_would_have_found() -> None:
    noise = (-0.02, 0.0, 0.02, 0.01, -0.01)
    found = one([*rows(0.0), *rows(0.0, noise, attack="norm")], Gate(max=0.1))
    assert found.verdict == "PASS"
    sd = {"direction": np.std(STEADY, ddof=1), "norm": np.std(noise, ddof=1)}
    factor = (stats.t.isf(0.05 * 0.95, 4) + stats.t.isf(0.2, 4)) / np.sqrt(5)
    assert found.detectable == pytest.approx({k: factor * v for k, v in sd.items()})
    assert "0.022 of AUC (norm), 0.0099 (direction)" in found.reason
    assert one([*task(0.9)], Gate("utility", min=0.5)).detectable == {}


@pytest.mark.parametrize(("seeds", "shown"), [(3, 0.64), (5, 0.70), (10, 0.75)])
def test_what_it_would_have_found_is_shown_as_often_as_the_documentation_says(
    seeds: int, shown: float
) -> None:
    """Of a spread that is known 0.8; an audit knows that of its own seeds alone."""
    rng = np.random.default_rng(0)
    limit = stats.t.isf(0.0475, seeds - 1)
    factor = (limit + stats.t.isf(0.2, seeds - 1)) / np.sqrt(seeds)
    printed = factor * rng.standard_normal((100_000, seeds)).std(1, ddof=1)
    again = printed[:, None] + rng.standard_normal((100_000, seeds))
    t = again.mean(1) / (again.std(1, ddof=1) / np.sqrt(seeds))
    assert np.mean(t > limit) == pytest.approx(shown, abs=0.008)


def blind(records: list[ResultRow], **keys: Any) -> Verdict:
    return one(records, Gate(max=0.1, **keys))


def test_a_pass_that_would_have_missed_a_leak_of_the_limit_warns() -> None:
    """The spread over seeds is so wide that a leak above the limit might have gone unfound."""
    found = blind(rows(0.0, WIDE))

    def least(n: int) -> float:
        return float((stats.t.isf(0.0475, n - 1) + stats.t.isf(0.2, n - 1)) * 0.08 / np.sqrt(n))

    need = next(n for n in range(5, 99) if least(n) <= 0.1)
    assert (round(least(5), 4), need) == (0.1116, 6)
    assert (found.verdict, found.more_seeds) == ("PASS", 1)
    assert (found.rule, found.warnings) == ("within", ("insensitive",))
    assert found.detectable == {"direction": pytest.approx(least(5))}
    assert "0.11 of AUC (direction), above the limit 0.1" in found.warning
    assert found.reason.count("0.11 of AUC (direction)") == 1
    assert found.reason.count("1 more seed") == 1
    assert exit_code([found]) == 0
    for gate in (Gate(max=0.12), Gate("auc", max=0.65), Gate(max=0.1, detect=0.12)):
        other = one(rows(0.0, WIDE), gate)
        assert (other.verdict, other.warning, other.more_seeds) == ("PASS", "", None)
        assert (other.rule, other.warnings) == ("within", ())


def test_a_gate_that_asks_what_would_be_found_does_not_pass_blindly() -> None:
    found = blind([*rows(0.0, WIDE), *rows(0.0, attack="norm")], detect=0.05)
    assert (found.verdict, found.warning, found.attack) == ("INCONCLUSIVE", "", "direction")
    assert (found.rule, found.warnings) == ("insensitive", ())
    assert "0.11 of AUC (direction), above its detect = 0.05" in found.reason
    assert f"about {found.more_seeds} more seeds" in found.reason
    n = 5 + (found.more_seeds or 0)
    a, b = (
        (stats.t.isf(0.0475, m - 1) + stats.t.isf(0.2, m - 1)) * 0.08 / np.sqrt(m)
        for m in (n, n - 1)
    )
    assert a <= 0.05 < b
    assert exit_code([found]) == 3
    assert blind(rows(0.0), detect=0.0099).verdict == "PASS"
    assert blind(rows(0.0), detect=0.0098).verdict == "INCONCLUSIVE"
    assert one(rows(0.4, WIDE), Gate(max=0.1, detect=0.05)).verdict == "FAIL"  # it was found
    far = blind(rows(0.0), detect=1e-4)
    assert (far.rule, far.more_seeds) == ("insensitive", None)


def test_planted_leaks_are_asked_before_the_spread() -> None:
    """An attack that finds planted leaks only from 0.3 on is blind, however steady its figures."""
    summary = points_of(rows(0.0))
    key = identify_curve(summary[0])
    said = {}
    for size in (0.05, 0.3, None):
        (found,) = judge(summary, [Gate(max=0.1)], at(summary), {key: size})
        assert (found.verdict, found.more_seeds) == ("PASS", None)
        said[size] = found.warning
        assert found.warnings == (() if size == 0.05 else ("insensitive",))
        assert found.reason.endswith("Add seeds or labelled rows.") == (size is None)
        assert found.reason.endswith("missed; add seeds or labelled rows.") == (size == 0.3)
    assert said[0.05] == ""
    assert "0.3 of AUC (direction), above the limit 0.1" in said[0.3]
    assert "(direction)" in said[None]


def test_a_dose_speaks_of_its_own_section_alone() -> None:
    """Of two sections of one attack that only grants tell apart one was dosed, and the other, whose
    figures would have hidden a leak of 0.11, passed a gate that must find 0.05.
    """
    dosed = rows(0.0, attack_key="a")
    records = [*dosed, *rows(0.0, WIDE, attack_key="b")]
    summary = points_of(records)
    key = identify_curve(next(p for p in summary if p.attack_key == "a"))
    gate = Gate(max=0.1, detect=0.05)
    (found,) = judge(summary, [gate], at(summary), {key: 0.01})
    assert (found.verdict, found.dosed, found.rule) == ("INCONCLUSIVE", {}, "insensitive")
    assert "0.11 of AUC (direction)" in found.reason
    alone = points_of(dosed)
    (found,) = judge(alone, [gate], at(alone), {key: 0.01})
    assert (found.verdict, found.dosed) == ("PASS", {"direction": 0.01})
