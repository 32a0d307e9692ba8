"""From cells to points: the choice of control, the paired advantage, utility, curves, CAP."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gate_rows import points_of, record
from gate_rows import task_record as task
from sampled import sampled
from scipy import stats

from vflsec.audit import cap, dcs
from vflsec.audit.gate_selection import is_stack_named
from vflsec.audit.intervals import t_interval
from vflsec.audit.leakage import (
    complete_rows,
    defense_point,
    list_rows,
    summarise,
)
from vflsec.audit.point import Point, Training
from vflsec.audit.result_row import COLUMNS, ResultRow, read_rows, results_table
from vflsec.audit.tradeoff_curves import build_curves
from vflsec.specs import CellResult, CellSpec, DefenseSpec, Measure


def test_frame_has_the_agreed_columns_and_types() -> None:
    frame = results_table(complete_rows([record(0, 0.9), task(0, 0.8)]))
    assert tuple(frame.columns) == COLUMNS
    assert frame["advantage"][0] == pytest.approx(0.4)
    assert np.isnan(frame["advantage"][1])
    assert (frame["control"] == ["majority", ""]).all()
    assert frame["defense"].tolist() == ["none", "none"]
    assert frame["strength"].tolist() == [0, 0]
    assert (frame["primary"] == "auc").all()


def test_results_survive_parquet(tmp_path: Any) -> None:
    rows = complete_rows([record(0, 0.9), record(1, None, status="error", reason="diverged")])
    frame = results_table(rows)
    frame.to_parquet(tmp_path / "r.parquet")
    there = pd.read_parquet(tmp_path / "r.parquet")
    pd.testing.assert_frame_equal(there, frame)
    assert read_rows(there) == rows
    assert summarise(read_rows(there)) == summarise(rows)


def both(own: float, own_cv: float, ssl: float, ssl_cv: float) -> dict[str, Any]:
    return {
        "own columns": {"value": own, "cv": own_cv},
        "own encoder": {"value": ssl, "cv": ssl_cv},
        "majority": {"value": 0.5, "cv": None},
    }


def test_the_control_that_leaves_least_is_shown_and_one_is_named_beforehand() -> None:
    rows = complete_rows([
        record(0, 0.9, controls=both(0.60, 0.80, 0.75, 0.70)),
        record(1, 0.9, controls=both(0.62, 0.60, 0.76, 0.65)),
        record(2, 0.9, controls=both(0.61, 0.75, 0.77, 0.71)),
    ])  # fmt: skip
    assert {r.control for r in rows} == {"own encoder"}
    assert [r.control_value for r in rows] == [0.75, 0.76, 0.77]
    assert [r.advantage for r in rows] == pytest.approx([0.15, 0.14, 0.13])
    point = summarise(rows)[0]
    assert (point.control, point.named) == ("own encoder", "own columns")  # cv .717 > .687
    assert point.leakage is not None
    assert [a.name for a in point.leakage.against] == [
        "own encoder",
        "own columns",
        "majority",
        "chance",
    ]
    own = point.leakage.against[1]
    assert (own.control, own.mean, own.n) == (pytest.approx(0.61), pytest.approx(0.29), 3)
    ssl, cols = [0.15, 0.14, 0.13], [0.30, 0.28, 0.29]
    assert point.advantage.lower == pytest.approx(t_interval(ssl, 0.95, "lower").low)
    assert point.advantage.upper == pytest.approx(t_interval(cols, 0.95, "upper").high)
    assert point.advantage.low == pytest.approx(t_interval(ssl, 0.95).low)
    assert point.advantage.high == pytest.approx(t_interval(cols, 0.95).high)


def beside(values: Sequence[float], **controls: Sequence[float]) -> Point:
    """An attack's values by seed beside those of controls, the best in cross-validation first."""
    cv = {name: 0.7 - 0.1 * i for i, name in enumerate(controls)}
    made = [
        record(s, v, controls={k: {"value": of[s], "cv": cv[k]} for k, of in controls.items()})
        for s, v in enumerate(values)
    ]
    return points_of(made)[0]


def test_the_lower_bound_is_the_least_over_controls_not_that_of_the_least_mean() -> None:
    """A control that is weaker on average but wavers more leaves the lower bound."""
    steady, wavers = [0.65, 0.66, 0.65, 0.64, 0.65], [0.80, 0.52, 0.75, 0.51, 0.64]
    point = beside([0.8] * 5, a=steady, b=wavers)
    assert point.control == "a"
    assert point.advantage.mean == pytest.approx(0.15)
    far = t_interval(0.8 - np.array(wavers), 0.95, "lower").low
    assert point.advantage.lower == pytest.approx(far)


def test_a_control_that_fails_on_one_seed_hides_no_leak() -> None:
    """An attack without error was not significant, for a control fell to 0.3 on one seed."""
    named, failing = [0.69, 0.71, 0.70, 0.65, 0.53], [0.70, 0.70, 0.71, 0.69, 0.30]
    point = beside([1.0] * 5, a=named, b=failing)
    found = {a.name: a for a in point.leakage.against}
    assert found["a"].floored is None
    assert found["b"].mean == pytest.approx(1 - np.mean(failing))
    plain, floored = 1 - np.array(failing), 1 - np.maximum(failing, 0.5)
    assert found["b"].bound("upper", 0.05) == pytest.approx(t_interval(plain, 0.95, "upper").high)
    assert found["b"].floored == pytest.approx((floored.mean(), floored.std(ddof=1), 1))
    error = floored.std(ddof=1) / np.sqrt(5)
    low = floored.mean() - stats.t.ppf(0.95, 3) * error  # a degree of freedom for the seed
    assert found["b"].bound("lower", 0.05) == pytest.approx(low)
    assert t_interval(plain, 0.95, "lower").low < 0.22 < 0.24 < point.advantage.lower <= low
    assert found["b"].p(0.2) == pytest.approx(stats.t.sf((floored.mean() - 0.2) / error, 3))
    assert found["b"].p(0.5, -1) == pytest.approx(stats.ttest_1samp(plain, 0.5).pvalue / 2)


def test_chance_in_place_of_a_failing_control_accuses_no_more() -> None:
    """The control is excellent or fails, and as good as the attack on average."""
    rng, audits, wrong = np.random.default_rng(3), 400, 0
    for _ in range(audits):
        mine, fails = rng.normal(0.62, 0.02, 5), rng.choice([0.94, 0.3], 5)
        wrong += (beside(mine, n=[0.4] * 5, c=fails).advantage.lower or 0.0) > 0
    assert wrong <= stats.binom.ppf(1 - 1e-3, audits, 0.05)


@pytest.mark.parametrize("seeds", sampled([3, 5]))
def test_a_control_that_wavers_about_chance_is_exceeded_no_more_often(
    seeds: int,
) -> None:
    """Cut off at chance over three seeds, 0.11 of the bounds at 0.05 were above the truth."""
    rng, audits, wrong = np.random.default_rng(5), 400, 0
    for _ in range(audits):
        mine, wavers = rng.normal(0.75, 0.01, seeds), rng.normal(0.55, 0.2, seeds)
        wrong += (beside(mine, c=wavers).advantage.lower or 0.0) > 0.2
    assert wrong <= stats.binom.ppf(1 - 1e-3, audits, 0.052)


def test_one_name_for_all_seeds_strengths_and_defenses() -> None:
    rows = [
        record(s, 0.9, defense=d, strength=k, controls=both(0.6, own_cv, 0.7, 0.70))
        for (d, k, own_cv) in (("none", 0.0, 0.90), ("iso", 1.0, 0.65), ("norm", 2.0, 0.65))
        for s in range(2)
    ]

    def named(of: list[ResultRow], **where: Any) -> set[str]:
        found = points_of(of)
        return {p.named for p in found if all(getattr(p, k) == v for k, v in where.items())}

    assert named(rows) == {"own columns"}
    assert named([r for r in rows if r.defense == "iso"]) == {"own encoder"}
    other = [replace(r, dataset="other", defense="iso") for r in rows[2:]]
    assert named(rows + other, dataset="other") == {"own encoder"}
    budgets = [replace(r, known_rows=2 if r.defense == "iso" else 20) for r in rows]
    assert named(budgets, known_rows=2) == {"own encoder"}


def test_attacks_with_the_same_budget_share_one_name() -> None:
    rows = [
        record(s, 0.9, known_rows=20, attack=a, attack_key=a, controls=both(0.6, cv, 0.7, 0.7))
        for a, cv in (("direction", 0.9), ("norm", 0.6))
        for s in range(3)
    ]
    assert {p.named for p in points_of(rows)} == {"own columns"}


def test_chance_stands_in_where_there_is_no_control() -> None:
    (row,) = complete_rows([record(0, 0.9, controls={})])
    assert (row.control, row.advantage) == ("chance", pytest.approx(0.4))
    f1 = {"metric": "f1", "chance": 0.46, "controls": {"logistic": {"value": 0.2, "cv": 0.8}}}
    (row,) = complete_rows([record(0, 0.5, **f1)])
    assert (row.control, row.advantage) == ("chance", pytest.approx(0.04))
    (row,) = complete_rows([record(0, 0.3, metric="relative_error", chance=None)])
    assert (row.control, row.advantage) == ("majority", pytest.approx(0.2))  # a smaller error


def test_an_accuracy_of_the_majoritys_is_no_leak() -> None:
    """Adult: 0.765 against logistic 0.654 was called +0.111; the majority has 0.764."""
    beside = {"logistic": {"value": 0.654, "cv": 0.8}, "majority": {"value": 0.764, "cv": 0.5}}
    rows = complete_rows(
        record(s, 0.765, metric="accuracy", chance=0.76, controls=beside, attack="spectral")
        for s in range(5)
    )
    assert [r.advantage for r in rows] == pytest.approx([0.001] * 5)
    assert {r.control for r in rows} == {"majority"}


def test_an_error_never_becomes_a_number() -> None:
    rows = complete_rows(
        [record(0, 0.9), record(1, 0.7), record(2, 0.123, status="error", reason="diverged")]
    )
    assert (rows[2].value, rows[2].advantage, rows[2].controls) == (None, None, {})
    point = summarise(rows)[0]
    assert (point.seeds, point.failed, point.reason) == (2, 1, "diverged")
    assert point.value.mean == pytest.approx(0.8)


def test_one_seed_has_a_value_and_no_interval() -> None:
    point = points_of([record(0, 0.9)])[0]
    assert point.value.mean == 0.9
    assert (point.value.sd, point.value.low, point.value.high) == (None, None, None)
    assert point.advantage.lower is None


def test_a_reversed_ranking_is_no_protection_in_cap_and_dcs() -> None:
    rows = []
    for s in range(3):
        rows += [record(s, 0.9), task(s, 0.8)]
        rows += [record(s, 0.04, defense="coae", strength=1.0),
                 task(s, 0.8, defense="coae", strength=1.0)]  # fmt: skip
    found = build_curves(points_of(rows))
    (coae,) = [c for c in found if c.defense == "coae"]
    assert coae.values == pytest.approx([0.04])
    assert coae.cap == pytest.approx(0.8 * 0.04)  # was 0.8 * 0.96
    assert coae.dcs == pytest.approx([dcs(0.96, 0.8, 0.8)])  # was nearly 1
    many = [replace(r, metric="accuracy", chance=0.25) for r in rows]
    found = build_curves(points_of(many))
    (coae,) = [c for c in found if c.defense == "coae"]
    assert coae.cap == pytest.approx(0.8 * 0.96)


@pytest.mark.parametrize(("metric", "chance"), [("accuracy", 0.25), ("auc", 0.5)])
def test_curve_reproduces_table_xi_to_table_xii(metric: str, chance: float) -> None:
    attack, main = (0.466, 0.448, 0.419), (0.658, 0.631, 0.598)
    if metric == "auc":  # of a binary AUC the better of it and its reverse counts
        attack = (0.566, 0.548, 0.519)
    rows = []
    for s, shift in enumerate((-0.01, 0.0, 0.01)):
        for k, a, u in zip((25.0, 1.0, 5.0), attack[2:] + attack[:2], main[2:] + main[:2]):
            rows += [
                record(s, a + shift, defense="iso", strength=k, metric=metric, chance=chance),
                task(s, u + shift, defense="iso", strength=k, metric=metric, chance=chance),
            ]
        rows += [record(s, 0.9, metric=metric, chance=chance), task(s, 0.7, metric=metric)]
    found = build_curves(points_of(rows))
    (iso,) = [c for c in found if c.defense == "iso"]
    assert iso.strengths == (1, 5, 25)
    assert iso.cap == pytest.approx(cap(main, attack))
    assert iso.cap == pytest.approx(0.349 if metric == "accuracy" else 0.286, abs=1e-3)
    assert iso.metric == metric
    assert iso.undefended_value == pytest.approx(0.9)
    assert iso.undefended_utility == pytest.approx(0.7)
    assert iso.dcs == pytest.approx([dcs(a, u, 0.7) for a, u in zip(attack, main, strict=True)])
    (bare,) = [c for c in found if c.defense == "none"]
    assert bare.cap == pytest.approx(0.7 * 0.1)


def test_cap_leaves_strength_zero_out_unless_asked_and_is_missing_rather_than_wrong() -> None:
    rows = []
    for k, a, u in ((0.0, 1.0, 0.9), (1.0, 0.5, 0.8)):
        rows += [
            record(0, a, defense="iso", strength=k),
            task(0, u, defense="iso", strength=k),
        ]
    summary = points_of(rows)
    (curve,) = build_curves(summary)
    assert curve.cap == pytest.approx(0.4)
    assert curve.cap_strengths == (1.0,)
    no_task = points_of([r for r in rows if r.attack])
    assert [(c.cap, c.dcs) for c in build_curves(no_task)] == [(None, (None, None))]
    assert curve.dcs == pytest.approx([dcs(1, 0.9, 0.9), dcs(0.5, 0.8, 0.9)])


def test_a_finished_cell_becomes_rows() -> None:
    cell = CellSpec(
        {"name": "toy"}, "splitnn", defenses=(DefenseSpec("iso", strength=2.0),), seed=3
    )
    measure = Measure("train", "test", "auc", math.nan, attack="norm", attack_key="k", chance=0.5)
    result = CellResult(cell.key, cell, [measure])
    (row,) = list_rows(result)
    assert (row.value, row.chance) == (None, 0.5)  # no figure is no number
    assert (row.training, row.seed) == (Training("toy", "splitnn", "iso", 2.0), 3)
    assert (row.known_rows, row.of_label) == (None, "")
    at = Training("named", "so")
    (row,) = list_rows(result, at, known_rows={"k": 20}, of_label={"k": "largest tenth"})
    assert (row.training, row.known_rows, row.of_label) == (at, 20, "largest tenth")


def test_nothing_gives_nothing() -> None:
    assert len(results_table(complete_rows([]))) == 0
    assert len(build_curves(points_of([]))) == 0


def test_no_party_is_called_like_a_defense_that_is_off() -> None:
    """A party ``x(strength=0)`` made what is defended the undefended reference of all verdicts."""
    stack = (
        DefenseSpec("iso", strength=0.0),
        DefenseSpec("noise", {"clip": 1.0}, party="x(strength=0)", strength=5.0),
    )
    label, swept = defense_point(stack)
    assert label == 'iso + noise(clip=1.0, party="x(strength=0)", strength=5.0)'
    assert not Training("", "", label, swept).is_undefended
    off = (stack[0], DefenseSpec("noise", party="x(strength=0)", strength=0.0))
    assert Training("", "", *defense_point(off)).is_undefended


@pytest.mark.parametrize("party", ["a)", "(a", "a(b", 'q"', "it's", "back\\", 'a"(', "p,q=1"])
def test_a_stack_is_known_by_its_names_whatever_parties_are_called(party: str) -> None:
    """Brackets that do not match took the second defense into the settings of the first."""
    label, _ = defense_point(
        (
            DefenseSpec("iso", party=party, strength=1.0),
            DefenseSpec("noise", {"clip": 1.0}, party=party, strength=2.0),
        )
    )
    assert is_stack_named(label, "iso + noise")
    assert is_stack_named(label, "iso")  # the swept one
    assert not is_stack_named(label, "noise")
