"""Trainings with and without graphs, and all that they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from by_hand import flatten
from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.task import Stack
from vflsec.label import Quantity
from vflsec.nn import manual_backprop
from vflsec.plugins import registry
from vflsec.testing import small_task
from vflsec.train import cuda_graphs
from vflsec.train.cuda_graphs import Captured
from vflsec.train.loop import run_phases

SEEDS = (0, 1, 1)
STRENGTHS = (0.0, 1.0, 0.5)
THREE = {"widths": (4, 6, 3)}
STEPS = 3 * 6  # epochs of 144 rows in batches of 25, the last one of 19


@dataclass(frozen=True)
class Heard(Policy):
    """Multiplies what arrives, and keeps it."""

    name = "heard"

    def incoming(self, message: Message, own: Own) -> Tensor:
        own.memory.setdefault("kept", []).append(message.tensor)
        return message.tensor * 2


@dataclass(frozen=True)
class Keeps(Policy):
    """Keeps labels and logits that it gets beside a gradient, and adds the oldest logits."""

    name = "keeps"

    @property
    def covers(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        kept = own.memory.setdefault("kept", [])
        kept.append((own.labels, own.context["logits"]))
        old_y, old = kept[max(0, len(kept) - 4)]
        if old.shape[1] != message.tensor.shape[1]:
            return message.tensor
        return message.tensor + 0.1 * (old.sum(2) + old_y).unsqueeze(2)


@dataclass(frozen=True)
class Waning(SplitNN):
    """A term of the loss whose weight is read from the host and shrinks from step to step."""

    name = "waning"

    @manual_backprop.walked
    def own_term(self, fed: Federation) -> Tensor:
        squares = [p.square().flatten(1).sum(1) for p in fed.active.parameters()]
        return 0.1 / (1 + fed.steps) * torch.stack(squares).sum(0)


@dataclass(frozen=True)
class Asking(SplitNN):
    """A term of the loss that looks at a number of the device."""

    name = "asking"

    @manual_backprop.walked
    def own_term(self, fed: Federation) -> Tensor | None:
        first = fed.active.parameters()[0]
        return first.square().flatten(1).sum(1) if bool(first.sum() > 0) else None


@dataclass(frozen=True)
class Doubling(SplitNN):
    """A part of the step that says nothing of how it comes back."""

    name = "doubling"

    def fuse(self, parts: list[Tensor]) -> Tensor:
        return torch.cat([2 * p for p in parts], dim=-1)


@dataclass(frozen=True)
class Columns(Policy):
    """Looks at the rows of every step."""

    name = "columns"

    def columns(self, x: Tensor, own: Own) -> Tensor:
        return x * 1.0


@dataclass
class Case:
    """One training of three epochs."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str | type[SplitNN] = "splitnn"
    defenses: Mapping[str, Sequence[str | Policy]] = field(
        default_factory=lambda: {"active": ["iso"]}
    )
    world: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    quantity: bool = False
    observed: bool = False
    silent: bool = False


CASES = {
    "two parties": Case(),
    "two parties, momentum": Case({"optimizer": "sgd", "lr": 0.05}),
    "three parties": Case({"hidden": [9, 7], "top": [5]}, world=THREE),
    "three parties, momentum": Case({"optimizer": "sgd", "lr": 0.05}, world=THREE),
    "no defense": Case(defenses={}),
    "decay, float64": Case({"weight_decay": 0.01}, dtype=torch.float64),
    "mean, five classes": Case({"aggregation": "mean"}, world={"classes": 5, "widths": (6, 5, 5)}),
    "no top": Case({"top": [], "linear_top": False, "aggregation": "sum"}),
    "a quantity": Case(quantity=True),
    "replicas stop": Case({"select": True, "patience": 1, "lr": 0.2}),
    "one stops by its area": Case({"select": True, "patience": 1, "select_by": "auc", "lr": 0.1}),
    "embeddings are noised": Case(defenses={"passive1": ["noise"]}),
    "what arrives is kept": Case(defenses={"passive1": [Heard()], "active": [Heard()]}),
    "what is lent is kept": Case(defenses={"active": [Keeps()]}),
    "local updates": Case({"local_updates": 3, "proximal": 0.1}, "fedbcd"),
    "local updates in turn": Case({"local_updates": 2, "order": "sequential"}, "fedbcd", {}),
    "alone": Case(algorithm="local", defenses={}),
}  # fmt: skip


def prepared(
    case: Case, graphs: Callable[[], Any] | None, device: str = "cpu"
) -> tuple[Any, Federation]:
    tasks = {s: small_task(s, **case.world) for s in set(SEEDS)}
    if case.quantity:
        tasks = {
            s: replace(
                t, values=t.x["active"][:, 0].double(), label=Quantity(), y=torch.zeros_like(t.y)
            )
            for s, t in tasks.items()
        }  # fmt: skip
    if case.silent:
        tasks = {s: replace(t, silent=torch.arange(len(t.y)) == 3) for s, t in tasks.items()}
    stack = Stack.build(tasks, SEEDS, device, case.dtype)
    policies: dict[str, Any] = {}
    for party, chosen in case.defenses.items():
        for p in chosen:
            policy = registry.defenses.create(p) if isinstance(p, str) else p
            strength = torch.tensor(STRENGTHS, dtype=torch.float64)
            policies.setdefault(party, []).append((policy, strength))
    peers = [p for p in stack.first.parties if p != "active"]
    wanted = [(p, "received", "gradient", form) for p in peers for form in ("mean", "all")]
    wanted += [("active", "received", "embedding", form) for form in ("first", "last", "all")]
    wanted += [(peers[0], "sent", "embedding", "all"), (peers[0], "received", "ids", "all")]
    if case.observed:
        wanted.append(("active", "own", "parameter_gradient", "all"))
    recorder = Recorder(wanted, len(SEEDS), len(stack.first.y))
    fed = Federation.create(
        stack, SEEDS, policies, recorder, RunFacts(epochs=3, batch_size=25, labelled=144)
    )
    fed.graphs = graphs
    settings = {"hidden": [8], "cut": 4, "batch_size": 25, "epochs": 3, **case.settings}
    if isinstance(case.algorithm, str):
        return registry.algorithms.create(case.algorithm, settings), fed
    return case.algorithm(**settings), fed


def numbers(fed: Federation) -> dict[str, Tensor]:
    """Weights, the optimizers' states and all that is on record."""
    out = flatten(fed.state())
    for name, party in fed.parties.items():
        for i, p in enumerate(party.parameters() if party.optimizer is not None else ()):
            state = party.optimizer.state[p]
            out |= {f"{name}.state.{i}.{key}": v for key, v in state.items()}
    for r in range(fed.replicas):
        for key, table in fed.channel.recorder.tables(r, list(fed.parties), "train").items():
            columns = (table.tensor, table.rows, table.epoch, table.step)
            out |= {f"table.{r}.{key}.{i}": column for i, column in enumerate(columns)}
    return out


def trained(
    case: Case, graphs: Callable[[], Any] | None = None, device: str = "cpu"
) -> tuple[dict[str, Tensor], Any]:
    """All numbers a training leaves, and its ledgers with what every message was."""
    algorithm, fed = prepared(case, graphs, device)
    passed: list[Any] = []

    def tap(m: Message, alive: Tensor | None, ways: Sequence[str]) -> None:
        on = None if alive is None else alive.tolist()
        passed.append((m.kind, m.sender, m.receiver, m.phase, m.epoch, m.step, m.name, m.scale,
                       m.policies, on, tuple(ways), m.tensor.stride()))  # fmt: skip

    fed.channel.recorder.taps.append(tap)
    algorithm.build(fed)
    for _ in run_phases(algorithm, fed):
        pass
    ledgers = [fed.channel.ledger.of(r) for r in range(len(SEEDS))]
    return numbers(fed), (ledgers, passed, fed.epochs.get("train"))


def apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """The names of what differs in a bit."""
    assert a.keys() == b.keys()
    return [name for name, value in a.items() if not torch.equal(value, b[name])]


def noted_in(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """All captured steps that are made from now on."""
    made: list[Captured] = []

    class Noted(Captured):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(cuda_graphs, "Captured", Noted)
    return made
