"""Points by hand: which figures stand beside which, counts of what is there, and bounds of few."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gate_rows import points_of, record
from gate_rows import task_record as task
from scipy import stats

from vflsec.audit import controls as ctl
from vflsec.audit import intervals
from vflsec.audit.controls import Against, Leakage
from vflsec.audit.exposed import Counts
from vflsec.audit.leakage import complete_rows, defense_point
from vflsec.audit.point import Point
from vflsec.audit.result_row import ResultRow
from vflsec.errors import ConfigError
from vflsec.specs import DefenseSpec


def attacked(*records: ResultRow) -> Point:
    return next(p for p in points_of(records) if p.attack)


def test_a_point_counts_its_rows_seeds_and_losses() -> None:
    one = attacked(
        record(0, 0.9, n=100, bytes=10, messages=3, asked="age"),
        record(1, 0.7, n=80, bytes=30, messages=5, asked="job", chance=None),
        record(2, None, n=120, status="error", reason="broke", bytes=50, messages=7),
        task(3, None, status="error", reason="diverged"),
    )
    assert (one.n, one.n_least) == (120, 80)
    assert (one.planned, one.seeds, one.failed, one.failed_trainings) == (4, 2, 1, 1)
    assert (one.status, one.reason, one.asked) == (
        "ok",
        "broke",
        "age (1 of 2 seeds), job (1 of 2 seeds)",
    )
    assert (one.bytes, one.messages, one.chance) == (30, 5, 0.5)
    assert (one.value.mean, one.worst_seed) == (pytest.approx(0.8), pytest.approx(0.4))
    lost = attacked(record(0, None, status="error", reason="broke", n=7))
    assert (lost.status, lost.n, lost.n_least, lost.seeds) == ("error", 7, 0, 0)
    assert (lost.leakage, lost.bytes) == (None, None)
    alike = attacked(record(0, 0.9, asked="age"), record(1, 0.8, asked="age"))
    assert alike.asked == "age"


def test_bounds_of_a_mean_are_those_of_scipy_and_stay_in_reach() -> None:
    value = attacked(record(0, 0.80), record(1, 0.84), record(2, 0.85)).value
    mean, sd = np.mean([0.80, 0.84, 0.85]), np.std([0.80, 0.84, 0.85], ddof=1)
    two, one = (stats.t.ppf(q, 2) * sd / math.sqrt(3) for q in (0.975, 0.95))
    found = [value.mean, value.sd, value.low, value.high, value.lower, value.upper]
    assert found == pytest.approx([mean, sd, mean - two, mean + two, mean - one, mean + one])
    assert value.seeds == 3
    wide = attacked(record(0, 0.1), record(1, 0.99))
    assert (wide.value.low, wide.value.high) == (0.0, 1.0)
    assert (wide.advantage.low, wide.advantage.high) == (-1.0, 0.5)


def test_bounds_of_an_advantage_are_of_its_least_and_of_its_named_control() -> None:
    made = attacked(*(record(s, v) for s, v in enumerate((0.7, 0.75, 0.72, 0.74))))
    gain = np.array([0.2, 0.25, 0.22, 0.24])
    half = [stats.t.ppf(q, 3) * gain.std(ddof=1) / 2 for q in (0.975, 0.95)]
    a = made.advantage
    assert [a.mean, a.sd, a.low, a.high, a.lower, a.upper] == pytest.approx(
        [gain.mean(), gain.std(ddof=1), *(gain.mean() + k for k in
         (-half[0], half[0], -half[1], half[1]))]
    )  # fmt: skip
    assert a.seeds == 4


@pytest.mark.parametrize(
    ("splits", "shown"),
    [(("train", "validation", "test"), "test"), (("train", "validation"), "validation"),
     (("train", "odd"), "train"), (("odd", "even"), "odd")],
)  # fmt: skip
def test_the_task_beside_an_attack_is_of_its_phase_and_of_the_best_split(
    splits: tuple[str, ...], shown: str
) -> None:
    values = {s: 0.6 + 0.1 * i for i, s in enumerate(splits)}
    phases = {"train": 0.0, "later": 0.3}
    main = [
        task(0, v - off, phase=phase, split=s)
        for s, v in values.items()
        for phase, off in phases.items()
    ]
    assert attacked(*main, record(0, 0.9)).utility.mean == pytest.approx(values[shown])
    early = attacked(*main, record(0, 0.9, phase="early"))  # not there: of the last phase
    assert early.utility.mean == pytest.approx(values[shown] - 0.3)


def test_the_undefended_run_is_what_utility_is_lost_to_and_strength_zero_fills_its_gaps() -> None:
    swept = {"defense": "iso", "strength": 2.0}
    zero = {"defense": "iso", "strength": 0.0}
    made = attacked(
        task(0, 0.8), task(1, 0.9), task(0, 0.5, **zero), task(2, 0.7, **zero),
        task(0, 0.6, **swept), task(1, 0.8, **swept), task(2, 0.6, **swept), task(3, 0.1, **swept),
        record(0, 0.9, **swept),
    )  # fmt: skip
    assert made.utility.mean == pytest.approx(0.525)
    drops = [0.8 - 0.6, 0.9 - 0.8, 0.7 - 0.6]
    assert made.utility_drop.mean == pytest.approx(np.mean(drops))
    assert (made.utility_drop.seeds, made.utility_metric) == (3, "auc")


@pytest.mark.parametrize(
    ("chances", "primary"),
    [
        ({"accuracy": 0.6, "auc": 0.5, "leak_auc": 0.5}, "auc"),
        ({"accuracy": 0.6, "auc": 0.5, "balanced_accuracy": 0.5}, "auc"),
        ({"accuracy": 0.25, "auc": 0.5, "balanced_accuracy": 0.25}, "accuracy"),
        ({"accuracy": 0.6, "balanced_accuracy": 0.5}, "accuracy"),  # two classes, no AUC there
        ({"accuracy": 0.25, "balanced_accuracy": 0.25}, "accuracy"),  # four alike
        ({"accuracy": 0.7, "balanced_accuracy": 0.25}, "balanced_accuracy"),  # one of four is most
        ({"accuracy": 0.35, "balanced_accuracy": 1 / 3}, "accuracy"),  # 0.35 is not 1.5 x 0.325
        ({"accuracy": 0.5, "balanced_accuracy": 1 / 3}, "balanced_accuracy"),  # 0.5 is 2 x 0.25
        ({"accuracy": 1.0, "balanced_accuracy": 0.25}, "accuracy"),
        ({"odd": 0.5}, "odd"),
    ],
)
def test_the_primary_metric_of_classes_by_their_shares(
    chances: dict[str, float], primary: str
) -> None:
    rows = complete_rows(task(0, 0.5, metric=m, chance=c) for m, c in chances.items())
    assert {r.primary for r in rows} == {primary}


def test_strengths_of_a_stack_of_defenses() -> None:
    made = [
        DefenseSpec("a", {"x": 1}),
        DefenseSpec("b", {}, "bank", 2.0),
        DefenseSpec("c", {}, "", 3.0),
    ]
    assert defense_point(()) == ("none", 0.0)
    label, swept = defense_point(made)
    assert swept == 2.0
    assert label.split(" + ") == ["a(x=1)", "b(party=bank)", "c(strength=3.0)"]
    assert defense_point(made[:1])[1] is None


def test_rows_that_are_exposed_are_counted_over_seeds() -> None:
    made = attacked(
        record(0, 0.1, metric="exposed", chance=0.02),
        record(1, 0.2, metric="exposed", n=80, chance=None),
        record(2, None, metric="exposed", status="error"),
    )
    assert made.leakage is not None
    counts = {a.name: a.counts for a in made.leakage.against}["majority"]
    assert counts == Counts(named=100 * 0.1 + 80 * 0.2, own=180 * 0.5, rows=180, luck=2.0, seeds=2)


# What an attack gains over a control


def test_a_bound_and_a_p_value_by_hand() -> None:
    one = Against("x", 0.5, 0.2, 0.1, 5)
    step = 0.1 / math.sqrt(5)
    assert one.bound("upper", 0.05) == pytest.approx(0.2 + stats.t.ppf(0.95, 4) * step)
    assert one.bound("lower", 0.01) == pytest.approx(0.2 - stats.t.ppf(0.99, 4) * step)
    for limit in (0.1, 0.2, 0.3):
        above = stats.t.sf((0.2 - limit) / step, 4)
        assert one.p(limit) == pytest.approx(above)
        assert one.p(limit, -1) == pytest.approx(1 - above)
    detected = (stats.t.ppf(0.95, 4) + stats.t.ppf(0.8, 4)) * step
    assert one.detectable(0.05, 0.8) == pytest.approx(detected)
    assert one.over(20) == Against("x", 0.5, 0.2, 0.1, 20)
    two = Against("x", 0.5, 0.2, 0.1, 2)
    assert two.detectable(0.05, 0.8) == pytest.approx(
        (stats.t.ppf(0.95, 1) + stats.t.ppf(0.8, 1)) * 0.1 / math.sqrt(2)
    )
    assert two.p(0.1) == pytest.approx(stats.t.sf(math.sqrt(2), 1))
    still = Against("x", 0.5, 0.2, 0.0, 3)
    assert [still.p(0.1), still.p(0.2), still.p(0.1, -1), still.p(0.3, -1)] == [0, 1, 1, 0]
    single = Against("x", 0.5, 0.2, None, 1)
    assert (single.bound("upper", 0.05), single.detectable(0.05, 0.8), single.p(0.0)) == (
        None, None, 1.0
    )  # fmt: skip


def test_what_would_be_found_is_that_of_the_hardest_control() -> None:
    near, far = Against("near", 0.5, 0.1, 0.2, 6), Against("far", 0.4, 0.3, 0.5, 6)
    leak = Leakage((near, far), "far")
    alone = [a.detectable(0.05, 0.8) or 0 for a in (near, far)]
    assert leak.detectable(0.05) == pytest.approx(max(alone[0], alone[1] - 0.2))
    more = [a.over(10).detectable(0.05, 0.8) or 0 for a in (near, far)]
    assert leak.detectable(0.05, more=4) == pytest.approx(max(more[0], more[1] - 0.2))
    assert Leakage((near, Against("x", 0.5, 0.2, None, 1)), "near").detectable(0.05) is None
    assert (leak.ahead, leak.least, Leakage((near,), "gone").ahead) == (far, near, near)
    assert leak.p_above(0.0) == max(near.p(0.0), far.p(0.0))
    assert leak.p_below(0.5) == far.p(0.5, -1)


def test_seeds_to_add_are_the_least_that_are_enough() -> None:
    leak = Leakage((Against("a", 0.5, 0.1, 0.2, 6), Against("b", 0.5, 0.12, 0.3, 6)), "b")
    more = leak.seeds_to_detect(0.1, 0.05)
    assert more is not None
    assert more > 1
    assert (leak.detectable(0.05, more=more) or 1) <= 0.1
    assert (leak.detectable(0.05, more=more - 1) or 0) > 0.1
    assert leak.seeds_to_detect(2.0, 0.05) == 0
    assert leak.seeds_to_detect(1e-4, 0.05) is None
    assert Leakage((Against("a", 0.5, 0.1, None, 1),), "a").seeds_to_detect(1.0, 0.05) is None
    for limit, level in ((0.05, 0.01), (0.3, 0.05)):  # beyond over all, within over the named
        n = leak.seeds_until(limit, 0.05, 0.01)
        assert n is not None

        def bounds(seeds: int, limit: float = limit, level: float = level) -> list[float]:
            asked = leak.against if limit < 0.1 else (leak.ahead,)
            side = "lower" if limit < 0.1 else "upper"
            return [a.over(seeds).bound(side, level) or 0 for a in asked]

        settled = [all((x > limit) == (limit < 0.1) for x in bounds(6 + k)) for k in (n - 1, n)]
        assert settled in ([False, True], [True, True])
        assert settled[0] is (n == 1)
    assert leak.seeds_until(0.1 - 1e-6, 0.05, 0.05) is None
    certain = Leakage((Against("a", 0.5, 0.1, 1e-9, 6),), "a")
    assert certain.seeds_until(0.0, 0.05, 0.05) == 1
    alone = Leakage((Against("a", 0.5, 0.1, 0.0, 1),), "a")
    assert alone.seeds_until(0.0, 0.05, 0.05) == 1


@pytest.mark.parametrize("n", [3, 4, 10])
def test_a_seed_stands_apart_as_by_grubbs(n: int) -> None:
    t = stats.t.ppf(1 - 0.01 / (2 * n), n - 2)
    most = (n - 1) / math.sqrt(n) * math.sqrt(t * t / (n - 2 + t * t))
    rest = np.linspace(-1, 1, n - 1)
    found = set()
    for far in np.geomspace(1.5, 1e4, 60):
        values = np.array([*rest, far])
        gap = abs(values - values.mean()).max() / values.std(ddof=1)
        assert ctl.has_outlier(values) is bool(gap > most)
        found.add(bool(gap > most))
    assert found == {True, False}
    assert not ctl.has_outlier(np.full(n, 0.3))
    assert not ctl.has_outlier(np.array([0.0, 1e6]))


def test_a_leak_is_called_one_from_half_a_hundredth_on() -> None:
    cases = {(0.005, 1e-9): True, (0.0049, 1e-9): False, (0.5, 0.0): False, (0.5, None): False,
             (None, 0.1): False, (None, None): False}  # fmt: skip
    assert {k: ctl.is_leak(*k) for k in cases} == cases


def test_an_answer_that_messages_did_not_change_is_that_without_them() -> None:
    def leak(mean: float, sd: float, n: int, name: str = "untrained") -> Leakage:
        return Leakage((Against(name, 0.5, mean, sd, n),), name)

    assert leak(0.0, 0.0, 5).without(5)
    assert leak(0.0, 0.0, 6).without(5)
    for other in (leak(0.0, 0.0, 4), leak(0.1, 0.0, 5), leak(0.0, 0.1, 5), leak(0.0, 0.0, 5, "x")):
        assert not other.without(5)


def test_controls_take_part_with_two_seeds_or_with_all_there_are() -> None:
    gained = {"a": {0: 0.1, 1: 0.2, 2: 0.3}, "b": {0: 0.5, 1: 0.7}, "c": {0: 0.0}}
    own = {k: dict.fromkeys(v, 0.5) for k, v in gained.items()}
    leak = Leakage.between(gained, own, "a")
    assert leak is not None
    assert [(a.name, a.n, a.control) for a in leak.against] == [("a", 3, 0.5), ("b", 2, 0.5)]
    one = Leakage.between({"c": {0: 0.0}}, own, "c")
    assert one is not None
    assert (one.least.n, one.least.sd, one.lower(0.05)) == (1, None, None)
    assert Leakage.between({}, {}, "") is None
    alike = {key: {0: 0.1} for key in ("z", "chance", "b")}
    ties = Leakage.between(alike, alike, "")
    assert ties is not None
    assert [a.name for a in ties.against] == ["b", "z", "chance"]
    assert ctl.find_worst(gained) == 0.3  # seed 2; the least of seed 0 is 0.0, of seed 1 0.2
    assert ctl.find_worst({}) is None


def test_shares_are_linear_about_the_ratio_of_means() -> None:
    gained, own = {"a": {0: 0.1, 1: 0.3}}, {"a": {0: 0.6, 1: 0.4}}
    share = 0.2 / 0.5
    expected = {0: share + (0.1 - share * 0.4) / 0.5, 1: share + (0.3 - share * 0.6) / 0.5}
    shares, left = ctl.as_shares(gained, own, 1.0)
    assert shares["a"] == pytest.approx(expected)
    assert left["a"] == pytest.approx({0: 0.8, 1: 1.2})
    assert ctl.as_shares({"a": {0: 0.0}}, {"a": {0: 1.0}}, 1.0) == ({}, {})


def test_bounds_of_a_ratio_solve_their_t_test() -> None:
    """Fieller 1954: the limits m at which the t test of d - m e is just at the level."""
    d, e = np.array([0.10, 0.32, 0.18, 0.25]), np.array([0.4, 0.7, 0.5, 0.6])
    gained, own = ({"a": dict(enumerate(x.tolist()))} for x in (d, 1 - e))
    shares, left = ctl.as_shares(gained, own, 1.0)
    leak = Leakage.between(shares, own, "a", left=left)
    assert leak is not None
    for side, sign in (("lower", -1), ("upper", 1)):
        m = leak.least._bound_ratio(sign, 0.05)
        y = d - m * e
        t = y.mean() / (y.std(ddof=1) / 2)
        assert t == pytest.approx(-sign * stats.t.isf(0.05, 3))
        assert leak.least._p_ratio(m, -sign) == pytest.approx(0.05)
        own_bound = leak.least.bound(side, 0.05)
        assert own_bound is not None
        assert sign * (own_bound - m) >= 0


def test_the_named_control_has_the_best_cross_validated_mean() -> None:
    seen = [
        (0, {"a": {"cv": 0.6}, "b": {"cv": 0.9}}), (0, {"a": {"cv": 0.6}, "b": {"cv": 0.9}}),
        (1, {"a": {"cv": 0.8}, "b": {"cv": 0.3}, "c": {"cv": math.nan}, "d": {"cv": None}}),
    ]  # fmt: skip
    assert (
        ctl.find_strongest(seen, "auc") == "a"
    )  # 0.7 against 0.6; over cells it was 0.667 and 0.7
    assert ctl.find_strongest(seen, "mae") == "b"
    assert ctl.find_strongest([(0, {"b": {"cv": 0.5}, "a": {"cv": 0.5}})], "auc") == "a"
    assert ctl.find_strongest([(0, {"a": {"cv": None}, "majority": {}})], "auc") == "majority"
    assert ctl.find_strongest([(0, {"a": {"cv": None}})], "auc") == "chance"


def test_only_a_primary_metric_with_an_end_has_a_share_of_the_error() -> None:
    def shares(metric: str, primary: str) -> list[str]:
        made = [record(s, 0.7 + 0.1 * s, metric=metric, primary=primary) for s in (0, 1)]
        return [p.metric for p in points_of(made, shares=True)]

    assert shares("auc", "auc") == ["auc", "error_removed"]
    assert shares("accuracy", "auc") == ["accuracy"]
    assert shares("mae", "mae") == ["mae", "error_removed"]  # no error is the end
    assert shares("epsilon_lower", "epsilon_lower") == ["epsilon_lower"]


# Intervals


def test_an_auc_of_one_batch_with_one_pair_has_the_spread_of_its_counts() -> None:
    rows, scores, y = np.arange(4), np.array([0.1, 0.4, 0.3, 0.2]), np.array([0, 1, 0, 0])
    auc, pairs = intervals.mean_auc([(rows, scores, y)])
    assert (auc.value, pairs) == (1.0, 1)
    scores = np.array([0.1, 0.25, 0.3, 0.2])
    auc, pairs = intervals.mean_auc([(rows, scores, y)])
    assert (auc.value, pairs) == (pytest.approx(2 / 3), 1)
    assert auc.se == pytest.approx(intervals.hanley_mcneil_se(2 / 3, 1, 3))
    twice, _ = intervals.mean_auc([(rows, scores, y), (rows + 4, scores, y)])
    assert twice.se != pytest.approx(auc.se)
    with pytest.raises(ConfigError):
        intervals.mean_auc([])


@pytest.mark.parametrize(("positives", "negatives"), [(29, 90), (90, 29), (30, 30), (5, 400)])
def test_few_rows_of_a_class_widen_an_error(positives: int, negatives: int) -> None:
    least = intervals.hanley_mcneil_se(0.9, positives, negatives)
    few = min(positives, negatives) < 30
    made = intervals.of_few(intervals.Auc(0.9, 1e-3), positives, negatives)
    assert made.se == (least if few else 1e-3)
    wide = intervals.Auc(0.9, 0.4)
    assert intervals.of_few(wide, positives, negatives) == wide
    none = intervals.Auc(0.9, None)
    assert intervals.of_few(none, positives, negatives) == none


def test_the_spread_of_an_auc_by_its_counts_by_hand() -> None:
    q1, q2 = 0.9 / 1.1, 2 * 0.81 / 1.9
    spread = 0.09 + 4 * (q1 - 0.81) + 9 * (q2 - 0.81)
    assert intervals.hanley_mcneil_se(0.9, 5, 10) == pytest.approx(math.sqrt(spread / 50))


def test_an_interval_of_an_auc_by_hand() -> None:
    low, high = intervals.auc_interval(intervals.Auc(0.8, 0.05), 9, 0.9)
    half, logit = stats.norm.ppf(0.95) * 0.05 / 0.16, math.log(4)
    assert (low, high) == pytest.approx(
        (1 / (1 + math.exp(half - logit)), 1 / (1 + math.exp(-half - logit)))
    )
    assert intervals.auc_interval(intervals.Auc(1.0, 0.0), 9, 0.9) == (
        pytest.approx(0.05 ** (1 / 9)),
        1,
    )
    assert intervals.auc_interval(intervals.Auc(0.0, 0.0), 9, 0.9) == (
        0,
        pytest.approx(1 - 0.05 ** (1 / 9)),
    )
    assert intervals.auc_interval(intervals.Auc(0.8, None), 9) == (None, None)


def test_means_and_bounds_of_one_and_of_none() -> None:
    assert intervals.mean_and_sd([]) == (None, None)
    assert intervals.mean_and_sd([0.3]) == (0.3, None)
    assert intervals.mean_and_sd([1.0, 2.0]) == (1.5, pytest.approx(0.5**0.5))
    assert intervals.mean_of([0.3]) == 0.3
    assert intervals.clopper_pearson(0, 0) == (0.0, 1.0)
    assert (intervals.clopper_pearson(0, 10).low, intervals.clopper_pearson(10, 10).high) == (0, 1)
    for side, tail in (("two", 0.05), ("upper", 0.1), ("lower", 0.1)):
        for k in (3, 7):
            low, high = intervals.clopper_pearson(k, 10, 0.9, side)  # type: ignore[arg-type]
            ends = (stats.beta.ppf(tail, k, 11 - k), stats.beta.ppf(1 - tail, k + 1, 10 - k))
            assert low == pytest.approx(0.0 if side == "upper" else ends[0])
            assert high == pytest.approx(1.0 if side == "lower" else ends[1])
    with pytest.raises(ConfigError, match="k must be"):
        intervals.clopper_pearson(11, 10)
    assert [intervals.clip_bound(x, (0.0, 1.0)) for x in (None, -1.0, 0.5, 2.0)] == [
        None,
        0,
        0.5,
        1,
    ]
    for bad in ([[0.1, 0.2]], [0.1, math.nan], [0.1, math.inf]):
        with pytest.raises(ConfigError, match="finite"):
            intervals.t_interval(bad)
    for bad in ([-0.1], [1.1], [[0.5]]):
        with pytest.raises(ConfigError):
            intervals.holm(bad)
    assert intervals.holm([0.0, 1.0]).tolist() == [0.0, 1.0]
    adjusted, kept = intervals.conditional_holm([0.01, 0.5, 0.51], 0.5)
    assert (adjusted.tolist(), kept) == ([0.04, 1.0, 1.0], 2)
