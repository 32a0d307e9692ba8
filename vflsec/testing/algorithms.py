"""The checks of an algorithm.

PYTEST_DONT_REWRITE: messages say what is wrong; rewritten, pytest would add whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.message import Message
from vflsec.core.policy import Policy
from vflsec.core.view import FORMS
from vflsec.nn.replicas import LEAST
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing.reach import find_foreign, find_tensors
from vflsec.testing.worlds import Check, Trained, small_stack, train
from vflsec.train.loop import predict
from vflsec.train.views import make_view


def _algorithm(name: str, without: Sequence[str] = (), **how: Any) -> tuple[Algorithm, Any]:
    """The algorithm as its own settings `without` some, and these, have it; and its world."""
    cls: Any = registry.algorithms.get(name)
    settings = dict(cls.world)
    world = settings.pop("task", {})
    known = registry.list_parameters(cls)
    own = {k: v for k, v in settings.items() if k not in without}
    quick = {"batch_size": 64, **how}  # three steps an epoch, the last of few rows
    return cls(**{k: v for k, v in quick.items() if k in known} | own), world


COMPANY, STRENGTHS = [3, 0, 1, 0, 2], [0.0, 1.0, 2.0, 0.5, 1.0]
"""Seeds of cells that are trained together, and their noise on gradients."""


@dataclass
class _Seen:
    """A training of :data:`COMPANY` with all that its parties sent, received and did recorded."""

    trained: Trained
    sizes: dict[str, int]
    """Bytes of an element, by kind of message."""
    with_graph: set[str]
    """Kinds of message that were delivered with a grad_fn."""


@lru_cache(maxsize=1)
def _watch(name: str, cls: type) -> _Seen:
    """What four of the checks look at, trained once for each version of the class."""
    algorithm, world = _hurried(name)
    stack = small_stack(COMPANY, **world)
    of = {"active": (stack.first.active,), "passive": tuple(stack.first.passive)}
    wanted = {(p, "own", "parameter_gradient", "all") for p in stack.first.parties}
    for kind, sender, receiver in algorithm.sends:
        for form in FORMS:
            wanted |= {(p, "received", kind, form) for p in of.get(receiver, ())}
            wanted |= {(p, "sent", kind, form) for p in of.get(sender, ())}
    sizes: dict[str, int] = {}
    with_graph: set[str] = set()

    def watch(message: Message, out: Tensor) -> None:
        sizes[message.kind] = out.element_size()
        if out.grad_fn is not None:
            with_graph.add(message.kind)

    trained = train(algorithm, stack, COMPANY, _iso(STRENGTHS), wanted=sorted(wanted), watch=watch)
    return _Seen(trained, sizes, with_graph)


def _hurried(name: str) -> tuple[Algorithm, Any]:
    """With dropout, in steps so large that some cells stop before others."""
    how = {"epochs": 4, "patience": 1, "dropout": 0.2, "lr": 0.1}
    return _algorithm(name, ("patience", "lr"), **how)


def _iso(strengths: list[float]) -> dict[str, list[tuple[Policy, Tensor]]]:
    iso = registry.defenses.create("iso")
    return {"active": [(iso, torch.tensor(strengths, dtype=torch.float64))]}


def _seen(name: str) -> _Seen:
    return _watch(name, registry.algorithms.get(name))


def algorithm_cuts_the_graph(name: str) -> None:
    """No delivered tensor has a grad_fn, and bytes are elements times size."""
    seen = _seen(name)
    assert not seen.with_graph, f"{name}: {seen.with_graph} carry the graph over"
    for row in seen.trained.fed.channel.ledger.of(0):
        assert row["bytes"] == row["elements"] * seen.sizes[row["kind"]], row


def algorithm_ignores_company(name: str) -> None:
    """A cell alone equals the cell in company bit for bit in float64, noise and dropout on, where
    some cells stop before others and the company's messages are recorded.
    """
    many = _seen(name).trained
    algorithm, world = _hurried(name)
    for r in (1, 4):
        twins = [COMPANY[r]] * LEAST
        alone = _iso([STRENGTHS[r]] * LEAST)
        one = train(algorithm, small_stack(twins, **world), twins, alone)
        for party, owner in one.fed.parties.items():
            for part, module in owner.modules.items():
                for key, value in module.state().items():
                    other = many.fed.parties[party].modules[part].state()[key][r]
                    assert torch.equal(value[0], other), f"{name}: {party}.{part}.{key} differs"
        a, b = many.fed.channel.ledger.of(r), one.fed.channel.ledger.of(0)
        assert a == b, f"{name}: the ledger depends on company"


def algorithm_declares_what_it_sends(name: str) -> None:
    """Every message kind that passed is declared by role, and planned facts hold."""
    trained = _seen(name).trained
    algorithm, fed = trained.algorithm, trained.fed

    def role(party: str) -> str:
        if party not in fed.parties:  # a server
            return party
        return "active" if fed.parties[party].active else "passive"

    passed = {
        (row["kind"], role(row["sender"]), role(row["receiver"]))
        for row in fed.channel.ledger.of(0)
        if row["phase"] != "predict"
    }
    assert passed <= algorithm.sends, f"{name} sends {passed - algorithm.sends} undeclared"
    task = fed.stack.first
    planned = algorithm.planned_facts(task.active, task.parties, task.classes)
    found = algorithm.facts(fed)
    for key in ("algorithm", "aggregation", "top", "batch_size", "reduction", "parties"):
        assert getattr(planned, key) == getattr(found, key), f"{name}: planned {key} differs"


def algorithm_learns(name: str) -> None:
    """Test accuracy on an easy world is clearly above chance, with logits (R, n, C)."""
    how = {"epochs": 12, "pretrain_epochs": 12, "lr": 1e-2, "batch_size": 32}
    algorithm, world = _algorithm(name, ("epochs", "pretrain_epochs"), **how)
    trained = train(algorithm, small_stack([0, 1], **{"signal": 4.0, **world}), [0, 1])
    rows = trained.fed.stack.rows("test")
    logits = predict(algorithm, trained.fed, rows)
    form, got = (2, rows.shape[1], trained.fed.classes), tuple(logits.shape)
    assert got == form, f"{name}: logits have the shape {got} in place of {form}"
    truth = torch.stack([t.y for t in trained.fed.stack.tasks])
    right = (logits.argmax(2) == truth.gather(1, rows)).double().mean()
    chance = 1 / trained.fed.classes
    assert float(right) > chance + 0.1, f"{name}: accuracy {float(right):.3f}"


def algorithm_views_are_closed(name: str) -> None:
    """No view holds a way to the trainer, to another replica, or back into training.

    Of any party, with all it sent, received and did recorded, and with every grant.
    """
    trained = _seen(name).trained
    algorithm, stack = trained.algorithm, trained.fed.stack
    for party in stack.first.parties:
        spec = AttackSpec("", adversary=(party,), aux_rows=5, peer_model=True)
        views = [make_view(algorithm, trained.fed, trained.initial, spec, r) for r in (0, 1)]
        for view in views:
            assert not find_foreign(view), f"{name}, {party}: {find_foreign(view)}"
        stored = [
            {t.untyped_storage().data_ptr() for t in find_tensors(v) if t.numel()} for v in views
        ]
        assert not stored[0] & stored[1], f"{name}, {party}: two replicas share a storage"
        held = {t.untyped_storage().data_ptr() for task in stack.tasks for t in find_tensors(task)}
        assert not stored[0] & held, f"{name}, {party}: a view shares a storage with the data"


def algorithm_checks() -> list[Check]:
    """The checks of an algorithm."""
    return [
        algorithm_cuts_the_graph, algorithm_ignores_company, algorithm_declares_what_it_sends,
        algorithm_learns, algorithm_views_are_closed,
    ]  # fmt: skip
