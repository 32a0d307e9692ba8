"""Completion of a bottom that the federation trained on another task, as a control."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vflsec.core.source import Given
from vflsec.core.task import Task
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ConfigError, ThreatModelError
from vflsec.measure.attack import Bench
from vflsec.measure.prepared import prepare
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, Measure
from vflsec.testing import small_task
from vflsec.train.cohort import Training, reassigned_task
from vflsec.train.view_reader import find_insufficient

SPEC = AttackSpec(
    "model_completion", {"variants": ("logistic",), "reassigned": True}, ("passive1",)
)
TRAIN = {"epochs": 30, "hidden": (16,), "cut": 8, "patience": 0}


def measured(worlds: dict[int, Task], **params: Any) -> list[Measure]:
    cells = [CellSpec({"name": "s"}, "splitnn", {**TRAIN, **params}, seed=s) for s in worlds]
    found = run_cohort(cells, [SPEC], worlds, device="cpu", main=False)
    return [
        m for r in found for m in r.measures if m.metric == "auc" and m.split == "test"
    ]  # fmt: skip


def gaps(found: list[Measure]) -> list[float]:
    """What completion of the trained bottom reaches above that of the reassigned one."""
    return [float(m.value or 0) - float(m.controls["reassigned"]["value"] or 0) for m in found]


def wide(seed: int, **more: Any) -> Task:
    """20 columns of which 2 tell the label: twenty known rows cannot find them."""
    return small_task(seed, widths=(2, 20), **{"n": 1600, **more})


def test_labels_that_training_left_in_the_bottom_are_told_from_features() -> None:
    found = measured({s: wide(s) for s in (0, 1)})
    assert min(float(m.value or 0) for m in found) > 0.8
    assert min(gaps(found)) > 0.15


def test_null_labels_that_were_never_trained_on_leave_no_gap() -> None:
    """The task of the training is another one already: both bottoms know the same, nothing."""
    worlds = {s: reassigned_task(wide(s, n=800), 100 + s) for s in range(4)}
    found = gaps(measured(worlds, epochs=10))
    error = np.std(found, ddof=1) / 2
    assert abs(np.mean(found)) < 3.2 * error  # t of 3 degrees of freedom, two-sided 5 %
    assert max(map(abs, found)) < 0.2


def test_features_that_any_task_teaches_are_no_leak() -> None:
    """Two columns through one linear layer: no task can hide them."""
    worlds = {s: small_task(s, n=800, widths=(2, 2)) for s in (0, 1)}
    found = measured(worlds, hidden=())
    assert min(float(m.value or 0) for m in found) > 0.8
    assert max(map(abs, gaps(found))) < 0.05


def test_labels_are_dealt_out_anew_within_each_set() -> None:
    task = small_task(0, n=3000, classes=3, unaligned=20)
    other = reassigned_task(task, 0)
    assert other.given is not None
    assert torch.equal(task.y, other.y)
    for name in ("labelled", "validation", "test"):
        rows = task.sets[name]
        counts = [torch.bincount(of[rows], minlength=3) for of in (task.y, other.given)]
        assert torch.equal(*counts)
        share = counts[0].double() / len(rows)
        same = float((task.y[rows] == other.given[rows]).double().mean())
        assert same == pytest.approx(float(share.square().sum()), abs=4 / (2 * len(rows) ** 0.5))
    assert torch.equal(task.y < 0, other.given < 0)
    again = reassigned_task(task, 0).given
    assert again is not None
    assert torch.equal(other.given, again)
    moved = reassigned_task(task, 1).given
    assert moved is not None
    assert not torch.equal(other.given, moved)


def test_it_does_not_depend_on_company_and_changes_nothing_else() -> None:
    worlds = {s: small_task(s, n=240) for s in (0, 1)}
    plain = replace(SPEC, params={"variants": ("logistic",)})
    cell = CellSpec({"name": "s"}, "splitnn", {"epochs": 2}, seed=1)

    def one(spec: AttackSpec, seeds: tuple[int, ...]) -> Measure:
        cells = [replace(cell, seed=s) for s in seeds]
        result = run_cohort(cells, [spec], worlds, device="cpu", main=False)[-1]
        return next(m for m in result.measures if m.metric == "auc" and m.split == "test")

    both, lone, without = one(SPEC, (0, 1)), one(SPEC, (1,)), one(plain, (1,))
    assert both.controls["reassigned"] == lone.controls["reassigned"]
    assert both.value == without.value
    assert set(lone.controls) - set(without.controls) == {"reassigned"}


def test_where_nothing_can_be_trained_it_is_said() -> None:
    task = small_task(0, n=120)
    cell = CellSpec({"name": "s"}, "splitnn", {"epochs": 1}, seed=0)
    training = Training([cell] * 2, (), {0: task}, torch.device("cpu"))
    (asked,) = prepare([SPEC])
    for moment in training.run(predictions=False):
        views = moment.views(SPEC)
    ((answer, _),) = Bench().attack(asked, Given(views, [0, 0]))
    with pytest.raises(ThreatModelError, match="reassigned = false"):
        answer.controls()
    assert find_insufficient(SPEC, asked.attack, {}) == "it is compared with systems of its own"
    with pytest.raises(ConfigError, match="reassigned must be of type bool"):
        registry.attacks.create("model_completion", {"reassigned": "yes"})
