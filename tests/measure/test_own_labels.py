"""The label party has its labels: what they tell of another party's columns is no leak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import feature_view, rng
from sampled import sampled

from vflsec.core.task import Task
from vflsec.core.view import Facts, View
from vflsec.engine.cohort import run_cohort
from vflsec.label import MultiLabel, Quantity
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, Measure
from vflsec.testing import small_task
from vflsec.train.views import assemble

PARTY = "passive1"


def copied(seed: int, kind: str = "classes") -> Task:
    """The victim's first column is the label, and no own column tells it."""
    task = small_task(seed, n=600, signal=0.0, positive_rate=0.3)
    g = rng(seed + 10)
    task.y.copy_((torch.rand(600, generator=g) < 0.3).long())
    task.x[PARTY][:, 0] = 2.0 * task.y - 1
    if kind == "classes":
        return task
    value = torch.randn(600, generator=g, dtype=torch.float64)
    more = torch.stack([task.y.double(), (value > 0).double()], 1)
    task.x[PARTY][:, 0] = value.float()
    if kind == "value":
        return replace(task, label=Quantity(), values=value, y=torch.zeros_like(task.y))
    return replace(task, label=MultiLabel(("a", "b")), values=more, y=torch.zeros_like(task.y))


def measured(tasks: dict[int, Task], name: str, **params: Any) -> list[Measure]:
    cells = [CellSpec({"name": "s"}, "splitnn", {"epochs": 3, "cut": 8}, seed=s) for s in tasks]
    spec = AttackSpec(name, params, ("active",), aux_rows=60)
    found = run_cohort(cells, [spec], tasks, device="cpu", main=False)
    return [m for of in found for m in of.measures]


def gain(measures: list[Measure], metric: str) -> list[float]:
    """What the attack adds to the best control, on each seed."""
    sign = -1 if metric == "share_error" else 1
    return [
        min(sign * (m.value - float(c["value"])) for c in m.controls.values())  # type: ignore
        for m in measures
        if m.metric == metric
    ]


def error(measures: list[Measure], control: str) -> float:
    return float(np.mean([float(m.controls[control]["value"] or 0.0) for m in measures]))


@pytest.mark.parametrize("kind", sampled(["classes", "value", "several"]))
def test_a_column_that_is_the_label_is_not_told_to_the_label_party(kind: str) -> None:
    """Without own labels among the controls the advantage was 0.5 of AUC."""
    found = measured({s: copied(s, kind) for s in range(2)}, "attribute", column=f"{PARTY}0")
    (values, gains) = ([m.value for m in found if m.metric == "auc"], gain(found, "auc"))
    assert len(gains) == 2
    assert min(v or 0.0 for v in values) > 0.95
    assert max(gains) < 0.01


def test_nor_is_its_share() -> None:
    """The share among 60 rows errs by 0.06, the estimate from all own labels by 0.01."""
    found = measured({s: copied(s) for s in range(8)}, "property", column=f"{PARTY}0")
    assert {name for m in found for name in m.controls} == {
        "sample", "logistic", "labelled, logistic"
    }  # fmt: skip
    assert error(found, "labelled, logistic") < 0.4 * error(found, "sample")
    assert np.mean(gain(found, "share_error")) < 0.002


def test_nor_its_numbers() -> None:
    """One column of 6; the others' come from embeddings, and are leaks as before."""
    (task,) = (copied(0),)
    for k in range(1, 6):
        task.x[PARTY][:, k] = task.x[PARTY][:, 0]
    found = measured({0: task}, "embedding_inversion")
    assert max(gain(found, "r2")) < 0.02
    told = measured({0: small_task(0, n=600, positive_rate=0.3)}, "embedding_inversion")
    assert min(gain(told, "r2")) > 0.3


def test_an_own_column_that_tells_the_attribute_tells_its_share() -> None:
    """The share among auxiliary rows was the only control: own columns alone estimate it."""
    tasks = {}
    for s in range(8):
        task = small_task(s, n=600)
        task.x["active"][:, 0] = task.x[PARTY][:, 0] = (
            2.0 * (torch.rand(600, generator=rng(s)) < 0.3) - 1
        )
        tasks[s] = task
    found = measured(tasks, "property", column=f"{PARTY}0")
    assert error(found, "logistic") < 0.4 * error(found, "sample")
    assert np.mean(gain(found, "share_error")) < 0.002


def test_labels_are_read_beside_embeddings() -> None:
    """The column is the sum of the label and of what the embedding holds."""
    n, g = 900, rng(3)
    y, hidden = (torch.rand(n, generator=g) < 0.5).long(), torch.randn(n, 1, generator=g).double()
    x = hidden + 2.0 * y.unsqueeze(1)
    view = feature_view(torch.zeros(n, 1).double(), x, hidden.expand(-1, 3) + 0, aux=100)
    attack = registry.attacks.create("embedding_inversion", {"variants": ("linear",)})

    def off(of: View) -> float:
        guess = attack.infer(of, rng())
        return float(((torch.as_tensor(guess.scores) - x[100:]) ** 2).mean() / x.var())

    assert off(view) > 0.3
    assert off(replace(view, labels=y)) < 0.02


def test_the_view_of_who_guesses_labels_has_none() -> None:
    task = copied(0)
    facts = Facts("splitnn", "train", "active", task.parties, 2)

    def view(name: str, who: str, of: Task = task) -> View:
        spec = AttackSpec(name, {}, (who,), aux_rows=20)
        return assemble(of, 0, spec, torch.device("cpu"), torch.float32, tables={}, models={},
                        facts=replace(facts, classes=of.classes))  # fmt: skip

    assert view("norm", PARTY).labels is None
    assert view("attribute", PARTY).labels is None
    mine = view("attribute", "active")
    train, test = task.sets["labelled"], task.sets["test"]
    assert torch.equal(mine.own(train)[:, -2:].argmax(1), task.y[train])
    assert mine.own(test)[:, -2:].count_nonzero() == 0
    assert mine.require_labels()[test].unique().tolist() == [-1]
    seen = mine.for_attribute(f"{PARTY}0")
    assert torch.equal(seen.own(train), mine.own(train))
    several = copied(0, "several")
    assert torch.equal(
        view("attribute", "active", several).own(train)[:, -2:].double(),
        several.values[train],  # type: ignore[index]
    )
