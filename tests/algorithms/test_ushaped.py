"""The U-shaped split: the training of FedSplitNN with the hidden layers at the other party."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import federation, flatten, models, tapped
from sampled import sampled
from torch import nn
from worlds import stack

from vflsec.algorithms.splitnn import SplitNN
from vflsec.algorithms.ushaped import UShaped
from vflsec.audit.metrics import score
from vflsec.core.federation import Federation
from vflsec.core.guess import Guess, Truth
from vflsec.core.rng import generator
from vflsec.core.task import Stack, Task
from vflsec.core.view import View, as_needs
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ConfigError, PolicyError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec
from vflsec.testing import small_task
from vflsec.testing.worlds import small_stack, train
from vflsec.train.loop import predict
from vflsec.train.views import make_view

SMALL: dict[str, Any] = {"hidden": (7,), "cut": 3, "top": (12, 9), "batch_size": 16, "lr": 1e-2}


def moved(split: Federation, ushaped: Federation) -> None:
    """Put the weights of a FedSplitNN federation where the U-shaped one has them."""
    every = torch.ones(1, dtype=torch.bool)
    weights = split.state()
    top = weights["active"].pop("top")
    last = max(top)[0]
    ends = {k: v for k, v in top.items() if k[0] == last}
    weights["active"]["top"] = {f"0{k[1:]}": v for k, v in ends.items()}
    weights["passive1"]["middle"] = {k: v for k, v in top.items() if k not in ends}
    ushaped.load(weights, every)


@pytest.mark.parametrize("aggregation", ["concat", "sum", "mean"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_same_weights_train_as_in_splitnn(aggregation: str, optimizer: str) -> None:
    """Twelve steps in float64: one network, whoever holds which layer of it."""
    settings = {**SMALL, "aggregation": aggregation, "optimizer": optimizer}
    stacked = stack([0], classes=3)
    split, bent = (federation(a(**settings), stacked) for a in (SplitNN, UShaped))
    moved(split, bent)
    before = flatten(bent.state())
    rows = stacked.rows("labelled")
    for k in range(12):
        batch = rows[:, torch.randperm(rows.shape[1], generator=generator(k, "t"))[:16]]
        SplitNN(**settings).step(split, batch)
        with tapped(bent) as passed:
            UShaped(**settings).step(bent, batch)
        kinds = [(m.kind, m.sender) for m, _ in passed]
        assert kinds == [
            ("ids", "active"), ("embedding", "active"), ("embedding", "passive1"),
            ("gradient", "active"), ("gradient", "passive1"),
        ]  # fmt: skip
    after, mine = flatten(bent.state()), federation(UShaped(**settings), stacked)
    moved(split, mine)
    for name, value in flatten(mine.state()).items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-11)
        assert float((value - before[name]).abs().max()) > 1e-4
    test = stacked.rows("test")
    a, b = predict(SplitNN(**settings), split, test), predict(UShaped(**settings), bent, test)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_what_the_middle_gets_is_the_gradient_of_one_linear_layer() -> None:
    stacked = stack([0], classes=4)
    algorithm = UShaped(**SMALL)
    fed = federation(algorithm, stacked)
    head = models(fed, "active")["top"]
    rows = stacked.rows("labelled")[:, :16]
    with tapped(fed) as passed:
        algorithm.step(fed, rows)
    sent = {(m.kind, m.sender): d[0] for m, d in passed}
    u = sent["embedding", "passive1"].clone().requires_grad_()
    loss = nn.functional.cross_entropy(head(u), stacked.first.y[rows[0]])
    (expected,) = torch.autograd.grad(loss, u)
    torch.testing.assert_close(sent["gradient", "active"], expected, rtol=0, atol=1e-14)
    assert sent["gradient", "passive1"].shape == sent["embedding", "active"].shape == (16, 3)


def test_ledger_is_exact() -> None:
    """Four data tensors a step: b x d_a numbers twice and b x w numbers twice."""
    stacked = stack([0])
    algorithm = UShaped(**SMALL)
    fed = federation(algorithm, stacked)
    for step in range(5):
        fed.steps = step
        algorithm.step(fed, stacked.rows("labelled")[:, :16])
    found = {
        (r["kind"], r["sender"], r["receiver"]): (r["messages"], r["elements"], r["bytes"])
        for r in fed.channel.ledger.of(0)
    }
    wide, narrow = (5, 5 * 16 * 9, 5 * 16 * 9 * 8), (5, 5 * 16 * 3, 5 * 16 * 3 * 8)
    assert found == {
        ("ids", "active", "passive1"): (5, 5 * 16, 5 * 16 * 8),
        ("embedding", "active", "passive1"): narrow,
        ("embedding", "passive1", "active"): wide,
        ("gradient", "active", "passive1"): wide,
        ("gradient", "passive1", "active"): narrow,
    }


def attacked(stacked: Stack, known: int) -> list[tuple[Guess, View, Task]]:
    """The attack by the party in the middle, on a U-shaped training in each world."""
    middle = stacked.first.passive[0]
    attack = registry.attacks.create("unsplit")
    wanted = [
        (middle, "sent" if need.sent else "received", need.kind, need.form)
        for need in as_needs(attack.needs) if need.kind
    ]  # fmt: skip
    settings = {"epochs": 12, "hidden": (16,), "cut": 6, "top": (12, 10), "batch_size": 64}
    made = train(UShaped(**settings), stacked, [0, 1], wanted=wanted)
    spec = AttackSpec("unsplit", adversary=(middle,), known_rows=known)
    views = [make_view(made.algorithm, made.fed, made.initial, spec, r) for r in (0, 1)]
    guesses = attack.infer_many(views, [generator(0, "a")] * 2)
    return list(zip(guesses, views, stacked.tasks, strict=True))


def figure(guess: Guess, view: View, task: Task, metric: str) -> float:
    truth = Truth("label", torch.arange(len(task.y)).numpy(), task.y)
    (found,) = score(
        guess, truth, view.targets["train"].numpy(), classes=task.classes,
        prior=task.prior.numpy(), metrics=[metric],
    )  # fmt: skip
    return float(found.value or 0.0)


@pytest.mark.parametrize("classes", sampled([2, 4]))
def test_unsplit_reads_every_label_whatever_the_middle_is(classes: int) -> None:
    """Two hidden layers in the middle: its own, so the clone has one linear layer to copy."""
    stacked = small_stack([0, 1], torch.float32, n=600, classes=classes)
    for guess, view, task in attacked(stacked, 5 * classes):
        assert view.received("gradient", "first").tensor.shape[1] == 10
        assert figure(guess, view, task, "accuracy") > 0.98


@pytest.mark.slow
def test_unsplit_is_calm_where_nothing_about_the_truth_crosses() -> None:
    made = registry.datasets.create("sealed")
    tasks = {s: make_task(made.load(s), s, shuffle_labels=True) for s in (0, 1)}
    found = attacked(Stack.build(tasks, [0, 1]), 10)
    n = len(tasks[0].sets["labelled"])
    p = float(tasks[0].prior[1]) * n
    error = ((n + 1) / (12 * p * (n - p)) / 2) ** 0.5
    mean = sum(figure(*f, "auc") for f in found) / 2
    assert abs(mean - 0.5) < 4 * error < 0.1


def test_settings_and_parties_it_cannot_use_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"passive parties must be one.*passive1, passive2"):
        federation(UShaped(), stack([0], widths=(3, 3, 3)))
    with pytest.raises(ConfigError, match=r"must be one for all parties, got \[32, 5\]"):
        federation(UShaped(aggregation="sum", parties={"passive1": {"cut": 5}}), stack([0]))


def test_a_defense_that_it_cannot_carry_fails_closed() -> None:
    one = torch.ones(1, dtype=torch.float64)
    dpsgd = registry.defenses.create("dpsgd", {})
    fed = federation(UShaped(**SMALL), stack([0]), policies={"passive1": [(dpsgd, one)]})
    with pytest.raises(PolicyError, match="dpsgd"):
        UShaped(**SMALL).step(fed, stack([0]).rows("labelled")[:, :16])


@pytest.mark.slow
def test_an_audit_of_it() -> None:
    """Gradient attacks see the labels; the attack on the sum is refused; columns leak forwards."""
    tasks = {s: small_task(s, n=400) for s in (0, 1)}
    settings = {"epochs": 8, "hidden": [16], "cut": 12, "top": [8], "lr": 0.01}
    cells = [CellSpec({"name": "s"}, "ushaped", settings, seed=s) for s in tasks]
    attacks = [
        AttackSpec("unsplit", adversary=("passive1",)),
        AttackSpec("direction", adversary=("passive1",)),
        AttackSpec("model_completion", adversary=("passive1",)),
        AttackSpec("direct", adversary=("passive1",)),
        AttackSpec(
            "embedding_inversion", {"variants": ("linear",)}, ("passive1",), aux_rows=60,
            victim="active",
        ),
    ]  # fmt: skip
    for result in run_cohort(cells, attacks, tasks, device="cpu"):
        found = {(m.attack, m.split, m.metric): m for m in result.measures}
        assert (found["unsplit", "train", "auc"].value or 0) > 0.97
        assert (found["direction", "train", "auc"].value or 0) > 0.97
        assert found["model_completion", "test", "auc"].status == "ok"
        assert found["direct", "", ""].status == "not-applicable"
        inverted = found["embedding_inversion(variants=('linear',))", "train", "r2"]
        assert inverted.victim == "active"
        without = max(c["value"] or 0 for c in inverted.controls.values())
        assert without < 0.1 < 0.3 < (inverted.value or 0)
        assert (found["", "test", "auc"].value or 0) > 0.8
