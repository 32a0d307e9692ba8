"""Estimates: their arithmetic with a made-up machine, and the dry_run."""

from __future__ import annotations

import math
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_fakes import SCENARIO, source

import vflsec
from vflsec.core.phase import expect_epochs
from vflsec.data.prepare import make_task
from vflsec.engine import dry_run
from vflsec.engine.dry_run import make_plan
from vflsec.plan.estimate import Machine, Tried, estimate
from vflsec.plan.values import Plan
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec
from vflsec.train.cohort import first_step

FREE = Machine(1.0, 0.0, start=0, attack=0, per_row=0, controls=0, control_row=0, cell_row=0)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """6 audited cells of 15 or so epochs and 3 references, of a table of 100 rows."""
    return make_plan(vflsec.load_scenario(tomllib.loads(SCENARIO)), try_out=False, load=source)


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks that take no time."""
    for name in ("model_completion", "norm"):
        monkeypatch.setattr(registry.attacks.get(name), "seconds", 0.0)


def test_a_step_has_a_part_that_does_not_grow() -> None:
    fake = Machine(slowness=2.0, call=0.01)
    assert fake.step(0.1, 2) == pytest.approx(0.1)
    assert fake.step(0.1, 10) == pytest.approx(0.02 + 0.08 * 5)
    assert fake.step(0.01, 10) == pytest.approx(0.008 + 0.002 * 5)  # most of a tiny one is calls


def test_trainings_cost_their_own_steps(plan: Plan, instant: None) -> None:
    """As an algorithm of several passes has them, whose epochs no setting sums up."""
    cohort = plan.groups[0].cells[0].cohort
    both = estimate(plan.groups, {cohort: Tried([(100, 0.02), (7, 0.5)])}, FREE)
    rest = estimate(plan.groups[1:], {}, FREE)
    assert len(plan.groups[0].cells) == 6
    expected = 3 * (100 * 0.02 + 7 * 0.5) + rest.training_seconds
    assert both.training_seconds == pytest.approx(expected, abs=0.11)
    assert both.seconds == pytest.approx(expected, abs=0.2)


def test_attacks_controls_and_rows_count(
    plan: Plan, instant: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(**costs: float) -> float:
        made = estimate(plan.groups, {}, replace(FREE, slowness=2.0, call=1.5e-3, **costs))
        return made.seconds - made.training_seconds

    answers = 24 + 6  # 6 cells, 2 x 2 attackers; completion on the untrained bottoms of 3 seeds
    assert seconds(attack=10.0) == pytest.approx(2 * 10 * answers, abs=0.2)
    assert seconds(per_row=0.1) == pytest.approx(2 * 0.1 * 100 * answers, abs=0.2)
    assert seconds(start=7.0) == pytest.approx(14, abs=0.2)
    assert seconds(cell_row=0.1) == pytest.approx(2 * 0.1 * 100 * 9, abs=0.2)
    budgets = seconds(controls=1.0) / 2
    assert budgets == pytest.approx(3 * 2 * 1, abs=0.2)  # seeds, adversaries, budgets
    assert seconds(control_row=1.0) == pytest.approx(2 * budgets * 100, abs=0.5)
    monkeypatch.setattr(registry.attacks.get("norm"), "seconds", 3.0)
    assert seconds() == pytest.approx(2 * 3 * 12, abs=0.2)  # 6 cells, 2 attackers


def test_what_the_plan_took_is_part_of_it(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit reads the tables and takes its first steps too."""
    clock = iter([100.0, 107.5])
    monkeypatch.setattr(dry_run, "time", SimpleNamespace(process_time=lambda: next(clock)))
    scenario = vflsec.load_scenario(tomllib.loads(SCENARIO))
    timed = make_plan(scenario, try_out=False, load=source).cost.seconds
    assert timed == pytest.approx(estimate(plan.groups).seconds + 7.5, abs=0.11)


def test_attacks_cost_after_every_phase_and_more_for_more_classes(plan: Plan) -> None:
    cohort = plan.groups[0].cells[0].cohort

    def seconds(looks: int, classes: int) -> float:
        groups = [replace(g, data=replace(g.data, classes=classes)) for g in plan.groups[:1]]
        return estimate(groups, {cohort: Tried([(1, 0.0)], looks)}, FREE).seconds

    norm = 12 * registry.attacks.get("norm").seconds
    whole = seconds(3, 2) - seconds(1, 2)
    completion = 12 * registry.attacks.get("model_completion").seconds
    assert whole == pytest.approx(2 * (norm + completion), abs=0.2)
    assert seconds(1, 8) == pytest.approx(2 * seconds(1, 2), abs=0.2)


def test_memory_grows_with_rows_and_is_bounded_in_cells(plan: Plan) -> None:
    def memory(rows: int, copies: int) -> int:
        groups = [
            replace(g, data=replace(g.data, rows=rows), cells=g.cells * copies) for g in plan.groups
        ]
        return estimate(groups).memory_bytes

    assert memory(150_000, 1) > 1.2 * memory(100, 1)
    assert memory(150_000, 100) == memory(150_000, 10)  # at most 32 are trained at once


def test_answers_on_columns_take_memory_by_the_rows_that_are_guessed(plan: Plan) -> None:
    """A width of 300 numbers: 2.4 kB for each row that is guessed and each answer at hand, and for
    each row of the tables of three seeds.
    """

    def memory(width: int, sample: int = 0, name: str = "embedding_inversion") -> int:
        attack = replace(plan.groups[0].attacks[0], name=name, params=(), sample=sample)
        data = [replace(plan.groups[0].data, rows=100_000, width=w) for w in (width, 0)]
        wide, none = (replace(plan.groups[0], data=of, attacks=(attack,)) for of in data)
        return estimate([wide]).memory_bytes - estimate([none]).memory_bytes

    tables = memory(300, name="norm")
    assert tables == 3 * 100_000 * 300 * 8
    assert memory(300) - tables == pytest.approx(26 * 70_000 * 300 * 8, abs=2)
    assert memory(300, 7_000) - tables == pytest.approx((memory(300) - tables) / 10, abs=2)


def test_memory_is_that_of_what_attacks_are_given(plan: Plan) -> None:
    """Of 10^6 rows, four trainings: 1.2 GB for tables, and what is recorded of messages."""
    group = plan.groups[0]
    cells, data = (group.cells * 4)[:4], replace(group.data, rows=10**6, labelled=600_000)

    def memory(name: str, of: str = "splitnn", who: str = "passive", **more: Any) -> float:
        asked, run = (
            (AttackSpec(name, {}, (who,), **more),),
            [replace(c, algorithm=of, params={}) for c in cells],
        )
        return estimate([replace(group, cells=run, data=data, attacks=asked)]).memory_bytes

    none = memory("output")  # a passive party gets no prediction
    some = memory("norm", sample=20_000, sees_sample=True)
    assert none < some < memory("norm") / 1.1
    every = memory("dictionary")
    assert every > 2 * memory("norm")
    assert memory("dictionary", sample=20_000, sees_sample=True) == every
    assert memory("glm_gradient", "vertical_glm", "coordinator") == none  # messages about no row
    trees = memory("leaf_vote", "secureboost") - none  # nodes of all rows of every tree
    assert trees > 0.5 * none
    some = memory("leaf_vote", "secureboost", sample=20_000, sees_sample=True) - none
    assert some == pytest.approx(trees / 30, abs=2)


def test_a_machine_is_as_slow_as_its_fastest_of_three_tries() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        until = time.process_time() + 0.04
        while time.process_time() < until:
            pass

    found = dry_run.calibrate(work)
    assert found.slowness == pytest.approx(0.04 / dry_run._REFERENCE, rel=0.5)
    assert len(calls) == 3
    assert dry_run.calibrate(lambda: None).slowness == 0.01


@pytest.mark.parametrize(
    ("epochs", "patience", "batches", "expected"),
    [
        (100, 0, 10, 100),  # nothing ends it
        (0, 10, 10, 0),
        (100, 10, 10, 55),  # 3 x patience and 250 steps
        (100, 30, 10, 75),  # three quarters at most
        (12, 10, 1000, 11),  # not before its patience
        (8, 10, 1000, 8),
    ],
)
def test_training_that_may_stop_does(
    epochs: int, patience: int, batches: int, expected: float
) -> None:
    assert expect_epochs(epochs, patience, batches) == expected


def test_a_pass_without_patience_is_taken_whole() -> None:
    """Forty steps of pre-training, beside training that stops."""
    params = {"batch_size": 16, "epochs": 100, "patience": 5, "pretrain_iterations": 40}
    small = {"hidden": [4], "cut": 4, "projector_hidden": 4, "projector_out": 4,
             "predictor_hidden": 4, "pretrain_batch_size": 32}  # fmt: skip
    task = make_task(source({"name": "small"}, 0, Path()), 0)
    timed: list[tuple[float, float]] = []
    first_step(CellSpec({"name": "small"}, "fedcssl", params | small), task, timed)
    batches = math.ceil(len(task.sets["labelled"]) / 16)
    pretraining = math.ceil(len(task.sets["aligned"]) / 32)
    assert [n for n, _ in timed] == [
        40 * pretraining, expect_epochs(100, 5, batches) * batches
    ]  # fmt: skip
