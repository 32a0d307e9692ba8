"""The share of the remaining error: bounded as the truth asks, and judged where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gate_rows import at, points_of, record
from scipy import stats
from scored import score_rows

from vflsec.audit.controls import Leakage, as_shares
from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.judge import judge
from vflsec.audit.leakage_claims import Quantity, correct, find_claims
from vflsec.audit.metrics import ERROR_REMOVED
from vflsec.audit.point import Point, write_points
from vflsec.errors import ConfigError

OWN = (0.95, 0.96, 0.97, 0.98, 0.96)
NAMED = Gate(max=0.25, of=ERROR_REMOVED)


def audited(gained: tuple[float, ...], *gates: Gate, **extra: Any) -> tuple[Point, list[Verdict]]:
    """The point in shares of an attack that gains so much over `OWN`, and verdicts."""
    records = [
        record(s, own + gain, n=500, controls={"own": {"value": own, "cv": own}}, **extra)
        for s, (own, gain) in enumerate(zip(OWN, gained, strict=True))
    ]
    points = points_of(records, shares=True)
    assert points == list(map(Point.read, write_points(points)))
    (of,) = [p for p in points if p.metric == ERROR_REMOVED]
    return of, judge(points, gates, at([of]))


def test_an_attack_that_knows_everything_removes_all_of_it() -> None:
    """No attack can gain 0.1 of AUC there, and nobody counted people."""
    left = tuple(1 - own for own in OWN)
    point, (wide, named) = audited(left, Gate(max=0.1), NAMED)
    assert point.value.mean == pytest.approx(1.0)
    assert point.advantage.lower == pytest.approx(1.0)
    assert (wide.verdict, wide.rule, wide.judged_by) == ("FAIL", "exceeded", ERROR_REMOVED)
    assert (named.verdict, named.rule, named.judged_by) == ("FAIL", "exceeded", "")
    assert "no_room" not in {wide.rule, named.rule}


def test_an_attack_that_adds_nothing_removes_nothing() -> None:
    point, (wide, named) = audited((0.001, -0.001, 0.0, 0.0005, -0.0005), Gate(max=0.1), NAMED)
    assert point.value.mean == pytest.approx(0.0, abs=1e-9)
    assert [v.verdict for v in (wide, named)] == ["PASS", "PASS"]
    worse, (v,) = audited((-0.4,) * 5, NAMED)
    assert worse.value.mean == pytest.approx(-0.4 / 0.036)  # below -1 too
    assert v.verdict == "INCONCLUSIVE"  # with its labels flipped it is not shown to be within


@pytest.mark.parametrize(
    ("removed", "verdict", "metric"),
    [(0.9, "FAIL", "share_error"), (0.0, "PASS", "share_error"), (0.9, "FAIL", "log_loss"),
     (0.0, "PASS", "relative_error")],
)  # fmt: skip
def test_an_error_that_is_within_the_limit_already_is_judged_by_what_is_removed(
    removed: float, verdict: str, metric: str
) -> None:
    """A gate of 0.1 passed an attack that took 0.057 of error down to 0.005."""
    errors = (0.06, 0.05, 0.07, 0.06, 0.055)
    noise = (0.002, -0.002, 0.0, 0.001, -0.001)
    records = [
        record(s, (1 - removed) * own + e, n=500, metric=metric, target="property", chance=0.2,
               controls={"own": {"value": own, "cv": own}})
        for s, (own, e) in enumerate(zip(errors, noise, strict=True))
    ]  # fmt: skip
    points = points_of(records, shares=True)
    (of,) = [p for p in points if p.metric == ERROR_REMOVED]
    (v,) = judge(points, [Gate(max=0.1)], at([of]))
    assert (v.verdict, v.judged_by) == (verdict, ERROR_REMOVED)
    assert v.value == pytest.approx(removed, abs=0.03)
    (wide,) = judge(points, [Gate(max=0.04)], at([of]))
    assert wide.judged_by == ""


def test_it_is_a_ratio_of_means_and_ties_are_those_of_the_ranking() -> None:
    gained = (0.01, 0.02, 0.0, 0.01, 0.02)
    point, _ = audited(gained)
    assert point.value.mean == pytest.approx(sum(gained) / sum(1 - own for own in OWN))
    tied = tuple(0.5 - own for own in OWN)
    _, (v,) = audited(tied, NAMED, tied=True)
    assert (v.verdict, v.rule, v.detail) == ("INCONCLUSIVE", "underpowered", "all_tied")


Drawn = tuple[np.ndarray, np.ndarray]


def draw_ranking(rng: np.random.Generator, n: int, share: float, least: float) -> Drawn:
    """Error that a ranking leaves and gains over it, by seed."""
    left = (1 - least) * rng.uniform(0.7, 1.3, n)
    return left, share * left + 0.1 * (1 - least) * rng.standard_normal(n)


def draw_distance(rng: np.random.Generator, n: int, share: float, alike: float) -> Drawn:
    """Distances of two estimates from one number, which are alike as their samples are."""
    a, b = rng.standard_normal((2, n))
    left = np.abs(a)
    return left, left - (1 - share) * np.abs(alike * a + np.sqrt(1 - alike**2) * b)


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize(
    ("draw", "of"),
    [(draw_ranking, 0.9), (draw_ranking, 0.98), (draw_distance, 0.0), (draw_distance, 0.9)],
)
def test_its_bounds_hold_the_truth_as_often_as_they_say(
    draw: Callable[..., Drawn], of: float, share: float, n: int
) -> None:
    """Of distances a tenth of the systems without a leak failed, for a control that errs much by
    luck leaves much to gain by luck. p-values and bounds are the same test.
    """
    rng, failed, audits = np.random.default_rng(3), np.zeros(2), 800
    for k in range(audits):
        left, gain = draw(rng, n, share, of)
        mine, own = ({"own": dict(enumerate(x.tolist()))} for x in (gain, 1 - left))
        shares, rest = as_shares(mine, own, 1.0)
        leak = Leakage.between(shares, own, "own", left=rest)
        assert leak is not None
        found = [leak.p_above(0.1) < 0.05, leak.p_below(share) < 0.05]
        failed += found
        if k < 200:
            low, high = leak.lower(0.05), leak.upper(0.05)
            assert low is not None
            assert high is not None
            assert [low > 0.1, high < share] == found
    assert (failed <= stats.binom.ppf(0.9999, audits, 0.05)).all(), failed


def test_a_control_that_leaves_nothing_has_no_share() -> None:
    none: tuple[dict[str, Any], ...] = ({}, {})
    assert as_shares({"a": {0: 0.0}, "b": {0: 0.1}}, {"a": {0: 1.0}, "b": {0: 0.9}}, 1.0) == none
    with pytest.raises(ConfigError, match="without controls"):
        score_rows(np.arange(4.0), np.arange(4) % 2, ERROR_REMOVED)


def test_a_claim_stays_in_the_metric_of_the_attack_where_that_leaks_too() -> None:
    """A gate on what was removed failed: 0.68 of the error stood beside gains of 0.13 of AUC."""
    owns = (0.85, 0.86, 0.87, 0.86, 0.86)
    records = [
        record(s, own + 0.8 * (1 - own), n=500, controls={"own": {"value": own, "cv": own}})
        for s, own in enumerate(owns)
    ]
    points = points_of(records, shares=True)
    (of,) = [p for p in points if p.metric == ERROR_REMOVED]
    verdicts = judge(points, [NAMED], at([of]))
    assert [v.verdict for v in verdicts] == ["FAIL"]
    found = find_claims(correct(points, verdicts), verdicts)
    (claim,) = [c for c in found if c.quantity is Quantity.LEAKAGE]
    assert (claim.metric, claim.is_leak, claim.tried) == ("auc", True, 2)
    assert claim.advantage == pytest.approx(0.112)
