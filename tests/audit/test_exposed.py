"""Exposed rows: counted as by hand, bounded as the truth asks, judged where AUC has no room."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_rows import at, one, points_of, record, rows
from scipy import stats
from scored import score_rows

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.dosing import identify_curve
from vflsec.audit.exposed import Counts, Exposed, WorstClass, count_by_class
from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.judge import judge
from vflsec.audit.metrics import Score
from vflsec.audit.point import Point, points_frame, write_points
from vflsec.audit.result_row import ResultRow
from vflsec.core.guess import Truth
from vflsec.errors import ShapeError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Draw = Callable[[np.random.Generator], tuple[Floats, Floats, Floats]]
"""(rng) -> labels (n,), scores of the attack (n,) and of its baseline (n,)."""


def count_by_hand(s: Floats, y: Floats, label: int, alarms: int) -> float:
    """The mean over all orders of tied rows."""
    found, orders = 0, 0
    for order in itertools.permutations(range(len(s))):
        if any(s[a] < s[b] for a, b in itertools.pairwise(order)):
            continue
        orders += 1
        wrong = np.cumsum([y[i] != label for i in order])
        found += sum(y[i] == label and w <= alarms for i, w in zip(order, wrong, strict=True))
    return found / orders


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_rows_are_counted_as_by_hand(rate: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        y = rng.permutation([0, 0, 0, 0, 1, 1])
        s = rng.integers(0, 4, 6).astype(float)
        for c in count_by_class(s, y, rate):
            sign = 1 if c.label else -1
            alarms = int(rate * (y != c.label).sum())
            assert c.named == pytest.approx(count_by_hand(sign * s, y, c.label, alarms))
            assert c.luck == pytest.approx(count_by_hand(np.zeros(6), y, c.label, alarms))
        flipped = count_by_class(s, y, rate, turned=True)
        assert [c.named for c in flipped] == [c.named for c in count_by_class(-s, y, rate)]


def test_the_surest_tenth_is_right_as_by_hand_ties_by_their_mean() -> None:
    """Of 20 rows of class 1, two: one is sure, the other one of three that are tied."""
    y = np.array([1] * 20 + [0] * 20)
    s = np.zeros(40)
    s[0], s[[1, 20, 21]], s[22:25] = 3.0, 2.0, -2.0
    by = {c.label: c for c in count_by_class(s, y)}
    assert by[1].sure == pytest.approx((1 + 1 / 3) / 2)
    assert by[0].sure == 1.0
    assert by[1].own_sure == {"chance": 0.5}


def score_exposed(s: Floats, y: Floats, classes: int = 2, people: Floats | None = None) -> Score:
    prior = np.bincount(y, minlength=classes) / len(y)
    return score_rows(s, y, "exposed", prior=prior, people=people)["exposed"]


def test_of_each_person_one_row_counts() -> None:
    """Twenty equal rows each: as if the people were the rows, in whatever order these come."""
    rng = np.random.default_rng(5)
    y, s = rng.integers(0, 2, 60), rng.standard_normal(60) + 1.0 * (np.arange(60) < 9)
    alone = score_exposed(s, y)
    people = rng.permutation(np.repeat(np.arange(60), 20))
    found = score_exposed(s[people], y[people], people=people)
    assert (found.value, found.n, found.chance) == (alone.value, alone.n, alone.chance)
    assert found.by_class == alone.by_class
    by_row = score_exposed(s[people], y[people])
    assert by_row.n == 20 * alone.n
    assert {c.people for c in found.by_class} == {60}
    assert {c.people for c in by_row.by_class} == {1200}
    assert by_row.by_class[1].named == 20 * alone.by_class[1].named
    assert by_row.by_class[1].luck < 1.1 * alone.by_class[1].luck


def test_people_are_of_all_rows_of_a_truth() -> None:
    with pytest.raises(ShapeError):
        Truth("label", [0, 1, 2], [0, 1, 1], people=[4, 4])


def test_one_class_of_twelve_is_exposed_in_full() -> None:
    rng = np.random.default_rng(1)
    y = rng.permutation(1200) % 12
    s = rng.random((1200, 12))
    s[:, 3] += y == 3
    found = score_exposed(s, y, 12)
    named = {c.label: c.named for c in found.by_class}
    assert found.n == 1200
    assert found.value == sum(named.values()) / 1200 >= 100 / 1200
    assert (named[3], found.by_class[3].rows) == (100, 100)
    assert found.turned is None


def test_a_class_of_nearly_all_rows_is_not_named() -> None:
    """1 % positive: whoever says 0 of everybody is right, and 10 others tell no certainty."""
    y = (np.arange(1000) < 10).astype(int)
    found = score_exposed(y.astype(float), y)
    assert (found.value, found.n) == (1.0, 10)
    assert [(c.label, c.rows, c.people) for c in found.by_class] == [(1, 10, 1000)]
    assert score_exposed(np.zeros(10), np.zeros(10, int)).value is None


def test_bounds_hold_the_share_that_is_named_by_more_than_luck() -> None:
    """Marked rows are binomial, lucky ones geometric at both ends: in 95 % each bound holds."""
    rng = np.random.default_rng(2)
    for share in (0.0, 0.01, 0.05, 0.3):
        missed = np.zeros(2)
        for _ in range(400):
            marked = rng.binomial(300, share, 5)
            lucky = rng.geometric(0.5, (5, 2)).sum(1) - 2
            own = rng.geometric(0.5, (5, 2)).sum() - 10
            c = Counts(float((marked + lucky).sum()), float(own), 1500, 10.0, 5)
            missed += [c.bound("lower", 0.05) > share, c.bound("upper", 0.05) < share]
        assert (missed <= stats.binom.ppf(0.999, 400, 0.05)).all(), (share, missed)
    none = Counts(0.0, 0.0, 45, 0.2, 5)
    assert none.bound("upper", 0.05) > 0.06  # nobody of 45: up to 3 / 45
    sure = Counts(85.0, 10.0, 1500, 10.0, 5)
    p = sure.p(0.01)
    assert p < 0.05
    assert sure.bound("lower", p) == pytest.approx(0.01, abs=0.002)
    assert sure.p(0.2) == 1.0
    assert sure.p(0.2, -1) < 0.001


def test_the_least_exposed_that_would_have_been_found_is_found_four_times_in_five() -> None:
    """Equal counts on all seeds have no spread, and luck alone still hides a few rows."""
    rng = np.random.default_rng(4)

    def count(share: float) -> Counts:
        lucky = rng.geometric(0.5, (2, 5, 2)).sum((1, 2)) - 10
        marked = rng.binomial(1500, share)
        return Counts(float(marked + lucky[0]), float(lucky[1]), 1500, 9.97, 5)

    same = [Against("own", 0.0, 0.0, 0.0, 5, count(0.0)) for _ in range(40)]
    least = float(np.mean([Leakage((a,), "own").detectable(0.05) for a in same]))  # type: ignore[misc]
    found = [np.mean([count(share).bound("lower", 0.05) > 0 for _ in range(300)])
             for share in (least, 0.4 * least)]  # fmt: skip
    assert found[0] > 0.8
    assert found[1] < 0.5


@pytest.mark.parametrize(("own", "rows"), [(0.0, 3), (2.5, 3), (3.0, 3), (0.0, 1)])
def test_of_too_few_rows_no_share_would_be_found(own: float, rows: int) -> None:
    """Three rows of a rare class over all seeds ended an audit with an error."""
    for seeds in (3, 7):
        assert Counts(0.0, own, rows, 0.1, 3).over(seeds).detectable(1e-3, 0.8) == 1.0


def test_seeds_that_are_said_to_decide_on_exposed_people_do() -> None:
    counts = Counts(10.0, 10.0, 1500, 9.97, 5)
    level = Leakage((Against("own", 2 / 300, 0.0, 0.0, 5, counts),), "own")
    upper = level.upper(0.05)
    assert upper is not None
    more = level.seeds_until(upper / 2, 0.05, 0.05)
    assert more is not None
    assert more > 1
    assert counts.over(5 + more).bound("upper", 0.05) < upper / 2
    assert counts.over(4 + more).bound("upper", 0.05) > upper / 2


def records(draw: Draw, seeds: int, attack: str = "direction", seed: int = 0, **extra: Any
            ) -> list[ResultRow]:  # fmt: skip
    """An attack and its baseline on drawn labels, in every metric, as an audit has them."""
    out = []
    for k in range(seeds):
        y, mine, own = draw(np.random.default_rng([seed, k]))
        prior = np.bincount(y) / len(y)
        names = ["auc", "exposed"] if len(prior) == 2 else ["accuracy", "exposed"]
        found, beside = (score_rows(s, y, *names, prior=prior).values() for s in (mine, own))
        for m, c in zip(found, beside, strict=True):
            own_of = {x.label: x for x in c.by_class}
            out.append(record(
                k, m.value, split="train", attack=attack, metric=m.metric, primary=names[0], n=m.n,
                chance=m.chance, turned=m.turned, controls={"own": {"value": c.value, "cv": 0.6}},
                by_class=tuple(
                    replace(x, own={"own": own_of[x.label].share},
                            own_sure=x.own_sure | {"own": own_of[x.label].sure}) for x in m.by_class
                ), **extra,
            ))  # fmt: skip
    return out


def judge_all(found: Sequence[ResultRow], *gates: Gate) -> tuple[list[Point], list[Verdict]]:
    points = points_of(found)
    return points, judge(points, gates, at(points))


def test_a_planted_leak_of_auc_says_nothing_of_exposed_people() -> None:
    points = points_of(records(marked(0.0), 5))
    doses = {identify_curve(p): 0.001 for p in points if p.metric == "auc"}
    gates = Gate(max=0.1, detect=0.002), Gate(max=0.05, of="exposed", detect=0.002)
    mean, people = judge(points, gates, at(points), doses)
    assert (mean.verdict, mean.dosed) == ("PASS", {"direction": 0.001})
    assert (people.rule, people.dosed) == ("insensitive", {})


def exposed_of(points: Sequence[Point]) -> Exposed:
    (found,) = [p.exposed for p in points if p.metric == "exposed"]
    assert found is not None
    return found


def marked(share: float, n: int = 900, positive: float = 0.5) -> Draw:
    """Some rows are plainly marked by class, the rest is noise."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        y = (rng.random(n) < positive).astype(int)
        mark = 20.0 * (rng.random(n) < share) * (2 * y - 1)
        return y, mark + rng.standard_normal(n), rng.standard_normal(n)

    return draw


ROWS, PEOPLE = Gate(max=0.1), Gate(max=0.01, of="exposed")


def test_one_row_in_twenty_is_exposed_and_fails() -> None:
    """AUC gains 0.05, within its limit: an average does not see the person who is exposed."""
    points, (mean, people) = judge_all(records(marked(0.05), 5), ROWS, PEOPLE)
    found = exposed_of(points)
    assert (mean.verdict, people.verdict) == ("PASS", "FAIL")
    assert found.low < 0.05 < found.high
    assert found.high - found.low < 0.03
    assert isinstance(found.worst, WorstClass)
    assert found.worst.share - found.worst.own == pytest.approx(0.05, abs=0.02)
    assert found.sure == pytest.approx(
        0.05 / 0.1 + 0.5 * 0.5, abs=0.03
    )  # half of a tenth is marked
    assert found.own_sure == pytest.approx(0.5, abs=0.03)


def test_one_row_in_a_hundred_does_not_pass() -> None:
    for seed in range(8):
        points, (people,) = judge_all(records(marked(0.01), 5, seed=seed), PEOPLE)
        found = exposed_of(points)
        assert found.low < 0.01 < found.high
        assert people.verdict != "PASS", people.reason


def test_points_come_back_from_their_file() -> None:
    points, _ = judge_all(records(marked(0.05), 3))
    again = list(map(Point.read, json.loads(json.dumps(write_points(points)))))
    assert again == points
    assert len(points_frame(points[::-1])) == len(points)  # whichever stands first
    assert [p.exposed is not None for p in again] == [p.metric == "exposed" for p in again]


def ranked(attack: float, own: float, n: int = 228, positive: float = 0.37) -> Draw:
    """Labels that both rank well, the attack with a gap between the classes."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        y = (rng.random(n) < positive).astype(int)
        return y, *(y * gap + rng.standard_normal(n) for gap in (attack, own))

    return draw


def test_where_the_baseline_ranks_well_exposed_people_decide() -> None:
    """AUC 1.00 beside 0.98: no attack can gain 0.1, and it names everybody where few were named."""
    points, (v,) = judge_all(records(ranked(20.0, 3.0), 5), ROWS)
    by = {p.metric: p for p in points}
    assert by["auc"].value.mean == 1.0
    assert 0.9 < by["auc"].control_value.mean < 1.0
    assert by["exposed"].value.mean == 1.0
    assert (v.verdict, v.rule, v.judged_by) == ("FAIL", "exceeded", "exposed")
    assert "the baseline of direction (own) leaves at most" in v.reason
    _, (v,) = judge_all(records(ranked(0.0, 3.0), 5), ROWS)
    assert (v.verdict, v.judged_by) == ("PASS", "exposed")
    (name,) = v.detectable
    assert v.units == {name: "exposed"}  # what would have been found of rows is no AUC
    assert f" of 1,000 rows named with certainty ({name})" in v.reason


def test_where_nothing_has_room_the_gate_stays_open_and_says_so() -> None:
    """People were not counted: nobody knows; or the baseline names nearly everybody itself."""
    own = {"controls": {"majority": {"value": 0.96, "cv": None}}}
    v = one(rows(0.47, **own), Gate(max=0.1))
    assert (v.verdict, v.rule, v.detail) == ("INCONCLUSIVE", "no_room", "exposed")
    assert 'of = "exposed" would decide' in v.reason
    assert v.stuck
    of_rows = one(rows(0.47, **own, target="membership"), Gate(max=0.1))
    assert (of_rows.rule, of_rows.detail) == ("no_room", "")  # nobody counts those
    assert one(rows(0.47, **own), Gate(max=0.03)).verdict == "PASS"
    assert one(rows(0.3, **own | {"controls": {"majority": {"value": 0.8, "cv": None}}}),
               Gate(max=0.1)).verdict == "PASS"  # fmt: skip
    points, (v,) = judge_all(records(ranked(9.0, 9.0), 5), ROWS)
    assert (v.verdict, v.detail) == ("INCONCLUSIVE", "") or points[0].control_value.mean == 1.0


def nothing(kind: str) -> Draw:
    """Worlds without a leak."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        n = {"few": 60, "rare": 2000}.get(kind, 900)
        classes = {"classes": 5}.get(kind, 2)
        share = {"rare": 0.01, "skewed": 0.25}.get(kind, 0.5)
        y = rng.permutation(n) % classes
        if classes == 2:
            y = (rng.permutation(n) < share * n).astype(int)
        shape = (n, classes) if classes > 2 else (n,)
        mine, own = rng.standard_normal((2, *shape))
        return y, np.zeros(shape) if kind == "constant" else mine, own

    return draw


WORLDS = ("sealed", "constant", "rare", "skewed", "classes", "few")


def find_false_verdicts(audits: int) -> dict[str, list[str]]:
    """The verdicts of audits of four attacks each, by world."""
    out: dict[str, list[str]] = {}
    for kind in WORLDS:
        for k in range(audits):
            found = [
                r for i in range(4)
                for r in records(nothing(kind), 5, attack=f"a{i}", seed=100 * k + i)
            ]  # fmt: skip
            out.setdefault(kind, []).append(judge_all(found, PEOPLE)[1][0].verdict)
    return out


@pytest.mark.parametrize("audits", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_no_audit_without_a_leak_fails(audits: int) -> None:
    """Of sealed worlds of 900 rows most pass; 60 rows, or 20 positives a seed, decide nothing.

    A quarter of positives leaves fewer rows to name: 25 of 40 pass, the others stay open.
    """
    found = find_false_verdicts(audits)
    assert sum(v == "FAIL" for of in found.values() for v in of) == 0, found
    if audits > 2:
        for kind, share in (("sealed", 0.9), ("classes", 0.9), ("skewed", 0.5)):
            assert found[kind].count("PASS") >= share * audits, (kind, found[kind])
    for kind in ("few",):
        assert "PASS" not in found[kind]


def test_a_metric_of_no_registry_is_judged_by_itself() -> None:
    """Success of a forced prediction is a share, and may lack room like any other."""
    forced = {"metric": "success_rate", "primary": "success_rate", "target": "integrity"}
    assert one(rows(0.0, **forced), ROWS).verdict == "PASS"
    own = {"controls": {"majority": {"value": 0.96, "cv": None}}}
    v = one(rows(0.47, **forced, **own), ROWS)
    assert (v.verdict, v.rule, v.detail) == ("INCONCLUSIVE", "no_room", "")
