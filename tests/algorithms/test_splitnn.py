"""FedSplitNN against joint training, and what its messages are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from by_hand import (
    assert_follows,
    assert_same,
    federation,
    flatten,
    models,
    tapped,
    trained,
    without,
)
from sampled import sampled
from torch import Tensor, nn
from worlds import small_task, stack

from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.policy import Own, Policy
from vflsec.core.rng import generator
from vflsec.core.task import Stack
from vflsec.errors import ConfigError
from vflsec.train.loop import predict

WORLDS = {2: (4, 6), 3: (4, 6, 5)}
FUSIONS: list[dict[str, Any]] = [
    {"aggregation": "concat", "top": (5,)},
    {"aggregation": "concat", "top": ()},
    {"aggregation": "sum", "top": (5,)},
    {"aggregation": "mean", "top": ()},
    {"aggregation": "sum", "top": (), "linear_top": False},
    {"aggregation": "mean", "top": (), "linear_top": False},
]
SMALL: dict[str, Any] = {"hidden": (7,), "cut": 3, "batch_size": 16, "patience": 0}


def batches(stacked: Stack, count: int, size: int = 16) -> list[Tensor]:
    rows = stacked.rows("labelled")
    g = generator(7, "test batches")
    picks = [torch.randperm(rows.shape[1], generator=g)[:size] for _ in range(count)]
    return [rows[:, p] for p in picks]


class Joint:
    """End-to-end training of one network in plain torch: the reference."""

    def __init__(self, fed: Any, aggregation: str, optimizer: str = "adam") -> None:
        self.task = fed.stack.first
        self.aggregation = aggregation
        self.parts = {p: models(fed, p) for p in self.task.parties}
        kinds: dict[str, Any] = {
            "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        }
        self.optimizer = kinds[optimizer](
            [w for m in self.parts.values() for part in m.values() for w in part.parameters()]
        )

    def embeddings(self, rows: Tensor) -> dict[str, Tensor]:
        return {p: m["bottom"](self.task.x[p][rows].double()) for p, m in self.parts.items()}

    def logits(self, z: dict[str, Tensor]) -> Tensor:
        parts = list(z.values())
        if self.aggregation == "concat":
            fused = torch.cat(parts, dim=1)
        else:
            fused = sum(parts[1:], parts[0])
            fused = fused / len(parts) if self.aggregation == "mean" else fused
        top = self.parts[self.task.active].get("top", nn.Identity())
        return top(fused)

    def step(self, rows: Tensor) -> dict[str, Tensor]:
        """One step; returns dL/dz of every party."""
        z = self.embeddings(rows)
        for t in z.values():
            t.retain_grad()
        loss = nn.functional.cross_entropy(self.logits(z), self.task.y[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {p: t.grad for p, t in z.items() if t.grad is not None}


@pytest.mark.parametrize("optimizer", sampled(["adam", "sgd"]))
@pytest.mark.parametrize("fusion", FUSIONS, ids=lambda f: f"{f['aggregation']}-{len(f)}{f['top']}")
@pytest.mark.parametrize("k", sampled([3, 2]))
def test_split_training_is_joint_training(k: int, fusion: dict[str, Any], optimizer: str) -> None:
    """Twelve steps leave the same weights as one network trained end to end, in float64."""
    stacked = stack([0], widths=WORLDS[k], classes=3)
    algorithm = SplitNN(**SMALL, **fusion, lr=1e-2, optimizer=optimizer)
    fed = federation(algorithm, stacked)
    joint = Joint(fed, fusion["aggregation"], optimizer)
    before = flatten(fed.state())
    for rows in batches(stacked, 12):
        with tapped(fed) as passed:
            algorithm.step(fed, rows)
        expected = joint.step(rows[0])
        sent = {m.receiver: d[0] for m, d in passed if m.kind == "gradient"}
        assert set(sent) == set(stacked.first.passive)
        for party, gradient in sent.items():
            torch.testing.assert_close(gradient, expected[party], rtol=0, atol=1e-12)
    assert_follows(fed, joint.parts, 1e-10)
    moved = (v - before[name] for name, v in flatten(fed.state()).items())
    assert min(float(by.abs().max()) for by in moved) > 1e-4  # weights that were trained
    rows = stacked.rows("test")
    logits = predict(algorithm, fed, rows)[0]
    with torch.no_grad():
        torch.testing.assert_close(
            logits, joint.logits(joint.embeddings(rows[0])), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("k", [2, 3])
def test_ledger_is_exact(k: int) -> None:
    """2(K-1) data tensors a step of b x d numbers, and nothing else but ids."""
    stacked = stack([0], widths=WORLDS[k])
    algorithm = SplitNN(**SMALL)
    fed = federation(algorithm, stacked)
    for step, rows in enumerate(batches(stacked, 5, 16)):
        fed.steps = step
        algorithm.step(fed, rows)
    ledger = fed.channel.ledger.of(0)
    data = [row for row in ledger if row["kind"] in ("embedding", "gradient")]
    assert len(data) == 2 * (k - 1)
    assert {(r["kind"], r["sender"], r["receiver"]) for r in data} == {
        pair
        for p in stacked.first.passive
        for pair in (("embedding", p, "active"), ("gradient", "active", p))
    }
    for row in data:
        assert row["messages"] == row["rounds"] == 5
        assert row["elements"] == 5 * 16 * 3
        assert row["bytes"] == row["elements"] * 8
    rest = [row for row in ledger if row not in data]
    assert {(r["kind"], r["name"]) for r in rest} == {("ids", "batch")}
    assert all(row["elements"] == 5 * 16 for row in rest)


def test_ledger_of_a_run_counts_float32_and_control_messages() -> None:
    stacked = stack([0], torch.float32)
    fed = trained(SplitNN(hidden=(), cut=3, batch_size=50, epochs=4, patience=3), stacked)
    rows = {(r["phase"], r["kind"], r["name"]): r for r in fed.channel.ledger.of(0)}
    n, held = stacked.rows("labelled").shape[1], stacked.rows("validation").shape[1]
    epochs = fed.epochs["train"][0]
    assert rows["train", "gradient", ""]["bytes"] == epochs * n * 3 * 4
    assert rows["train", "embedding", ""]["elements"] == epochs * n * 3
    assert rows["predict", "embedding", ""]["elements"] == epochs * held * 3
    assert rows["train", "ids", "intersection"]["elements"] == stacked.rows("aligned").shape[1]
    assert rows["train", "ids", "batch"]["elements"] == epochs * n
    assert rows["train", "signal", "continue"]["messages"] == epochs
    assert set(rows) == {
        ("train", "gradient", ""), ("train", "embedding", ""), ("predict", "embedding", ""),
        ("train", "ids", "intersection"), ("train", "ids", "batch"),
        ("train", "signal", "continue"),
    }  # fmt: skip


def cut_gradient(classes: int) -> tuple[Tensor, Tensor]:
    """Gradient (b, d) and labels (b) of one message with a linear head."""
    stacked = stack([0], classes=classes)
    algorithm = SplitNN(hidden=(7,), cut=5, top=(), batch_size=48)
    fed = federation(algorithm, stacked)
    rows = batches(stacked, 1, 48)[0]
    with tapped(fed) as passed:
        algorithm.step(fed, rows)
    return passed[-1][0].tensor[0], stacked.first.y[rows[0]]


def test_linear_head_gives_the_label_away_by_direction() -> None:
    """Two classes: rank 1, cosine +1 within a class and -1 across."""
    g, y = cut_gradient(2)
    values = torch.linalg.svdvals(g)
    assert values[1] < 1e-12 * values[0]
    unit = g / g.norm(dim=1, keepdim=True)
    same = (y.unsqueeze(0) == y.unsqueeze(1)).double() * 2 - 1
    torch.testing.assert_close(unit @ unit.T, same, rtol=0, atol=1e-10)


def test_rank_is_at_most_classes_minus_one() -> None:
    g, _ = cut_gradient(4)
    values = torch.linalg.svdvals(g)
    assert values[2] > 1e-3 * values[0]
    assert values[3] < 1e-12 * values[0]


def test_rows_with_zero_gradient_do_not_move_the_bottom() -> None:
    """SGD without decay: all rows zero, nothing moves; some zero, the others alone count."""
    stacked = stack([0])
    algorithm = SplitNN(**SMALL, optimizer="sgd", lr=0.1)
    rows = batches(stacked, 1, 16)[0]
    after = []
    for case in ("zero", "half", "alone"):
        fed = federation(algorithm, stacked)
        party = fed.parties["passive1"]
        before = party.modules["bottom"].state()
        gradient = torch.randn(1, 16, 3, dtype=torch.float64, generator=generator(0, "g"))
        gradient[:, 8:] = 0
        gradient = torch.zeros_like(gradient) if case == "zero" else gradient
        here = slice(0, 8) if case == "alone" else slice(None)
        z = party.modules["bottom"](fed.columns("passive1", rows[:, here]))
        party.continue_backward(z, gradient[:, here], None)
        now = party.modules["bottom"].state()
        if case == "zero":
            assert all(torch.equal(v, before[k]) for k, v in now.items())
        else:
            assert all(not torch.equal(v, before[k]) for k, v in now.items())
        after.append(now)
    for key, value in after[1].items():
        torch.testing.assert_close(value, after[2][key], rtol=0, atol=1e-14)


@pytest.mark.parametrize("aggregation", ["concat", "sum"])
def test_one_party_equals_local_bit_for_bit(aggregation: str) -> None:
    task = small_task(3)
    alone = Stack.build({3: without(task, "passive1")}, [3], dtype=torch.float64)
    both = Stack.build({3: task}, [3], dtype=torch.float64)
    settings = {**SMALL, "epochs": 6, "patience": 2, "aggregation": aggregation}
    a, b = SplitNN(**settings), Local(**settings)
    fed_a, fed_b = trained(a, alone, [3]), trained(b, both, [3])
    assert_same({"active": fed_a.state()["active"]}, {"active": fed_b.state()["active"]})
    assert fed_a.channel.ledger.entries == fed_b.channel.ledger.entries == {}
    assert fed_b.state()["passive1"] == {}
    rows = both.rows("test")
    assert torch.equal(predict(a, fed_a, rows), predict(b, fed_b, rows))


def relabelled(name: str, seed: int = 1) -> Stack:
    """The world of `seed` with the labels of one row set turned round."""
    task = small_task(seed)
    y = task.y.clone()
    if name:
        y[task.sets[name]] = 1 - y[task.sets[name]]
    return Stack.build({seed: replace(task, y=y)}, [seed], dtype=torch.float64)


def test_selection_looks_at_validation_rows_only() -> None:
    algorithm = SplitNN(**{**SMALL, "patience": 3}, epochs=15, lr=0.02)
    plain = trained(algorithm, relabelled(""), [1])
    test = trained(algorithm, relabelled("test"), [1])
    validation = trained(algorithm, relabelled("validation"), [1])
    assert_same(plain.state(), test.state())
    assert plain.epochs["train"] == test.epochs["train"]
    assert plain.epochs["train"] != validation.epochs["train"]
    hidden = plain.labels.gather(1, plain.stack.rows("test"))
    assert bool((hidden == -1).all())


@dataclass(frozen=True)
class TurnRound(Policy):
    """A label policy that turns two classes round."""

    def labels(self, y: Tensor, own: Own) -> Tensor:
        return torch.where(y >= 0, 1 - y, y)


def test_label_policies_apply_to_validation_labels() -> None:
    """Turned labels select like a world whose labels are turned on training and validation rows."""
    stacked = stack([1])
    one = torch.ones(1, dtype=torch.float64)
    algorithm = SplitNN(**{**SMALL, "patience": 3}, epochs=15, lr=0.02)
    fed = trained(algorithm, stacked, [1], {"active": [(TurnRound(), one)]})
    rows = stacked.rows("validation")
    assert torch.equal(fed.targets(rows)[0], 1 - stacked.first.y[rows[0]])
    task = small_task(1)
    y = task.y.clone()
    for name in ("labelled", "validation"):
        y[task.sets[name]] = 1 - y[task.sets[name]]
    turned = Stack.build({1: replace(task, y=y)}, [1], dtype=torch.float64)
    same = trained(algorithm, turned, [1])
    assert_same(fed.state(), same.state())
    assert fed.epochs["train"] == same.epochs["train"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top": (), "linear_top": False}, 'set aggregation = "sum" or "mean"'),
        ({"linear_top": False, "top": (8,)}, "top hidden layers need linear_top = true"),
        ({"parties": {"p": {"cutt": 3}}}, "Did you mean 'cut'?"),
    ],
)
def test_wrong_settings_say_what_is_allowed(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SplitNN(**settings)


def test_adding_embeddings_needs_one_width() -> None:
    algorithm = SplitNN(aggregation="sum", parties={"passive1": {"cut": 5}})
    with pytest.raises(ConfigError, match=r"must be one for all parties, got \[32, 5\]"):
        federation(algorithm, stack([0]))
