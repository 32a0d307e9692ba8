"""Verdicts: what passes, what fails, what stays open, and how often a sealed system is accused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_rows import SHOWN, STEADY, WIDE, one, points_of, record, rows, task, verdicts_of
from scipy import stats

from vflsec.audit.gate import Gate, Rule, Ruling, Verdict, exit_code
from vflsec.audit.intervals import t_interval
from vflsec.audit.judge import judge
from vflsec.audit.point import Training
from vflsec.audit.result_row import ResultRow
from vflsec.audit.validated import Validation
from vflsec.errors import ConfigError


def test_pass_fail_and_between() -> None:
    gate = Gate(max=0.05, attack="direction")
    high = t_interval(STEADY, 0.95, "upper").high
    low = t_interval(STEADY, 1 - 0.05 * 0.95, "lower").low  # pays for setting harmless ones aside
    found = one(rows(0.02), gate)
    assert (found.verdict, found.n, found.threshold) == ("PASS", 5, 0.05)
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.02 + low, 0.02 + high))
    assert one(rows(0.05 - high - 1e-6), gate).verdict == "PASS"
    assert one(rows(0.05 - high + 1e-6), gate).verdict == "INCONCLUSIVE"
    assert one(rows(0.05 - low - 1e-6), gate).verdict == "INCONCLUSIVE"
    failed = one(rows(0.05 - low + 1e-6), gate)
    assert failed.verdict == "FAIL"
    assert "0.057 of AUC over 5 seeds" in failed.reason  # with its unit
    assert one(rows(0.05 - high + 1e-6), Gate(max=0.05, confidence=0.9)).verdict == "PASS"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("iso", [0, 1, 2, 3, 4]), ("iso + noise", [2, 3, 4]), ("noise", [4]), ("iso(ratio=2)", [1]),
        ("iso(ratio=2) + noise(strength=1.0)", [3]), ("*", [0, 1, 2, 3, 4]), ("is", []),
    ],
)  # fmt: skip
def test_a_bare_name_is_that_of_one_defense_or_of_the_swept_one_of_a_stack(
    wanted: str, found: list[int]
) -> None:
    """One whose strength the label fixes is not swept, so its bare name asks for no such stack."""
    labels = ["iso", "iso(ratio=2)", "iso + noise(strength=1.0)",
              "iso(ratio=2) + noise(strength=1.0)", "iso(ratio=2) + noise"]  # fmt: skip
    records = [r for at in labels for r in rows(0.0, defense=at, strength=5.0)]
    verdicts = verdicts_of(records, Gate(max=0.05, defense=wanted), {})
    assert sorted(v.defense for v in verdicts if v.defense) == sorted(labels[i] for i in found)


def test_min_gates_mirror_max_gates() -> None:
    gate = Gate(min=0.08, attack="direction")
    assert one(rows(0.2), gate, {}).verdict == "PASS"  # what is found proves its own life
    assert one(rows(0.05), gate, {}).verdict == "FAIL"
    near = one(rows(0.08), gate, {})
    assert near.verdict == "INCONCLUSIVE"
    assert near.low < 0.08 < near.high
    assert near.value == pytest.approx(0.08)


def test_absolute_metrics_and_utility() -> None:
    records = [*rows(0.2), *task(0.9), *task(0.85, defense="iso", strength=5.0)]
    assert one(records, Gate("auc", max=0.75)).verdict == "PASS"
    assert one(records, Gate("auc", max=0.65)).verdict == "FAIL"
    summary = points_of(records)
    kept = judge(summary, [Gate("utility", min=0.84)], {})
    assert [(v.defense, v.verdict) for v in kept] == [("none", "PASS"), ("iso", "PASS")]
    kept = judge(summary, [Gate("utility", min=0.88)], {})
    assert [(v.defense, v.verdict) for v in kept] == [("none", "PASS"), ("iso", "FAIL")]
    drop = judge(summary, [Gate("utility_drop", max=0.06, defense="iso")], {})[0]
    assert (drop.verdict, drop.strength) == ("PASS", 5.0)
    assert drop.value == pytest.approx(0.05)
    assert (
        judge(summary, [Gate("utility_drop", max=0.04, defense="defended")], {})[0].verdict
        == "FAIL"
    )


def test_an_attack_that_is_not_alive_cannot_pass_a_system() -> None:
    gate = Gate(max=0.05)
    dead = {"direction": Validation(False, "advantage +0.001 in the positive control")}
    found = one(rows(0.0), gate, dead)
    assert found.verdict == "INCONCLUSIVE"
    assert (found.rule, found.detail) == ("not_validated", "undefended")
    assert [place.attack for place in found.not_validated] == ["direction"]
    assert "+0.001 in the positive control" in found.reason
    assert one(rows(0.0), gate, {}).detail == "none"
    assert one(rows(0.0), gate, {}).verdict == "INCONCLUSIVE"
    assert one(rows(0.0), gate).verdict == "PASS"
    mixed = one([*rows(0.0), *rows(0.0, attack="norm")], gate, {**dead, "norm": SHOWN})
    assert mixed.verdict == "INCONCLUSIVE"
    assert one(rows(0.4), gate, dead).verdict == "FAIL"  # a measured leak needs no other proof


def test_a_gate_may_judge_attacks_on_one_thing_alone() -> None:
    """Columns leak, labels do not: each gate says its own, and one over both fails."""
    feature = rows(0.4, attack="embedding_inversion", target="feature")
    both = [*rows(0.0), *feature]
    assert one(both, Gate(max=0.05)).verdict == "FAIL"
    labels = one(both, Gate(max=0.05, target="label"))
    assert (labels.verdict, labels.attack) == ("PASS", "direction")
    columns = one(both, Gate(max=0.05, target="feature"))
    assert (columns.verdict, columns.attack) == ("FAIL", "embedding_inversion")
    assert columns.gate.label == "advantage of any feature attack <= 0.05"
    with pytest.raises(ConfigError, match=r"gate: target must be one of .*'label'.*got 'lable'"):
        Gate(max=0.05, target="lable")


def test_fewer_than_two_seeds_never_decide() -> None:
    for mean in (0.0, 0.4):
        found = one(rows(mean, (0.0,)), Gate(max=0.05))
        assert found.verdict == "INCONCLUSIVE"
        assert (found.low, found.high, found.n) == (None, None, 1)
        assert found.rule == "single_seed"
    two = one([*rows(0.0), *rows(0.0, (0.0,), attack="norm")], Gate(max=0.05))
    assert (two.verdict, two.rule) == ("INCONCLUSIVE", "single_seed")
    assert (two.attack, two.n, two.more_seeds) == ("norm", 1, 4)


def test_inconclusive_says_how_many_seeds_are_missing() -> None:
    sd = float(np.std(STEADY, ddof=1))
    found = one(rows(0.05 - 0.5 * sd), Gate(max=0.05))
    need = next(n for n in range(2, 99) if stats.t.ppf(0.95, n - 1) / np.sqrt(n) < 0.5)
    assert need == 13
    assert (found.rule, found.stuck, found.more_seeds) == ("undecided", False, need - 5)
    exact = one(rows(0.05, (0.0625, -0.0625, 0.0)), Gate(max=0.05))
    assert exact.verdict == "INCONCLUSIVE"
    assert (exact.rule, exact.stuck, exact.more_seeds) == ("undecided", True, None)


def test_one_attack_that_would_fail_decides_whatever_the_others_do() -> None:
    """`norm` stands at its limit for ever; what `direction` tells fails the gate a little later."""
    noise = (0.1, -0.1, 0.0)
    sd = float(np.std(noise, ddof=1))
    at_limit = rows(0.05, (0.125, -0.125, 0.0), attack="norm")
    found = one([*rows(0.25, noise), *at_limit], Gate(max=0.05))
    assert (found.verdict, found.attack) == ("INCONCLUSIVE", "direction")
    level = 0.05 * 0.95 / 2
    need = next(n for n in range(3, 99) if stats.t.isf(level, n - 1) * sd / np.sqrt(n) < 0.2)
    assert (need, found.more_seeds) == (4, 1)
    still = one([*rows(0.0, noise), *at_limit], Gate(max=0.05))
    assert (still.verdict, still.more_seeds) == ("INCONCLUSIVE", None)


def test_what_seeds_cannot_decide_says_why() -> None:
    """Within the limit over all controls, beyond it over the one that was named: open for ever."""
    both = {"majority": {"value": 0.45, "cv": 0.9}, "trees": {"value": 0.55, "cv": 0.6}}
    found = one(rows(0.1, controls=both), Gate(max=0.1))
    assert (found.verdict, found.more_seeds) == ("INCONCLUSIVE", None)
    assert found.stuck
    assert [x for x in ("0.050", "0.150", "majority") if x not in found.reason] == []


def test_what_was_not_measured_is_inconclusive_never_passed() -> None:
    gate = Gate(max=0.05, attack="direction")
    nothing = judge([], [gate], {})
    assert [(v.verdict, v.rule) for v in nothing] == [("INCONCLUSIVE", "nothing_selected")]
    blind = rows(0, status="not-observable", reason="no gradient is sent to bank")
    found = one(blind, gate)
    assert found.verdict == "INCONCLUSIVE"
    assert "no gradient is sent to bank" in found.reason
    assert (found.rule, found.value) == ("nothing_measured", None)
    assert one(rows(0.0, attack="norm"), gate).verdict == "INCONCLUSIVE"
    both = [*blind, *rows(0.0, attack="norm")]
    assert one(both, gate).verdict == "INCONCLUSIVE"
    every = one(both, Gate(max=0.05))
    assert every.verdict == "PASS"
    assert "set aside: direction (not-observable)" in every.reason


def test_a_failed_seed_blocks_pass_but_not_fail() -> None:
    gate = Gate(max=0.05)
    error = rows(0, (0.0,), seed=9, status="error", reason="diverged")
    found = one([*rows(0.0), *error], gate)
    assert found.verdict == "INCONCLUSIVE"
    assert found.rule == "failed_runs"
    assert found.reason == "Cannot pass: 1 seed of direction failed (diverged)."
    lost = [replace(error[0], attack="norm", metric="")]
    assert one([*rows(0.0), *lost], gate).verdict == "INCONCLUSIVE"
    assert one([*rows(0.4), *error], gate).verdict == "FAIL"
    silent = rows(0, attack="norm", value=None)
    assert one([*rows(0.0), *silent], gate).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("of", [{"split": "test"}, {"phase": "train"}, {"split": "train"}])
def test_an_attack_that_failed_blocks_gates_on_rows_or_stages(of: dict[str, str]) -> None:
    """Its row names neither, and a gate with `split` passed over five attacks that had failed."""
    kept = rows(0.0, phase="train", split=of.get("split", "test"))
    (lost,) = rows(0, (0.0,), attack="norm", split="", phase="", status="error", reason="broke")
    gate = Gate(max=0.05, **of)  # type: ignore[arg-type]
    assert one(kept, gate).verdict == "PASS"
    found = one([*kept, replace(lost, metric="", value=None)], gate)
    assert (found.verdict, found.rule) == ("INCONCLUSIVE", "failed_runs")
    assert "1 seed of norm failed (broke)" in found.reason
    there = [*kept, replace(lost, phase="later", metric="", value=None)]
    assert one(there, gate).verdict == ("PASS" if "phase" in of else "INCONCLUSIVE")
    aside = replace(lost, status="not-observable", metric="", value=None)
    assert one([*kept, aside], gate).verdict == "PASS"


def declined(found: list[ResultRow], *seeds: int) -> list[ResultRow]:
    """The same attack with nothing to read on these seeds, where its row names no rows."""
    lost = {"status": "declined", "metric": "", "split": "", "victim": "", "value": None}
    return [replace(r, **lost) if r.seed in seeds else r for r in found]


@pytest.mark.parametrize(
    ("mean", "seeds", "verdict", "value"),
    [(0.05, (0, 1, 3, 4), "PASS", 0.012), (0.4, (0, 1, 3, 4), "INCONCLUSIVE", 0.082),
     (0.3, (0,), "FAIL", 0.242), (0.05, (0, 1, 2, 3, 4), "INCONCLUSIVE", None)],
)  # fmt: skip
def test_where_an_attack_declined_its_adversary_is_left_with_the_control(
    mean: float, seeds: tuple[int, ...], verdict: str, value: float | None
) -> None:
    """It was short of seeds for ever: more of them are declined likewise."""
    found = one(declined(rows(mean, phase="train", victim="shop"), *seeds), Gate(max=0.1))
    undecided = verdict == "INCONCLUSIVE" and value is not None
    assert (found.verdict, found.rule == "undecided") == (verdict, undecided)
    if value is None:
        assert found.rule == "nothing_measured"
    else:
        assert (found.n, found.value) == (5, pytest.approx(value))
        beside = [
            *rows(0.0, attack="norm", phase="train"),
            *declined(rows(mean, phase="train"), *seeds),
        ]
        assert "set aside" not in one(beside, Gate(max=0.1)).reason


@pytest.mark.parametrize("metric", ["auc", "relative_error"])
def test_figures_of_an_attack_that_declined_on_some_seeds_add_up(metric: str) -> None:
    """The value less that of the control is the advantage, with labels flipped too."""
    made = declined(rows(0.2, WIDE, phase="train", metric=metric), 1, 3)
    (p,) = (p for p in points_of(made) if p.status == "ok")
    sign = 1 if metric == "auc" else -1
    assert p.seeds == p.advantage.seeds == p.control_value.seeds == p.planned == 5
    assert sign * (p.value.mean - p.control_value.mean) == pytest.approx(p.advantage.mean)
    gains = [0.0 if s in (1, 3) else sign * (0.2 + e) for s, e in enumerate(WIDE)]
    assert p.advantage.sd == pytest.approx(np.std(gains, ddof=1))
    if metric == "auc":
        assert p.mirrored.mean == pytest.approx(-p.advantage.mean)


def test_several_attacks_are_judged_by_the_largest_with_holm() -> None:
    noise = (-0.02, 0.0, 0.02, 0.01, -0.01)
    sd = float(np.std(noise, ddof=1))
    # p = 0.03 alone: beyond at 95 % by itself, not as the best of four
    shift = float(stats.t.isf(0.03, 4)) * sd / np.sqrt(5)
    single = one(rows(0.05 + shift, noise, attack="a0"), Gate(max=0.05))
    assert single.verdict == "FAIL"
    crowd = [r for i in range(1, 4) for r in rows(0.045, noise, attack=f"a{i}")]
    four = one([*rows(0.05 + shift, noise, attack="a0"), *crowd], Gate(max=0.05))
    assert four.verdict == "INCONCLUSIVE"
    assert (four.attack, four.value) == ("a0", pytest.approx(0.05 + shift))
    level = 0.05 * 0.95 / 4
    assert four.low == pytest.approx(0.05 + shift - stats.t.isf(level, 4) * sd / np.sqrt(5))
    assert four.high == pytest.approx(0.05 + shift + stats.t.isf(0.05, 4) * sd / np.sqrt(5))
    # the gate is decided when a0 fails it, not when the three others pass
    need = next(n for n in range(5, 99) if stats.t.isf(level, n - 1) * sd / np.sqrt(n) < shift)
    assert four.more_seeds == need - 5 == 2
    # attacks that pass by themselves cost no more than the look at them
    crowd = [r for i in range(1, 4) for r in rows(0.0, noise, attack=f"a{i}")]
    four = one([*rows(0.05 + shift, noise, attack="a0"), *crowd], Gate(max=0.05))
    assert four.verdict == "FAIL"
    assert four.low == pytest.approx(0.05 + shift - stats.t.isf(0.0475, 4) * sd / np.sqrt(5))
    for p, verdict in ((0.047, "FAIL"), (0.048, "INCONCLUSIVE")):
        close = rows(0.05 + float(stats.t.isf(p, 4)) * sd / np.sqrt(5), noise, attack="a0")
        assert one([*close, *crowd], Gate(max=0.05)).verdict == verdict
        assert one(close, Gate(max=0.05)).verdict == verdict
    # Holm, not Bonferroni: p = .005 and .02 both go beyond among two
    pair = [
        r
        for i, p in enumerate((0.005, 0.04))
        for r in rows(0.05 + float(stats.t.isf(p, 4)) * sd / np.sqrt(5), noise, attack=f"a{i}")
    ]
    found = one(pair, Gate(max=0.05))
    assert (found.verdict, found.attack) == ("FAIL", "a0")
    assert "1 more attack" in found.reason


def test_every_deployed_point_is_judged_by_itself() -> None:
    records = [
        *rows(0.3),
        *rows(0.2, defense="iso", strength=1.0),
        *rows(0.0, defense="iso", strength=25.0),
        *rows(0.0, defense="mid(beta=1)", strength=None),
    ]

    def got(**kw: Any) -> list[tuple[str, float | None, str]]:
        return [
            (v.defense, v.strength, v.verdict) for v in verdicts_of(records, Gate(max=0.05, **kw))
        ]

    iso = [("iso", 1.0, "FAIL"), ("iso", 25.0, "PASS")]
    mid = [("mid(beta=1)", None, "PASS")]
    assert got() == [("none", 0.0, "FAIL"), *iso, *mid]
    assert got(defense="defended") == [*iso, *mid]
    assert got(defense="none") == [("none", 0.0, "FAIL")]
    assert got(defense="iso") == iso
    assert got(defense="mid") == mid
    assert got(defense="iso", strength=25.0) == iso[1:]
    assert got(adversary="nobody")[0][2] == "INCONCLUSIVE"


def test_advantage_is_taken_in_the_primary_metric_unless_told() -> None:
    records = [*rows(0.2), *rows(0.0, metric="leak_auc")]
    assert one(records, Gate(max=0.05)).verdict == "FAIL"
    assert one(records, Gate(max=0.05, of="leak_auc")).verdict == "PASS"
    assert one(records, Gate("leak_auc", max=0.55)).verdict == "PASS"


def test_a_perfect_leak_in_reverse_is_never_a_pass() -> None:
    """AUC 0.000 on five seeds against own means of 0.62: turned round it is the label."""
    own = {"logistic": {"value": 0.62, "cv": 0.6}, "majority": {"value": 0.5, "cv": 0.5}}
    records = rows(-0.5, (0.0, 0.001, 0.0, 0.0, 0.002), controls=own)
    found = one(records, Gate(max=0.1))
    assert found.verdict == "INCONCLUSIVE"
    assert found.value == pytest.approx(-0.62, abs=1e-3)
    assert found.rule == "reversed_ranking"
    assert "with labels flipped 0.379" in found.reason
    exact = one(rows(-0.5, (0.0,) * 5, controls=own), Gate(max=0.1))
    assert (exact.verdict, exact.rule) == ("INCONCLUSIVE", "reversed_ranking")
    assert one(records, Gate("auc", max=0.7)).verdict == "INCONCLUSIVE"
    # half as far in reverse is excluded by the limit, and no reason any more
    assert one(rows(-0.05), Gate(max=0.1)).verdict == "PASS"
    assert one(rows(-0.095), Gate(max=0.1)).verdict == "INCONCLUSIVE"
    few = rows(-0.5, STEADY, metric="tpr_at_1pct_fpr", chance=0.01, controls={})
    few = [replace(r, value=max(r.value, 0.0)) for r in few]  # none: the rows are told last
    for gate in (Gate("tpr_at_1pct_fpr", max=0.1), Gate(max=0.1, of="tpr_at_1pct_fpr")):
        found = one([*records, *few], gate)
        assert (found.verdict, found.rule) == ("INCONCLUSIVE", "reversed_ranking")
        flipped = "with labels flipped 0.379 in auc; its tpr_at_1pct_fpr"
        assert flipped in found.reason
        assert one([*rows(-0.003), *few], gate).verdict == "PASS"  # no more than chance does
    many = rows(-0.5, chance=0.9, metric="accuracy", primary="accuracy")
    assert one(many, Gate(max=0.1)).verdict == "PASS"  # more than two classes: no way round


def test_a_pass_takes_seeds_rows_and_figures_that_differ() -> None:
    gate = Gate(max=0.1)
    two = one(rows(0.0, (0.001, -0.001)), gate)
    assert (two.verdict, two.rule) == ("INCONCLUSIVE", "underpowered")
    assert (two.detail, two.more_seeds) == ("few_seeds", 1)
    assert one(rows(0.0, (0.001, 0.0, -0.001)), gate).verdict == "PASS"
    few = one(rows(0.0, n=19), gate)
    assert (few.verdict, few.rule, few.detail) == ("INCONCLUSIVE", "underpowered", "few_rows")
    groups = [replace(r, n=n) for r, n in zip(rows(0.0), (900, 6, 900, 900, 900), strict=True)]
    one_few = one(groups, gate)  # as where a group of rows stays on one side of the split
    assert (one_few.verdict, one_few.detail) == ("INCONCLUSIVE", "few_rows")
    assert "6 of the 20 rows" in one_few.reason
    none = [replace(r, n=0) if r.seed == 1 else r for r in groups]
    assert one(none, gate).detail == "few_rows"
    tied = one(rows(0.0, (0.0,) * 5), gate)
    assert (tied.verdict, tied.detail) == ("INCONCLUSIVE", "equal_figures")
    weak = ({"majority": {"value": 0.6 + e, "cv": None}} for e in (0.0, 0.01, -0.01, 0.02, 0.0))
    dead = [replace(r, controls=c) for r, c in zip(rows(0.0, (0.0,) * 5), weak, strict=True)]
    assert one(dead, gate).verdict == "PASS"  # AUC 0.5 always; it is the controls that differ
    for figures in (dead, rows(0.0)):  # the figure of one answer for all rows may be any
        blank = one([replace(r, tied=True) for r in figures], gate)
        assert (blank.verdict, blank.detail) == ("INCONCLUSIVE", "all_tied")
    some = [replace(r, tied=r.seed > 0) for r in rows(0.0)]
    assert one(some, gate).verdict == "PASS"
    named = [replace(r, attack="dictionary", tied=True) for r in dead]  # its answer
    found = one(named, gate)
    assert (found.verdict, found.detectable) == ("PASS", {})
    assert one(named, gate, {"dictionary": Validation(False, "")}).verdict == "INCONCLUSIVE"
    empty = [*rows(0.0)[:3], *(replace(r, value=None, n=0) for r in rows(0.0)[3:])]
    assert one(empty, gate).verdict == "PASS"  # two of five seeds had nothing to score
    assert one([*empty[:2], *empty[3:]], gate).detail == "few_seeds"
    gone = [*rows(0.0)[:3], *task(0.9)]  # two of five seeds left no row at all
    assert one(gone, gate).detail == "missing_seeds"
    assert one(rows(0.4, (0.0, 0.0)), gate).verdict == "FAIL"  # what leaks leaks
    same = rows(-0.4, (0.0,) * 3, metric="accuracy", chance=0.1, value=0.1)
    tenth = one(same, Gate("accuracy", max=0.2))  # three tenths, whose mean is no tenth
    assert (tenth.verdict, tenth.detail) == ("INCONCLUSIVE", "equal_figures")


def test_a_gate_that_can_neither_fail_nor_pass_says_why() -> None:
    """Beside a control that no known row names (own columns and the randomised labels of all others
    reach 0.91) an attack that tells all labels gains 0.09, at a limit of 0.1.
    """
    beside = {"majority": {"value": 0.5, "cv": None}, "logistic": {"value": 0.62, "cv": 0.6},
              "randomised": {"value": 0.91, "cv": None}}  # fmt: skip
    found = one(rows(0.495, (0.003, 0.0, -0.003, 0.001, 0.0), controls=beside), Gate(max=0.1))
    assert found.verdict == "INCONCLUSIVE"
    assert [x for x in ("0.375", "0.910", "0.090", "(of)") if x not in found.reason] == []


def test_where_own_columns_tell_every_label_equal_figures_are_no_riddle() -> None:
    """A control at 1.000 on every seed leaves nothing to gain: no spread is needed to know it, and
    no number of seeds gave one.
    """
    own = {"majority": {"value": 0.5, "cv": None}, "logistic": {"value": 1.0, "cv": 1.0}}
    full = one(rows(0.5, (0.0,) * 5, controls=own), Gate(max=0.1))
    assert full.verdict == "PASS"
    assert "the baseline of direction reaches 1.000" in full.reason
    error = {"mean": {"value": 0.0, "cv": 0.0}}
    inverted = {"metric": "relative_error", "primary": "relative_error", "chance": 1.0}
    exact = rows(-0.5, (0.0,) * 5, controls=error, **inverted)
    assert one(exact, Gate(max=0.1)).verdict == "PASS"
    nearly = {**own, "logistic": {"value": 0.999, "cv": 1.0}}
    assert one(rows(0.499, (0.0,) * 5, controls=nearly), Gate(max=0.1)).verdict == "INCONCLUSIVE"


def test_equal_figures_are_no_accident_where_no_message_changed_an_answer() -> None:
    """Of recorded runs rows and known rows are the same, and so is what own columns alone tell."""

    def beside(untrained: tuple[float, ...]) -> list[ResultRow]:
        own = {"logistic": {"value": 0.57, "cv": 0.6}}
        return [
            record(s, 0.56, n=500, controls=own | {"untrained": {"value": v, "cv": None}})
            for s, v in enumerate(untrained)
        ]

    gate = Gate(max=0.1)
    without = one(beside((0.56,) * 5), gate)
    assert (without.verdict, without.value) == ("PASS", pytest.approx(-0.01))
    assert "no message changed direction" in without.reason
    once = one(beside((0.56,) * 4 + (0.55,)), gate)
    assert (once.verdict, once.detail) == ("INCONCLUSIVE", "equal_figures")
    lost = one(beside((0.56,) * 4 + (None,)), gate)  # type: ignore[arg-type]
    assert lost.verdict == "INCONCLUSIVE"


def test_a_pass_rests_on_a_control_with_every_seed() -> None:
    """The bound of a PASS is taken against the named control, which stands on two seeds only."""
    least = {"majority": {"value": 0.68, "cv": None}}
    some = rows(0.2, (0.0, 0.001), controls=least | {"logistic": {"value": 0.65, "cv": 0.7}})
    rest = rows(0.2, (0.0, 0.001, 0.002, 0.001, 0.0), controls=least)[2:]
    found = one([*some, *rest], Gate(max=0.1))
    assert found.verdict == "INCONCLUSIVE"
    assert (found.rule, found.detail) == ("underpowered", "baseline_missing_seeds")
    assert "2 of the 5 seeds" in found.reason


def test_an_error_of_an_attack_is_limited_from_below_by_the_same_rules() -> None:
    """Nothing was shown of an attack that is dead, seen twice or on five rows."""
    means = {"mean": {"value": 1.0, "cv": None}}
    errors = rows(0.5, target="feature", metric="relative_error", chance=1.0, controls=means)
    gate = Gate("relative_error", min=0.5)
    assert one(errors, gate).verdict == "PASS"
    assert one(errors, gate, {}).verdict == "INCONCLUSIVE"
    assert one(errors, gate, {}).rule == "not_validated"
    assert one(errors[:2], gate).verdict == "INCONCLUSIVE"
    assert one([replace(r, n=5) for r in errors], gate).verdict == "INCONCLUSIVE"
    assert one(errors, gate).detectable
    least = Gate("auc", min=0.9, attack="direction")  # that an attack works proves itself
    assert one(rows(0.45, (0.0, 0.001)), least, {}).verdict != "FAIL"


@pytest.mark.parametrize(("metric", "chance"), [("mae", 0.8), ("log_loss", 0.69)])
def test_a_maximum_of_an_error_limits_no_leak_and_says_so(metric: str, chance: float) -> None:
    """It passes the better the attack guesses, and no report may count the leak as limited."""
    controls = {"means": {"value": chance, "cv": None}}
    known = rows(-0.45, metric=metric, chance=chance, controls=controls)
    below, above = Gate(metric, max=chance / 2), Gate(metric, min=chance / 2)
    passed = one(known, below)
    assert passed.verdict == "PASS"
    assert passed.warnings == ("limits_no_leak",)
    assert "was found" not in passed.reason
    assert (below.needs_validated, above.needs_validated) == (False, True)
    assert one(known, above).verdict == "FAIL"


@pytest.mark.parametrize("lost", [None, "no row"])
def test_what_canaries_measured_on_some_seeds_alone_passes_nothing(lost: Any) -> None:
    at: dict[str, Any] = {"defense": "iso", "strength": 5.0}
    found = [0.1, 0.2, lost]
    seen = task(0.9, (0.0, 0.01, 0.02), **at) + [
        replace(r, value=value, controls={}, chance=None)
        for r, value in zip(task(0.9, (0, 0, 0), metric="epsilon_lower", **at), found, strict=True)
        if value != "no row"
    ]  # fmt: skip
    open_ = one(seen, Gate("epsilon_lower", max=1.0))
    assert (open_.verdict, open_.more_seeds) == ("INCONCLUSIVE", 1)
    assert (open_.rule, open_.detail) == ("underpowered", "missing_seeds")


def test_a_stack_is_undefended_only_where_all_of_it_is_off() -> None:
    """The first defense off and the second on: deployed, judged, and no reference of utility."""
    one_off, all_off = "iso + noise(strength=5.0)", "iso + noise(strength=0.0)"
    leak = [*rows(0.4, defense=one_off, strength=0.0), *rows(0.0, defense=one_off, strength=1.0)]
    deployed = verdicts_of(leak, Gate(max=0.1, defense="defended"))
    assert [(v.strength, v.verdict) for v in deployed] == [(0.0, "FAIL"), (1.0, "PASS")]
    spoilt = [*task(0.5, defense=one_off, strength=0.0), *task(0.5, defense=one_off, strength=1.0)]
    gate = Gate("utility_drop", max=0.03, defense="defended")
    assert [v.verdict for v in verdicts_of(spoilt, gate)] == ["INCONCLUSIVE"] * 2
    good = task(0.9, defense=all_off, strength=0.0)
    assert [v.verdict for v in verdicts_of([*spoilt, *good], gate)] == ["FAIL"] * 2
    off = [("none", 0.0), ("iso", 0.0), (all_off, 0.0), ("a(party=shop) + b(strength=0)", 0)]
    on = [(one_off, 0.0), ("mid(beta=1) + iso", 0.0), (all_off, 1.0), ("mid", None),
          ("iso + rr(strength=0.05)", 0.0), ("a(strength=0) + b(strength=2) + c", 0)]  # fmt: skip
    assert all(Training("", "", d, s).is_undefended for d, s in off)
    assert not any(Training("", "", d, s).is_undefended for d, s in on)


def test_exit_codes() -> None:
    def of(*verdicts: str) -> int:
        gate = Gate(max=0.1)
        ruling = Ruling(Rule.NOTHING_MEASURED, "")
        made = [Verdict.about(Training(), gate, ruling, verdict=v) for v in verdicts]
        return exit_code(made)

    assert [of(), of("PASS"), of("PASS", "INCONCLUSIVE"), of("INCONCLUSIVE", "FAIL", "PASS")] == [
        0, 0, 3, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kw", "match"),
    [
        ({}, "exactly one"),
        ({"max": 0.1, "min": 0.0}, "exactly one"),
        ({"max": float("nan")}, "finite"),
        ({"max": 0.1, "detect": 0.0}, "detect"),
        ({"min": 0.1, "detect": 0.1}, "given with a max"),
        ({"metric": "auc", "max": 0.6, "detect": 0.1}, "given with a max"),
        ({"metric": "advntage", "max": 0.1}, "Did you mean 'advantage'"),
        ({"max": 0.1, "confidence": 1.0}, "confidence"),
        ({"max": 0.1, "confidence": 0.79}, "at least 0.8"),
        ({"max": 1.0}, "can reach"),
        ({"max": 0.5, "of": "auc"}, "below 0.5"),
        ({"metric": "auc", "max": 1.0}, "can reach"),
        ({"metric": "utility", "min": 0.0}, "can reach"),
        ({"metric": "utility_drop", "max": 1.0}, "can reach"),
    ],
)
def test_gates_refuse_nonsense(kw: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Gate(**kw)
