"""The step without an autograd graph is the step with one, bit for bit, or is not taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from by_hand import flatten
from sampled import sampled
from torch import Tensor, nn

from vflsec.algorithms.fedbcd import FedBCD
from vflsec.algorithms.fedcvt import FedCVT
from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.algorithms.vflhlp import VFLHLP
from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.party import Party
from vflsec.core.policy import Own, Policy
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.task import Stack
from vflsec.label import MultiLabel, Quantity
from vflsec.nn import manual_backprop
from vflsec.nn.replicas import Replicas
from vflsec.plugins import registry
from vflsec.testing import small_task
from vflsec.train.loop import run_phases

SEEDS = [0, 1, 1]
STRENGTHS = (0.0, 1.0, 0.5)
ODD: dict[str, Any] = {"hidden": [37], "cut": 5}


@dataclass(frozen=True)
class Frozen(Policy):
    """The owner's bottom does not learn, or only its first weights do not."""

    name = "frozen"
    wholly: bool = True

    def model(self, module: nn.Module, part: str, own: Own) -> nn.Module:
        if part == "bottom":
            still = list(module.parameters())
            for p in still if self.wholly else still[:1]:
                p.requires_grad_(False)
        return module


@dataclass(frozen=True)
class Small(Policy):
    """The owner's embedding is kept small by a penalty."""

    name = "small"

    def penalty(self, x: Tensor, h: dict[str, Tensor], y: Tensor | None, own: Own) -> Tensor:
        return sum(z.square().mean((1, 2)) for z in h.values())  # type: ignore[return-value]


@dataclass(frozen=True)
class Decayed(SplitNN):
    """Adds the squares of its parameters to the loss."""

    name = "decayed"

    @manual_backprop.walked
    def own_term(self, fed: Federation) -> Tensor:
        squares = [p.square().flatten(1).sum(1) for p in fed.active.parameters()]
        return 0.01 * torch.stack(squares).sum(0)


@dataclass
class Case:
    """One training of a few steps.

    Attributes:
        by_hand: the parties that need no graph.
        defenses: names or policies by party.
        world: arguments of :func:`vflsec.testing.small_task`.
        quantity: the label is one.
        several: a row has two labels.
    """

    settings: dict[str, Any]
    dtype: torch.dtype = torch.float64
    algorithm: str | type[SplitNN] = "splitnn"
    by_hand: tuple[str, ...] = ("active", "passive1")
    defenses: Mapping[str, Sequence[str | Policy]] = field(
        default_factory=lambda: {"active": ["iso"]}
    )
    world: dict[str, Any] = field(default_factory=dict)
    quantity: bool = False
    several: bool = False
    clip: float = 0.0
    products: str = ""


CASES = {
    "plain": Case({"hidden": [8], "cut": 4}, torch.float32),
    "odd": Case({**ODD, "top": [7]}),
    "odd, five classes": Case(ODD, torch.float32, world={"classes": 5, "widths": (5, 7)}),
    "partial batch, mean": Case(
        {"hidden": [30, 9], "cut": 3, "batch_size": 17, "aggregation": "mean"}, torch.float32
    ),
    "no top": Case({"top": [], "linear_top": False, "aggregation": "sum", "optimizer": "sgd"}),
    "no hidden layer": Case({"hidden": [], "cut": 1, "top": [3], "weight_decay": 0.01}),
    "three passive parties": Case(
        {**ODD, "aggregation": "mean", "optimizer": "adagrad"}, torch.float32,
        by_hand=("active", "passive1", "passive2", "passive3"),
        world={"widths": (4, 6, 3, 5)},
    ),
    "a quantity": Case(ODD, torch.float32, quantity=True),
    "several labels": Case({**ODD, "top": [7]}, torch.float32, several=True),
    "several labels, no top": Case(
        {"top": [], "linear_top": False, "aggregation": "sum"}, several=True
    ),
    "several labels, local updates": Case(
        {**ODD, "local_updates": 3}, torch.float32, "fedbcd", several=True
    ),
    "TF32": Case({**ODD, "top": [7]}, torch.float32, products="tf32"),
    "bf16": Case({**ODD, "top": [7]}, torch.float32, products="bf16"),
    "bf16, rows are limited": Case(
        ODD, torch.float32, defenses={"active": ["dpsgd"], "passive1": ["dpsgd"]}, products="bf16"
    ),
    "limited gradients": Case(ODD, torch.float32, clip=0.1),
    "frozen": Case(ODD, defenses={"active": [Frozen()], "passive1": [Frozen(wholly=False)]}),
    "frozen, no top": Case(
        {"top": [], "linear_top": False, "aggregation": "sum"}, defenses={"active": [Frozen()]}
    ),
    "frozen passive": Case(ODD, defenses={"passive1": [Frozen()]}),
    "rows are limited": Case(ODD, defenses={"active": ["dpsgd"], "passive1": ["dpsgd"]}),
    "a penalty of one": Case(ODD, by_hand=("active",), defenses={"passive1": [Small()]}),
    "a loss of its own": Case(ODD, by_hand=("passive1",), defenses={"active": ["label_dp"]}),
    "a protocol": Case(ODD, by_hand=(), defenses={"passive1": ["he_embedding"]}),
    "dropout": Case({**ODD, "dropout": 0.2}, by_hand=()),
    "local": Case({**ODD, "top": [7]}, torch.float32, "local"),
    "local updates": Case(
        {**ODD, "local_updates": 3, "order": "sequential", "proximal": 0.1}, torch.float32, "fedbcd"
    ),
    "a term of the loss": Case(ODD, torch.float32, Decayed),
    "a term beside other models": Case(
        {**ODD, "scarf": False, "beta": 1.0}, torch.float32, "vflhlp", by_hand=("passive1",)
    ),
}  # fmt: skip


def prepared(case: Case) -> tuple[Any, Federation]:
    tasks = {s: small_task(s, **{"unaligned": 20, **case.world}) for s in set(SEEDS)}
    if case.quantity:
        told = {s: (t.x["active"][:, 0] + t.x["passive1"][:, 1]).double() for s, t in tasks.items()}
        tasks = {
            s: replace(t, values=told[s], label=Quantity(), y=torch.zeros_like(t.y))
            for s, t in tasks.items()
        }
    if case.several:
        tasks = {
            s: replace(
                t, values=torch.stack([t.y, t.x["active"][:, 0] > 0], 1).double(),
                y=torch.zeros_like(t.y), label=MultiLabel(("first", "second")),
            )
            for s, t in tasks.items()
        }  # fmt: skip
    stack = Stack.build(tasks, SEEDS, dtype=case.dtype, products=case.products)
    policies: dict[str, Any] = {}
    for party, chosen in case.defenses.items():
        for p in chosen:
            policy = registry.defenses.create(p) if isinstance(p, str) else p
            by = torch.tensor([s and min(s, policy.trial[1]) for s in STRENGTHS])
            policies.setdefault(party, []).append((policy, by.double()))
    peers = [p for p in stack.first.parties if p != "active"]
    wanted = [(p, "received", "gradient", form) for p in peers for form in ("mean", "all")]
    wanted += [("active", "received", "embedding", "last")]
    wanted += [("active", "own", "parameter_gradient", "all")]
    fed = Federation.create(
        stack, SEEDS, policies, Recorder(wanted, len(SEEDS), len(stack.first.y)),
        RunFacts(epochs=2, batch_size=32, labelled=144, classes=stack.first.classes),
    )  # fmt: skip
    settings = {"batch_size": 32, "epochs": 2, **case.settings}
    if isinstance(case.algorithm, str):
        algorithm = registry.algorithms.create(case.algorithm, settings)
    else:
        algorithm = case.algorithm(**settings)
    algorithm.build(fed)
    for party in fed.parties.values():
        party.clip_norm = case.clip
    return algorithm, fed


def trained(case: Case) -> tuple[dict[str, Tensor], Any, tuple[str, ...]]:
    """All numbers a training leaves by name, what else it leaves, and who needed no graph."""
    algorithm, fed = prepared(case)
    by_hand = tuple(p.name for p in fed.parties.values() if p.by_hand)
    for _ in run_phases(algorithm, fed):
        pass
    numbers = flatten(fed.state())
    recorder, parties = fed.channel.recorder, list(fed.parties)
    for r in range(len(SEEDS)):
        for key, table in recorder.tables(r, parties, "train").items():
            numbers[f"table.{r}.{key}"] = table.tensor
        for party, steps in recorder.updates(r, parties, "train").items():
            for k, update in enumerate(steps):
                numbers |= {f"{party}.{r}.{k}.{name}": g for name, g in update.gradients.items()}
    counted = [
        (b.own.uses.uses(r), b.own.uses.past)
        for p in fed.parties.values()
        for b in p.bindings
        if b.own.uses is not None
        for r in range(len(SEEDS))
    ]
    ledgers = [fed.channel.ledger.of(r) for r in range(len(SEEDS))]
    return numbers, (ledgers, counted), by_hand


def assert_both_ways_agree(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Train with and without the graph; returns who needed none."""
    numbers, others, by_hand = trained(case)
    monkeypatch.setattr(Party, "by_hand", False)
    with_graph, others_with, nobody = trained(case)
    assert nobody == ()
    assert numbers.keys() == with_graph.keys()
    assert any(name.startswith("table.") for name in numbers) or case.algorithm == "local"
    for name, value in numbers.items():
        assert value.dtype == with_graph[name].dtype
        assert torch.equal(value, with_graph[name]), name
    assert others == others_with
    return by_hand


@pytest.mark.parametrize("name", sampled(CASES, every=2))
def test_both_ways_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assert_both_ways_agree(CASES[name], monkeypatch) == CASES[name].by_hand


@pytest.mark.parametrize("name", sampled(registry.defenses.names(), every=4))
def test_every_defense_gets_the_graph_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = registry.defenses.create(name)
    owner = "active" if policy.owner == "active" else "passive1"
    case = Case({**ODD, "epochs": 1}, torch.float32, defenses={owner: [policy]})
    needs = policy.overrides("loss") or policy.overrides("penalty") or policy.overrides("link")
    by_hand = assert_both_ways_agree(case, monkeypatch)
    if not policy.overrides("model"):
        assert (owner in by_hand) == (not needs)
    if not policy.overrides("link"):  # a protocol gives both ends models of its own
        assert {"active", "passive1"} - {owner} <= set(by_hand)


def test_an_algorithm_that_does_otherwise_gets_a_graph() -> None:
    """One that overrides a part of the step, and does not say that it comes back by `slopes`."""

    class Fused(SplitNN):
        def fuse(self, parts: list[Tensor]) -> Tensor:
            return torch.cat([2 * p for p in parts], dim=-1)

    assert [manual_backprop.is_walked(k) for k in (SplitNN, FedBCD, Local, VFLHLP)] == [True] * 4
    assert [manual_backprop.is_walked(k) for k in (Fused, FedCVT)] == [False] * 2
    _, fed = prepared(CASES["plain"])
    assert fed.active.by_hand
    rows = fed.stack.rows("labelled")[:, :9]
    parts = Fused(batch_size=32).up(fed, rows), SplitNN(batch_size=32).up(fed, rows)
    ((z, other), (sent, passed)) = ((b.got["active"], b.sent["passive1"]) for b in parts)
    assert z.requires_grad
    assert other.requires_grad
    assert not manual_backprop.is_noted(z)
    assert manual_backprop.is_noted(sent)
    assert manual_backprop.is_noted(passed)
    assert torch.equal(z, sent)


def stack_of(*layers: nn.Module) -> Replicas:
    return Replicas([nn.Sequential(*layers)] * 2, dtype=torch.float64)


class Named(nn.Sequential):
    """A subclass may compute otherwise."""


@pytest.mark.parametrize(
    ("stack", "plain"),
    [
        (stack_of(nn.Linear(3, 2), nn.ReLU()), True),
        (stack_of(nn.Flatten(), nn.Identity(), nn.Linear(3, 2), nn.Linear(2, 2)), True),
        (stack_of(nn.Linear(3, 2), nn.Dropout(0.1)), False),
        (stack_of(nn.Linear(3, 2), nn.ReLU(), nn.ReLU()), False),
        (stack_of(nn.Linear(3, 2), nn.BatchNorm1d(2)), False),
        (stack_of(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), False),
        (stack_of(nn.ReLU(), nn.Linear(3, 2)), False),
        (stack_of(nn.Sequential(nn.Linear(3, 2))), False),
        (stack_of(nn.Identity()), False),
        (Replicas([Named(nn.Linear(3, 2))] * 2), False),
        (Replicas([nn.Linear(3, 2)] * 2), False),
    ],
)  # fmt: skip
def test_plain_modules_are_told_from_others(stack: Replicas, plain: bool) -> None:
    assert (stack.plain is not None) == plain


def test_the_way_back_refuses_what_would_be_wrong() -> None:
    stack = stack_of(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.ones(2, 5, 3, dtype=torch.float64)
    params, slope = stack.parameters(), torch.ones(2, 5, 2, dtype=torch.float64)
    z = manual_backprop.run(stack, x)
    assert len(manual_backprop.slopes(z, params, slope)) == 4
    with pytest.raises(RuntimeError, match="was not used"):
        manual_backprop.slopes(z, [*params, torch.zeros(2)], slope)
    x[0, 0, 0] = 2.0
    with pytest.raises(RuntimeError, match="changed in place"):
        manual_backprop.slopes(z, params, slope)
    z = manual_backprop.run(stack, x)
    with torch.no_grad():
        params[0].mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        manual_backprop.slopes(z, params, slope)
    from_graph = x.clone().requires_grad_() * 2
    joined = manual_backprop.join([manual_backprop.run(stack, x), from_graph[..., :2]], "sum")
    with pytest.raises(RuntimeError, match="ends in a graph"):
        manual_backprop.slopes(joined, params, slope)
