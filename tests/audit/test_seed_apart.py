"""One seed that stands apart from the others is said with every verdict, by a code."""

from __future__ import annotations

import numpy as np
import pytest
from gate_rows import points_of, rows, verdicts_of

from vflsec.audit.gate import Gate, Warn
from vflsec.audit.point import Point, write_points

APART = (0.09, 0.0, 0.002, -0.002, 0.001)
EVEN = (0.05, -0.05, 0.02, -0.02, 0.0)


@pytest.mark.parametrize(
    ("mean", "noise", "verdict", "apart"),
    [(0.05, APART, "PASS", True), (0.3, APART, "FAIL", True), (0.3, EVEN, "FAIL", False),
     (0.12, APART, "INCONCLUSIVE", True), (0.0, EVEN, "PASS", False)],
)  # fmt: skip
def test_every_verdict_carries_the_code(
    mean: float, noise: tuple[float, ...], verdict: str, apart: bool
) -> None:
    centred = tuple(np.array(noise) - np.mean(noise))
    (found,) = verdicts_of(rows(mean, centred), Gate(max=0.14 if mean == 0.05 else 0.1))
    assert found.verdict == verdict
    assert (Warn.SEED_APART in found.warnings) == apart
    assert bool(found.warning) >= apart


def test_it_is_kept_in_the_summary() -> None:
    points = points_of([*rows(0.1, APART), *rows(0.1, EVEN, attack="norm")])
    kept = list(map(Point.read, write_points(points)))
    assert [p.leakage.least.apart for p in kept if p.leakage] == [True, False]
