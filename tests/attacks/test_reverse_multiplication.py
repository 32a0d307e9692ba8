"""The coordinator and a party read columns of others: known answers, the null, masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled

from vflsec.algorithms.vertical_glm import COORDINATOR
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing import small_task, train
from vflsec.train.cohort import Training
from vflsec.train.views import make_view

KINDS = ("derivative", "model_gradient", "ids")


def look(
    task: Task, *who: str, masked: tuple[str, ...] = (), r: int = 0, **params: Any
) -> tuple[View, Any]:
    """What a coalition has, with the masks of some parties on in replica 1; and of a training."""
    algorithm = registry.algorithms.create("vertical_glm", params)
    on = torch.tensor([0.0, 1.0], dtype=torch.float64)
    masks = {p: [(registry.defenses.create("masked_gradient"), on)] for p in masked}
    wanted = [(p, "received", kind, "all") for p in who for kind in KINDS]
    made = train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], masks, wanted=wanted)
    return make_view(
        algorithm, made.fed, {}, AttackSpec("reverse_multiplication", adversary=who), r
    ), made


def errors(view: View, task: Task, *victims: str) -> np.ndarray:
    """The error of each row's columns, root mean square, rows in order."""
    guess = registry.attacks.create("reverse_multiplication").infer(view, torch.Generator())
    x = torch.cat([task.x[p].double() for p in victims], dim=1)[torch.from_numpy(guess.rows)]
    return (torch.as_tensor(guess.scores) - x).square().mean(1).sqrt().numpy()


@pytest.mark.parametrize(("batch", "epochs"), sampled([(2, 6), (1, 1), (4, 12)]))
@pytest.mark.parametrize("friend", ["passive1", "active"])
def test_small_batches_give_every_column_of_every_row(batch: int, epochs: int, friend: str) -> None:
    task = small_task(0, n=200)
    view, _ = look(task, COORDINATOR, friend, batch_size=batch, epochs=epochs)
    victim = "active" if friend == "passive1" else "passive1"
    assert errors(view, task, victim).max() < 1e-4


def test_all_others_are_read_side_by_side() -> None:
    task = small_task(0, n=200, widths=(3, 4, 2))
    view, _ = look(task, COORDINATOR, "passive1", batch_size=2, epochs=6)
    assert errors(view, task, "active", "passive2").max() < 1e-4


def test_more_rows_than_epochs_are_not_read() -> None:
    """The guess is the projection on what d spans, whose error is below that of guessing 0."""
    task = small_task(0, n=200)
    view, _ = look(task, COORDINATOR, "passive1", batch_size=40, epochs=2)
    found = errors(view, task, "active")
    assert 0.5 < np.sqrt((found**2).mean()) < 1.0


def test_against_the_columns_of_other_rows_it_is_no_better_than_those() -> None:
    """The null: rows permuted, an exact guess errs by the square root of 2 standard deviations."""
    task = small_task(0, n=200)
    view, _ = look(task, COORDINATOR, "passive1", batch_size=1, epochs=1)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    other = replace(task, x={p: x[order] for p, x in task.x.items()})
    assert np.sqrt((errors(view, other, "active") ** 2).mean()) == pytest.approx(2**0.5, abs=0.15)


def test_neither_reads_it_alone() -> None:
    task = small_task(0, n=200)
    for who in (COORDINATOR, "passive1"):
        view, _ = look(task, who, batch_size=1, epochs=1)
        assert ("received", "derivative", "all", who) not in view.tables
    server, _ = look(task, COORDINATOR, batch_size=1, epochs=1)
    assert {key[1] for key in server.tables} == {"model_gradient"}
    assert not server.holders


@pytest.mark.slow
@pytest.mark.parametrize("masked", sampled([(("active", "passive1"),), (("active",),)]))
def test_masks_leave_the_coordinator_nothing_to_read(masked: tuple[str, ...]) -> None:
    """They stop this, and not the key: labels are read from d as ever."""
    task, settings = small_task(0, n=80), {"batch_size": 2, "epochs": 6}
    attack = registry.attacks.create("reverse_multiplication")
    for r in (0, 1):
        view, _ = look(task, COORDINATOR, "passive1", masked=masked, r=r, **settings)
        assert bool(attack.declines(view)) == (r == 1)
    other, _ = look(task, COORDINATOR, "passive1", masked=("passive1",), r=1, **settings)
    assert errors(other, task, "active").max() < 1e-4  # its own mask hides nothing of the others
    guess = registry.attacks.create("glm_gradient").infer(view, torch.Generator())
    y = task.y[torch.from_numpy(guess.rows)].numpy()
    assert ((guess.scores > 0) == (y == 1)).mean() > 0.99
    lone, _ = look(task, COORDINATOR, masked=masked, r=1, coordinator_knows="rows", **settings)
    got = lone.tables["received", "model_gradient", "all", COORDINATOR]
    assert bool(len(got)) == (masked == ("active",))  # of the other party, which it cannot read
    assert registry.attacks.create("glm_gradient").declines(lone)


def test_a_mask_that_a_scenario_names_is_on() -> None:
    """Of a defense without strengths, in a training as an audit makes it."""
    cell = CellSpec(
        {"name": "small"}, "vertical_glm", {"epochs": 1}, (DefenseSpec("masked_gradient"),)
    )
    training = Training([cell], (), {0: small_task(0, n=80)}, torch.device("cpu"))
    for _ in training.run(predictions=False):
        pass
    sent = {(row.kind, row.receiver) for row in training.ledger(0)}
    assert ("masked_sum", COORDINATOR) in sent
    assert ("model_gradient", COORDINATOR) not in sent
