"""Regression against a baseline, claimed epsilons, comparison of two audits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gate_rows
import numpy as np
import pytest
from audited import LEAKY, SEALED, Killed, Planted, audited
from scipy import stats

from vflsec.audit.baseline import (
    Baseline,
    add_grants,
    find_unchanged,
    group_advantages,
    make_baseline,
    read_baseline,
    refuse_failed,
    write_baseline,
)
from vflsec.audit.baseline_verdicts import judge_regressions
from vflsec.audit.compare import compute_change
from vflsec.audit.gate import Gate
from vflsec.audit.leakage import complete_rows, summarise
from vflsec.audit.record import AttackFacts
from vflsec.audit.result_row import ResultRow, read_rows
from vflsec.audit.validated import Place, Validation
from vflsec.cli import main as cli
from vflsec.engine.read_results import compare_folders, read_any, read_audit
from vflsec.epsilon.claimed_vs_measured import Claimed, judge_claims, pair_claims
from vflsec.errors import ConfigError

PLANTED = Validation(True, "planted")


def live(
    *attacks: str,
    shown: Validation = PLANTED,
    sections: Sequence[str] = ("",),
) -> dict[Place, Any]:
    return {Place("toy", "splitnn", "bank", a, None, s): shown for a in attacks for s in sections}


LIVE = live("a0", "a1", "a2")


def rows(values: dict[str, list[float]], first: int = 0, **extra: Any) -> list[ResultRow]:
    """Results whose advantages by attack and seed are `values`."""
    return complete_rows(
        replace(r, seed=first + r.seed)
        for a, of in values.items()
        for r in gate_rows.rows(0.0, of, attack=a, **extra)
    )


def keep(made: list[ResultRow], tmp_path: Path, **how: Any) -> Baseline:
    """What is read back of a baseline file of these results."""
    path = tmp_path / "baseline.json"
    made_of = Baseline(group_advantages(made), **how)
    path.write_text(json.dumps(make_baseline(made_of, "hash", "0.1.0")))
    return read_baseline(path)


def stored(values: dict[str, list[float]], tmp_path: Path) -> Baseline:
    return keep(rows(values), tmp_path)


OLD = [0.10, 0.12, 0.08, 0.11, 0.09]


def test_paired_changes_by_hand(tmp_path: Path) -> None:
    before = stored({"a0": OLD}, tmp_path)
    new = [v + d for v, d in zip(OLD, (0.05, 0.06, 0.04, 0.05, 0.05), strict=True)]
    (v,) = judge_regressions(rows({"a0": new}), before, LIVE)
    assert (v.verdict, v.rule, v.origin) == ("FAIL", "regression", "baseline")
    assert v.value == pytest.approx(0.05)
    half = stats.t.ppf(0.95, 4) * np.std([0.05, 0.06, 0.04, 0.05, 0.05], ddof=1) / np.sqrt(5)
    assert (v.low, v.high) == (pytest.approx(0.05 - half), pytest.approx(0.05 + half))
    assert v.threshold == pytest.approx(0.03)
    assert v.attack == "a0"
    (v,) = judge_regressions(rows({"a0": [x + 0.029 for x in OLD]}), before, LIVE)
    assert v.verdict == "PASS"
    (v,) = judge_regressions(rows({"a0": [x - 0.1 for x in OLD]}), before, LIVE)
    assert v.verdict == "PASS"
    (v,) = judge_regressions(rows({"a0": [x - 0.5 for x in OLD]}), before, LIVE)
    assert (v.verdict, v.rule) == ("INCONCLUSIVE", "reversed_ranking")
    assert "with labels flipped 0.400" in v.reason


def test_a_rise_holds_against_every_control_or_it_is_none(tmp_path: Path) -> None:
    """The named control fell by itself; against the other nothing changed."""

    def made(own: float, trees: float) -> list[ResultRow]:
        beside = {"own": {"value": own, "cv": 0.9}, "trees": {"value": trees, "cv": 0.6}}
        return rows({"a0": OLD}, controls=beside)

    before = keep(made(0.55, 0.58), tmp_path)
    assert set(next(iter(before.values()))) == {"own", "trees", "chance"}
    (v,) = judge_regressions(made(0.45, 0.58), before, LIVE)
    assert (v.verdict, v.value) == ("PASS", pytest.approx(0))
    (v,) = judge_regressions(made(0.45, 0.48), before, LIVE)
    assert v.verdict == "INCONCLUSIVE"  # chance, now the least, has not moved
    assert v.value == pytest.approx(0.08)


def test_a_noisy_baseline_tolerates_more(tmp_path: Path) -> None:
    old = [0.0, 0.2, 0.1, 0.05, 0.15]
    before = stored({"a0": old}, tmp_path)
    allowed = 2.5 * np.std(old, ddof=1) / np.sqrt(5)
    for rise, verdict in ((allowed - 0.001, "PASS"), (allowed + 0.001, "FAIL")):
        (v,) = judge_regressions(rows({"a0": [x + rise for x in old]}), before, LIVE)
        assert v.threshold == pytest.approx(allowed)
        assert v.verdict == verdict


def test_a_baseline_that_tolerates_any_rise_passes_nothing(tmp_path: Path) -> None:
    """Three seeds far apart tolerated a rise from 0 to 0.45, of 0.5 that an AUC can reach."""
    before = stored({"a0": [-0.4, 0.4, 0.0]}, tmp_path)
    (v,) = judge_regressions(rows({"a0": [0.45, 0.46, 0.44]}), before, LIVE)
    assert v.threshold == pytest.approx(2.5 * 0.4 / np.sqrt(3))
    assert (v.verdict, v.value) == ("INCONCLUSIVE", pytest.approx(0.45))
    assert (v.rule, v.detail) == ("underpowered", "any_rise_tolerated")


@pytest.mark.parametrize(
    ("own", "old", "verdict"),
    [
        (0.96, 0.0, "PASS"), (0.98, 0.0, "INCONCLUSIVE"),
        (0.96, 0.02, "INCONCLUSIVE"),  # which leaves 0.02 to rise by
        (0.98, -0.02, "PASS"), (0.6, 0.39, "PASS"),  # a known leak of nearly all
    ],
)  # fmt: skip
def test_where_a_control_leaves_less_than_is_tolerated_no_rise_can_fail(
    own: float, old: float, verdict: str, tmp_path: Path
) -> None:
    """0.02 are left of an AUC of 1, at 0.03 that are tolerated."""

    def made(*gains: float) -> list[ResultRow]:
        beside = {"own": {"value": own, "cv": own}}
        return rows({"a0": [own + gain - 0.5 for gain in gains]}, controls=beside)

    before, now = keep(made(old + 0.001, old, old - 0.001), tmp_path), old + 0.019
    (v,) = judge_regressions(made(now, now + 0.001, now - 0.001), before, LIVE)
    assert v.verdict == verdict
    assert (v.detail == "any_rise_tolerated") is (verdict != "PASS")


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        ({"of": "exposed"}, "PASS"), ({"of": "error_removed"}, "INCONCLUSIVE"),
        ({}, "INCONCLUSIVE"), ({"of": "exposed", "attack": "a1"}, "INCONCLUSIVE"),
        ({"of": "exposed", "defense": "defended"}, "INCONCLUSIVE"),
    ],
)  # fmt: skip
def test_no_room_to_rise_passes_beside_a_gate_on_its_exposed_rows(
    asked: dict[str, str], verdict: str, tmp_path: Path
) -> None:
    near = [0.98 - 0.5 + d for d in (0.001, 0.0, -0.001)]
    now = rows({"a0": near}, controls={"own": {"value": 0.98, "cv": 0.98}})
    counted = [replace(p, metric="exposed") for p in summarise(now)]
    gate = Gate(max=0.01, **asked)  # type: ignore[arg-type]
    (v,) = judge_regressions(now, keep(now, tmp_path), LIVE, points=counted, gates=[gate])
    assert v.verdict == verdict


def test_seeds_too_far_apart_pass_beside_no_gate(tmp_path: Path) -> None:
    now = rows({"a0": [-0.4, 0.4, 0.0]})
    counted = [replace(p, metric="exposed") for p in summarise(now)]
    gate = Gate(max=0.01, of="exposed")
    (v,) = judge_regressions(now, keep(now, tmp_path), LIVE, points=counted, gates=[gate])
    assert (v.verdict, v.detail) == ("INCONCLUSIVE", "any_rise_tolerated")


def test_other_seeds_are_compared_unpaired(tmp_path: Path) -> None:
    before = stored({"a0": OLD}, tmp_path)
    new = [0.2, 0.22, 0.19, 0.21, 0.2]
    (v,) = judge_regressions(rows({"a0": new}, first=100), before, LIVE)
    p = stats.ttest_ind(new, OLD, equal_var=False, alternative="greater")
    low = p.confidence_interval(0.95).low
    assert v.verdict == "FAIL"
    assert v.low == pytest.approx(low)


def test_a_rise_that_is_not_sure_is_inconclusive_and_says_how_many_seeds(tmp_path: Path) -> None:
    before = stored({"a0": OLD}, tmp_path)
    new = [v + d for v, d in zip(OLD, (0.3, -0.2, 0.25, -0.15, 0.1), strict=True)]
    (v,) = judge_regressions(rows({"a0": new}), before, LIVE)
    assert v.verdict == "INCONCLUSIVE"
    assert v.more_seeds is not None
    assert v.rule == "undecided"
    sd = np.std([0.3, -0.2, 0.25, -0.15, 0.1], ddof=1)
    need = next(n for n in range(2, 999) if stats.t.ppf(0.95, n - 1) * sd / np.sqrt(n) < 0.06)
    assert v.more_seeds == need - 5


def test_what_is_gone_or_dead_never_passes(tmp_path: Path) -> None:
    before = stored({"a0": OLD, "a1": OLD}, tmp_path)
    found = judge_regressions(rows({"a0": OLD}), before, LIVE)
    assert [(v.attack, v.verdict) for v in found] == [("a0", "PASS"), ("a1", "INCONCLUSIVE")]
    assert [v.rule for v in found] == ["within", "no_longer_measured"]
    assert "--update-baseline" in found[1].reason
    dead = live("a0", shown=Validation(False, "advantage +0.001"))
    (v, _) = judge_regressions(rows({"a0": [0.0] * 5}), before, dead)
    assert (v.verdict, v.rule) == ("INCONCLUSIVE", "not_validated")


def test_an_attack_that_never_worked_is_judged_only_if_it_rose(tmp_path: Path) -> None:
    """A draft's baseline held attacks that find nothing there, and no audit passed beside it."""
    none, place = [0.0, 0.01, -0.01, 0.0, 0.0], Place("toy", "splitnn", "bank", "a1", None, "")
    made = rows({"a0": OLD, "a1": none})
    before = keep(made, tmp_path, silent=[k for k in group_advantages(made) if k.place == place])
    dead = live("a0") | {place: Validation(False, "advantage +0.001")}
    same = judge_regressions(rows({"a0": OLD, "a1": none}), before, dead)
    assert [(v.attack, v.verdict) for v in same] == [("a0", "PASS")]
    rose = judge_regressions(rows({"a0": OLD, "a1": [0.2] * 5}), before, dead)
    assert [(v.attack, v.verdict) for v in rose] == [("a0", "PASS"), ("a1", "FAIL")]
    now = judge_regressions(rows({"a0": OLD, "a1": none}), before, LIVE)
    assert [(v.attack, v.verdict) for v in now] == [("a0", "PASS"), ("a1", "PASS")]
    (only,) = judge_regressions(
        rows({"a1": none}), Baseline({k: x for k, x in before.items() if k.attack == "a1"},
                                     silent=before.silent), dead,
    )  # fmt: skip
    assert (only.verdict, only.rule) == ("INCONCLUSIVE", "nothing_selected")
    full = [replace(r, controls={"majority": {"value": 0.999, "cv": None}}, value=0.999 + x)
            for r, x in zip(rows({"a1": none}), none, strict=True)]  # fmt: skip
    made = [*rows({"a0": OLD}), *full]  # nothing is left to rise by
    before = keep(made, tmp_path, silent=[k for k in group_advantages(made) if k.place == place])
    same = judge_regressions(made, before, dead)
    assert [(v.attack, v.verdict) for v in same] == [("a0", "PASS")]
    failing = rows({"a0": OLD, "a1": none[:1]})  # four of five seeds hide whatever rose there
    found = {v.attack: (v.verdict, v.rule) for v in judge_regressions(failing, before, dead)}
    assert found == {"a0": ("PASS", "within"), "a1": ("INCONCLUSIVE", "not_validated")}


def test_a_pass_takes_the_evidence_that_a_gate_takes(tmp_path: Path) -> None:
    """An attack that fails on four of five seeds hides whatever rose there."""
    before = stored({"a0": OLD}, tmp_path)
    new = rows({"a0": [x + 0.3 for x in OLD]})
    new = [
        replace(new[0], value=0.61, advantage=0.11),
        *(replace(r, status="error", value=None) for r in new[1:]),
    ]
    (v,) = judge_regressions(new, before, LIVE)
    assert (v.verdict, v.value) == ("INCONCLUSIVE", pytest.approx(0.01))
    assert (v.rule, v.detail) == ("underpowered", "missing_seeds")
    assert "1 of the 5 seeds" in v.reason
    (v,) = judge_regressions(rows({"a0": OLD[:2]}), before, LIVE)
    assert (v.verdict, v.detail) == ("INCONCLUSIVE", "few_seeds")
    (v,) = judge_regressions(rows({"a0": OLD}, n=19), before, LIVE)
    assert (v.verdict, v.detail) == ("INCONCLUSIVE", "few_rows")


def test_attacks_that_only_grants_tell_apart_are_compared_apart(tmp_path: Path) -> None:
    """One that rose by 0.2 beside one that fell by 0.2: their mean has not changed."""

    def both(first: float, second: float, keys: tuple[str, str] = ("a", "b")) -> list[ResultRow]:
        moved = {key: [x + by for x in OLD] for key, by in zip(keys, (first, second), strict=True)}
        return [r for key, of in moved.items() for r in rows({"a0": of}, attack_key=key)]

    before, shown = keep(both(0.0, 0.0), tmp_path), live("a0", sections="abcd")
    moved = judge_regressions(both(0.2, -0.2), before, shown)
    assert [v.verdict for v in moved] == ["FAIL", "PASS"]
    # a key that changed is found where it can be no other, and is gone where it can
    renamed = judge_regressions(both(0.2, -0.2, ("c", "b")), before, shown)
    assert [v.verdict for v in renamed] == ["PASS", "FAIL"]
    gone = judge_regressions(both(0, 0, ("c", "d")), before, shown)
    assert {v.verdict for v in gone} == {"INCONCLUSIVE"}
    elsewhere = live("a0", sections="a")  # silence of the other is no proof
    silent = judge_regressions(both(0.2, -0.2), before, elsewhere)
    assert [v.verdict for v in silent] == ["FAIL", "INCONCLUSIVE"]
    assert silent[1].rule == "not_validated"


@pytest.mark.slow
def test_noise_does_not_fail_many_points(tmp_path: Path) -> None:
    """Ten points without any change: some FAIL in at most 5 % of comparisons."""
    rng = np.random.default_rng(5)
    shown = live(*(f"p{i}" for i in range(10)))
    wrong, audits = 0, 100
    for _ in range(audits):
        old = {f"p{i}": list(rng.normal(0.1, 0.05, 5)) for i in range(10)}
        new = {f"p{i}": list(rng.normal(0.1, 0.05, 5)) for i in range(10)}
        before = stored(old, tmp_path)
        wrong += any(v.verdict == "FAIL" for v in judge_regressions(rows(new), before, shown))
    assert wrong <= stats.binom.ppf(1 - 1e-3, audits, 0.05)


def test_a_baseline_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no attack has an advantage"):
        make_baseline(Baseline({}), "", "")


CLAIM = Claimed("toy", "splitnn", "label_dp", 1.0)


@pytest.mark.parametrize(
    ("values", "claimed", "verdict", "rule"),
    [
        ([0.5, 0.6, 0.4, 0.2, 0.7], 1.0, "PASS", "within"),
        ([1.2, 0.6, 0.4, 0.2, 0.7], 1.0, "INCONCLUSIVE", "undecided"),  # 1 of 5: P = 0.23
        ([1.2, 1.3, 0.4, 0.2, 0.7], 1.0, "FAIL", "claim_contradicted"),  # 2 of 5: P = 0.023
        ([1.2], 1.0, "INCONCLUSIVE", "undecided"),
        # a canary that finds nothing anywhere
        ([0.0, 0.0, 0.0], 1.0, "INCONCLUSIVE", "not_validated"),
    ],
)
def test_claimed_epsilons(values: list[float], claimed: float, verdict: str, rule: str) -> None:
    made = [
        replace(r, value=r.value - 0.5)
        for r in rows({"canary": values}, metric="epsilon_lower", chance=None, controls={},
                       defense="label_dp", strength=1.0)
        if r.value is not None
    ]  # fmt: skip
    (v,) = judge_claims(made, [replace(CLAIM, epsilon=claimed)])
    assert (v.verdict, v.rule, v.origin) == (verdict, rule, "claim")
    assert v.threshold == claimed
    assert judge_claims(made, [CLAIM]) == []
    (v,) = judge_claims(made, [replace(CLAIM, epsilon=claimed)], share=1 / 4)
    assert v.verdict == verdict.replace("FAIL", "INCONCLUSIVE")  # 0.023 is above 0.05 / 4
    assert judge_claims(made, [replace(CLAIM, strength=2.0, epsilon=1.0)]) == []


def test_of_two_defenses_each_claim_meets_its_own_measure() -> None:
    """What canaries find of a row says nothing against the smaller epsilon of a label."""
    both = replace(CLAIM, defense="label_dp + embedding_noise")
    claims = [
        replace(both, epsilon=1.0, by="label_dp"),
        replace(both, epsilon=10.0, by="embedding_noise"),
    ]

    def made(*whose: str) -> list[ResultRow]:
        values = (0.0, 2.5, 0.1, 2.0)
        return [r for s, v in enumerate(values) for r in rows(
            {"": [v]}, first=s, metric="epsilon_lower", chance=None, controls={},
            defense=both.defense, strength=1.0, notes={"defense": whose[s % 2]},
        )]  # fmt: skip

    of = ("label_dp", "embedding_noise")
    found = judge_claims(made(*of), claims)
    assert [(v.verdict, v.threshold, v.value) for v in found] == [
        ("PASS", 1.0, 0.6), ("PASS", 10.0, 3.0),
    ]  # fmt: skip
    assert pair_claims(found) == {(both.defense, 1.0): (1.0, 0.6)}
    turned = judge_claims(made(*of[::-1]), claims)
    assert sorted(v.verdict for v in turned) == ["FAIL", "PASS"]


def test_compare_pairs_cells(tmp_path: Path) -> None:
    leaks = {"norm": 0.3, "model_completion": 0.2}
    old = audited(tmp_path / "a", Planted(leaks)).folder
    new = audited(tmp_path / "b", Planted({**leaks, "norm": 0.2}, utility=0.85)).folder
    found = compare_folders(old, new)
    rows = {(r.quantity, r.attack, r.strength): r for r in found.rows
            if r.algorithm == "splitnn"}  # fmt: skip
    norm = rows["advantage", "norm", 0.0]
    assert norm.change == pytest.approx(-0.1)
    assert (norm.low, norm.high) == (pytest.approx(-0.1), pytest.approx(-0.1))
    assert norm.paired is True
    assert rows["advantage", "model_completion", 0.0].change == pytest.approx(0)
    assert rows["utility", "", 5.0].change == pytest.approx(-0.05)
    assert found.gone == found.new == ()
    assert found.facts == ()
    other = audited(tmp_path / "c", Planted({**leaks, "direction": 0.3}, shift=1), seeds=[7, 8, 9],
                    set=["attack.0.name=direction"])  # fmt: skip
    found = compare_folders(old, other.folder)
    assert {r.attack for r in found.gone} == {"norm"}
    assert {r.attack for r in found.new} == {"direction"}
    assert [f[0] for f in found.facts] == ["scenario hash"]
    assert {r.paired for r in found.rows} == {False}


def test_what_failed_beside_a_figure_passes_no_baseline(tmp_path: Path) -> None:
    """Trainings that diverged were attacked, in vain: their figures looked like a fall."""
    before = stored({"a0": OLD}, tmp_path)
    fine = rows({"a0": [v - 0.1 for v in OLD]})
    assert [v.verdict for v in judge_regressions(fine, before, LIVE)] == ["PASS"]
    lost = {"status": "error", "reason": "the training diverged", "value": None}
    bad = [replace(r, **lost, split="", metric="") for r in fine if r.seed in (1, 3)]
    (v,) = judge_regressions([*fine, *bad], before, LIVE)
    assert (v.verdict, v.rule, v.detail) == ("INCONCLUSIVE", "underpowered", "failed_seeds")
    assert v.reason.endswith("it failed on 2 seeds: the training diverged.")


@pytest.mark.parametrize(("utility", "warns"), [(0.5, True), (0.8, False)])
def test_a_fall_in_a_system_that_learned_nothing_warns(
    tmp_path: Path, utility: float, warns: bool
) -> None:
    """Tables that were joined wrongly: no leak, for there is nothing to learn."""
    before = stored({"a0": OLD}, tmp_path)
    main = rows({"": [utility - 0.502 + 0.001 * s for s in range(5)]}, target="", adversary="",
                 controls={})  # fmt: skip
    now = [replace(r, primary="auc") for r in [*rows({"a0": [v - 0.1 for v in OLD]}), *main]]
    (v,) = judge_regressions(now, before, LIVE, 0.95, summarise(now))
    assert v.verdict == "PASS"
    assert v.warnings == ("model_at_chance",) * warns
    assert bool(v.warning) == warns
    assert (v.warning[1:] in v.reason) if warns else "guessing" not in v.reason


def test_the_same_figures_are_no_change_where_one_audit_has_more_seeds() -> None:
    """The least control of five seeds is not that of the two which both have."""
    before = {"trees": {0: 0.3, 1: 0.36}, "linear": {0: 0.35, 1: 0.34}}
    more = {"trees": {2: 0.4, 3: 0.4, 4: 0.4}, "linear": {2: 0.2, 3: 0.2, 4: 0.2}}
    now = {k: {**of, **more[k]} for k, of in before.items()}
    for found in (compute_change(now, before), compute_change(before, now)):
        assert (found.before, found.after) == (pytest.approx(0.33), pytest.approx(0.33))
        assert (found.mean, found.lower(0.025), found.upper(0.025)) == (0.0, 0.0, 0.0)
        assert (found.seeds, found.paired) == (2, True)


SPEC = AttackFacts(prior=True)


def of_grants(values: list[float], key: str, **spec: Any) -> list[ResultRow]:
    columns = {"target": "feature", "victim": "shop", "attack_key": key}
    return add_grants(rows({"a0": values}, **columns), {key: replace(SPEC, **spec)})


def test_an_attack_with_other_grants_is_not_the_one_of_the_baseline(tmp_path: Path) -> None:
    """60 rows of the victim's columns became 20: the attack works still, finds less, and passed."""
    before = keep(of_grants([0.5, 0.51, 0.49, 0.5, 0.52], "a", aux_rows=60), tmp_path)
    shown = live("a0", sections="ab")
    weak = [0.31, 0.3, 0.29, 0.3, 0.3]
    (v,) = judge_regressions(of_grants(weak, "b", aux_rows=20), before, shown)
    assert (v.verdict, v.rule) == ("INCONCLUSIVE", "no_longer_measured")
    assert "60 auxiliary rows, against shop in the earlier audit and 20" in v.reason
    assert "on test rows, 60 auxiliary rows, against shop" in v.gate.label
    (v,) = judge_regressions(of_grants(weak, "b", aux_rows=60), before, shown)
    assert v.verdict == "PASS"  # the key of an attack changes with its source, too
    both = [r for key in ("a", "b") for r in of_grants(weak, key, aux_rows=60)]
    kept, gone = judge_regressions(
        of_grants(weak, "a", aux_rows=60), Baseline(group_advantages(both)), shown
    )
    assert (kept.verdict, gone.verdict) == ("PASS", "INCONCLUSIVE")
    assert gone.rule == "no_longer_measured"


def test_grants_that_were_taken_away_are_noticed_on_the_command_line(tmp_path: Path) -> None:
    found = {"norm": 0.3, "model_completion": 0.2}
    less = {"norm": 0.3, "model_completion": 0.1}
    old = audited(tmp_path / "a", Planted(found)).folder
    now = audited(tmp_path / "b", Planted(less, found), set=["attack.1.prior=false"]).folder
    path = tmp_path / "baseline.json"
    assert cli.main(["gate", str(old), "--baseline", str(path), "--update-baseline"]) == 0
    for against in (path, old):
        before = read_any(against)
        (v, *more) = [
            v for v in read_audit(now, before=before, only=True).verdicts
            if v.attack == "model_completion"
        ]  # fmt: skip
        assert {w.verdict for w in (v, *more)} == {"INCONCLUSIVE"}
        assert "nothing in the earlier audit and no class shares now" in v.reason


@pytest.mark.parametrize(("seeds", "said"), [(2, True), (3, False)])
def test_a_baseline_of_too_few_seeds_is_said(
    seeds: int, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever came after was INCONCLUSIVE. Positive controls have seeds of their own."""
    found = audited(tmp_path / "a", Planted(LEAKY), set=[f"audit.seeds={seeds}"])
    path = tmp_path / "baseline.json"
    assert cli.main(["gate", str(found.folder), "--baseline", str(path), "--update-baseline"]) == 0
    assert (f"{seeds} of the 3 seeds" in capsys.readouterr().out) is said
    assert write_baseline(path, read_audit(found.folder)).seeds == seeds


def test_figures_that_no_build_can_meet_are_said_when_a_baseline_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each build ended with 3: so few seeds that waver tolerate any rise."""
    found = audited(tmp_path / "a", Planted(LEAKY, sd=0.4), set=["audit.seeds=3"])
    path = tmp_path / "baseline.json"
    cli.main(["gate", str(found.folder), "--baseline", str(path), "--update-baseline"])
    told = " ".join(capsys.readouterr().out.split())
    beside = read_audit(found.folder, before=read_any(path), only=True).verdicts
    still = [v for v in beside if not v.passes]
    assert still
    assert f"{len(still)} of {len(beside)} figures" in told


def test_without_a_gate_there_is_no_limit_that_a_strength_meets(tmp_path: Path) -> None:
    """A baseline alone made the undefended run the cheapest that meets every limit."""
    old = audited(tmp_path / "a", Planted(LEAKY, SEALED))
    summary = read_audit(old.folder, before=read_any(old.folder), only=True).summary
    assert [g["verdict"] for g in summary["gates"]] == ["PASS"] * len(summary["gates"])
    assert summary["gates"]
    assert summary["grid"] == []


def test_a_folder_that_lacks_what_was_planned_is_no_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attack was added, its audit was killed, and then the attack rose."""
    few = {"norm": 0.3, "model_completion": 0.1}
    many = {"norm": 0.3, "model_completion": 0.4}

    one = ["attack=[{name='norm', known_rows=20}]", "audit.references=[]"]
    two = ["attack=[{name='norm', known_rows=20}, {name='model_completion', known_rows=20}]",
           "audit.references=[]"]  # fmt: skip
    old = audited(tmp_path / "a", Planted(few), set=one).folder
    assert read_any(old)
    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path / "a", Killed(few), set=two)
    now = audited(tmp_path / "b", Planted(many), set=two).folder
    capsys.readouterr()
    assert cli.main(["gate", str(now), "--baseline", str(old)]) == 2
    assert "--baseline must be a whole audit, got a part" in capsys.readouterr().err
    part = audited(tmp_path / "c", Planted(few), set=two, shard="1/2").folder
    with pytest.raises(ConfigError, match=r"--baseline must be a whole audit, got shard 1/2"):
        read_any(part)


def test_an_audit_of_which_an_attack_failed_is_no_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attack failed on every seed, so that it was in no baseline, and its leak passed later."""
    leaks = {"norm": 0.1, "model_completion": 0.4}
    both = ["attack=[{name='norm', known_rows=20}, {name='model_completion', known_rows=20}]",
            "audit.references=[]"]  # fmt: skip
    old = audited(tmp_path / "a", Planted(leaks, fails=["model_completion"]), set=both).folder
    now = audited(tmp_path / "b", Planted(leaks), set=both).folder
    file = tmp_path / "baseline.json"
    capsys.readouterr()
    assert cli.main(["gate", str(now), "--baseline", str(old)]) == 2
    assert cli.main(["gate", str(old), "--baseline", str(file), "--update-baseline"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("model_completion by shop failed at [") == 2
    assert not file.exists()
    # seeds that are missing are told when they are compared
    some = [
        replace(r, status="ok", value=0.5)
        if r.seed == 0 and r.attack == "model_completion" else r
        for r in read_rows(read_audit(old).results)
    ]  # fmt: skip
    refuse_failed(old, some)


def test_renewing_a_baseline_lets_no_small_rises_add_up(tmp_path: Path) -> None:
    """After ten rises by 0.02, each renewed, a leak of 0.3 was the baseline of itself."""
    before, verdicts = stored({"a0": OLD, "a1": OLD}, tmp_path), []
    for k in range(1, 4):
        made = rows({"a0": [x + 0.02 * k for x in OLD], "a1": OLD})
        verdicts.append([v.verdict for v in judge_regressions(made, before, LIVE)])
        now = group_advantages(made)
        kept = find_unchanged(now, before, {})
        assert len(kept) == (2 if k == 1 else 1 if k == 2 else 2)
        path = tmp_path / "baseline.json"
        path.write_text(json.dumps(make_baseline(Baseline({**now, **kept}), "hash", "0.1.0")))
        before = read_baseline(path)
    assert verdicts == [["PASS", "PASS"], ["FAIL", "PASS"], ["PASS", "PASS"]]


@pytest.mark.parametrize(
    ("now", "more", "kept"),
    [
        ([x - 0.05 for x in OLD], {}, 0),  # it fell by more than is tolerated
        ([*OLD, 0.1], {}, 0),  # a seed more
        (OLD[:4], {}, 1),
        (OLD, {"controls": {"majority": {"value": 0.5}, "logistic": {"value": 0.45}}}, 0),
        (OLD, {"dataset": "other"}, 0),
    ],
)
def test_what_a_renewed_baseline_keeps(
    now: list[float], more: dict[str, Any], kept: int, tmp_path: Path
) -> None:
    before = stored({"a0": OLD}, tmp_path)
    found = group_advantages(rows({"a0": now}, **more))
    assert len(find_unchanged(found, before, {})) == kept
    assert find_unchanged(found, keep(rows({"a0": OLD}), tmp_path, data={"toy": "a"}),
                          {"toy": "b"}) == {}  # fmt: skip


def test_a_baseline_that_says_two_things_of_one_point_is_refused(tmp_path: Path) -> None:
    """As after a merge by hand: the last one counted, and a rise to it passed."""
    path = tmp_path / "baseline.json"
    low, high = (make_baseline(Baseline(group_advantages(rows({"a0": of}))), "", "")
                 for of in (OLD, [0.4] * 5))  # fmt: skip
    path.write_text(json.dumps(low | {"points": low["points"] + high["points"]}))
    with pytest.raises(ConfigError, match="a point is malformed"):
        read_baseline(path)
    (point,) = low["points"]
    of_others = {k: v for k, v in point.items() if k != "grants"}
    for wrong in (point | {"strength": "1"}, point | {"validated": "no"}, of_others):
        path.write_text(json.dumps(low | {"points": [wrong]}))
        with pytest.raises(ConfigError, match="a point is malformed"):
            read_baseline(path)


def test_a_baseline_of_two_seeds_passes_nothing(tmp_path: Path) -> None:
    """Their spread tolerated a rise by 0.3."""
    before = stored({"a0": [0.1, 0.34]}, tmp_path)
    (v,) = judge_regressions(rows({"a0": [x + 0.3 for x in OLD]}), before, LIVE)
    assert v.threshold == pytest.approx(2.5 * 0.24 / 2)
    assert (v.verdict, v.detail) == ("INCONCLUSIVE", "baseline_few_seeds")


def test_phases_of_one_training_are_called_otherwise(tmp_path: Path) -> None:
    """A FAIL after one phase and a PASS after another were one case to a CI server."""
    both = [r for p in ("pretrain", "tune") for r in rows({"a0": OLD}, phase=p)]
    before = keep(both, tmp_path)
    rises = (("pretrain", 0.2), ("tune", 0.0))
    up = [r for p, by in rises for r in rows({"a0": [x + by for x in OLD]}, phase=p)]
    first, second = judge_regressions(up, before, LIVE)
    assert (first.verdict, second.verdict) == ("FAIL", "PASS")
    assert first.gate.label.endswith("on test rows after pretrain")
    assert second.gate.label.endswith("on test rows after tune")
