"""Conformance suites for attacks, defenses and algorithms, ours and outside ones.

Each suite is a list of named checks; a check takes a registered name and raises AssertionError.
An outside package tests what it registers with::

    import pytest
    from vflsec import testing

    @pytest.mark.parametrize("check", testing.attack_checks(), ids=lambda c: c.__name__)
    def test_my_attack(check):
        check("my_attack")
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vflsec import registry
from vflsec.algorithm import Algorithm
from vflsec.attack import Attack
from vflsec.audit.metrics import primary, score
from vflsec.channel import Binding, Channel, Ledger, Recorder
from vflsec.data.prepare import make_task
from vflsec.engine.spec import AttackSpec
from vflsec.engine.train import predict, run_phases
from vflsec.engine.views import make_view
from vflsec.errors import PolicyError, ThreatModelError
from vflsec.federation import Federation
from vflsec.guess import Guess, Truth
from vflsec.message import Message
from vflsec.nn.replicas import LEAST
from vflsec.policy import Guarantee, Own, Policy
from vflsec.rng import Streams, generator
from vflsec.task import Stack, Task
from vflsec.view import Schema, View, as_needs

__all__ = [
    "algorithm_checks", "attack_checks", "defense_checks", "small_stack", "small_task", "views_of",
]  # fmt: skip

Check = Callable[[str], None]
SEEDS = (0, 1, 2)


def small_task(
    seed: int = 0,
    *,
    n: int = 240,
    widths: tuple[int, ...] = (4, 6),
    classes: int = 2,
    signal: float = 2.0,
    positive_rate: float | None = None,
    categorical: bool = False,
    unaligned: int = 0,
) -> Task:
    """A Gaussian world from tensors alone, for tests.

    Args:
        seed: of the world.
        n: aligned rows, 60 % labelled training, 15 % validation, 25 % test.
        widths: columns of each party, the active one first.
        classes: number of classes; the label is the argmax of `signal` times the last party's first
            columns plus the active party's first columns plus noise.
        positive_rate: share of class 1 instead, for two classes.
        categorical: turn the last party's first column into a categorical one.
        unaligned: training rows that each party holds alone, on top; the active party's are
        labelled.
    """
    g = generator(seed, "small_task")
    names = ("active", *(f"passive{k}" for k in range(1, len(widths))))
    total = n + unaligned * len(names)
    x = {p: torch.randn(total, w, generator=g) for p, w in zip(names, widths, strict=True)}
    value = signal * x[names[-1]][:, :classes] + x[names[0]][:, :classes]
    value = value + 0.5 * torch.randn(total, classes, generator=g)
    y = value.argmax(1)
    if positive_rate is not None:
        y = (value[:, 0] > value[:n, 0].quantile(1 - positive_rate)).long()
    schema = {
        p: Schema(tuple(f"{p}{i}" for i in range(w)), (0,) * w, (w,))
        for p, w in zip(names, widths, strict=True)
    }
    if categorical:
        last = names[-1]
        x[last][:, 0] = (x[last][:, 0] > 0).float() + 1
        schema[last] = Schema(schema[last].names, (3, *(0,) * (widths[-1] - 1)), (widths[-1],))
    order = torch.randperm(n, generator=g)
    a, b = n * 6 // 10, n * 75 // 100
    train, validation, test = (s.sort().values for s in (order[:a], order[a:b], order[b:]))
    sets = {"labelled": train, "aligned": train, "validation": validation, "test": test}
    present = {p: torch.ones(total, dtype=torch.bool) for p in names}
    for k, p in enumerate(names):
        own = torch.arange(n + k * unaligned, n + (k + 1) * unaligned)
        sets[f"local:{p}"] = torch.cat([train, own])
        present[p][n:] = False
        present[p][own] = True
        x[p][~present[p]] = 0.0
    y[n + unaligned :] = -1
    return Task("small", names, x, present, schema, y, classes, sets, sets[f"local:{names[0]}"])


def small_stack(seeds: list[int], dtype: torch.dtype = torch.float64, **world: Any) -> Stack:
    """:func:`small_task` for these seeds, side by side."""
    return Stack.build({s: small_task(s, **world) for s in set(seeds)}, seeds, dtype=dtype)


@dataclass
class Trained:
    """A federation after training, with what is needed to look at it."""

    algorithm: Algorithm
    fed: Federation
    initial: dict[str, dict[str, Tensor]]


def train(
    algorithm: Algorithm,
    stack: Stack,
    seeds: list[int],
    policies: Mapping[str, list[tuple[Policy, Tensor]]] | None = None,
    wanted: list[tuple[str, str, str, str]] | None = None,
) -> Trained:
    """Train `algorithm` on `stack` by the engine's loop; stack at least two replicas."""
    recorder = Recorder(wanted or [], stack.replicas, len(stack.first.y))
    fed = Federation.create(stack, seeds, policies, recorder, {"epochs": 3, "batch_size": 32})
    algorithm.build(fed)
    initial = {
        p.name: p.modules["bottom"].state() for p in fed.parties.values() if "bottom" in p.modules
    }
    for _ in run_phases(algorithm, fed):
        pass
    return Trained(algorithm, fed, initial)


@cache
def _world(dataset: str, null: bool, params: tuple[tuple[str, Any], ...], name: str) -> Trained:
    attack: Attack = registry.attacks.create(name)
    made = registry.datasets.create(dataset)
    tasks = {s: make_task(made.load(s), s, shuffle_labels=null) for s in SEEDS}
    stack = Stack.build(tasks, SEEDS)
    party = stack.first.passive[0]
    wanted = {Recorder.wants(party, n) for n in as_needs(attack.needs)} - {None}
    active = attack.policy()
    policies = {party: [(active, torch.ones(len(SEEDS)))]} if active is not None else {}
    algorithm = registry.algorithms.create("splitnn", {"epochs": 12, **dict(params)})
    trained = train(algorithm, stack, list(SEEDS), policies, sorted(w for w in wanted if w))
    predict(algorithm, trained.fed, stack.rows("test"))
    return trained


def views_of(name: str, dataset: str = "leaky", *, null: bool = False) -> list[View]:
    """Views of the registered attack `name` in a toy world trained by FedSplitNN, one for each
    seed.

    Args:
        name: a registered attack with usable defaults.
        dataset: ``leaky`` or ``sealed``.
        null: the active party is given permuted labels, so that nothing about the truth crosses.
    """
    cls = registry.attacks.get(name)
    world = _world(dataset, null, tuple(sorted(cls.world.items())), name)
    spec = AttackSpec(name, adversary=(world.fed.passive[0].name,))
    return [
        make_view(world.algorithm, world.fed, world.initial, spec, r) for r in range(len(SEEDS))
    ]


def _truths(name: str, dataset: str, null: bool) -> list[Task]:
    cls = registry.attacks.get(name)
    return list(_world(dataset, null, tuple(sorted(cls.world.items())), name).fed.stack.tasks)


def _rngs() -> list[torch.Generator]:
    return [generator(s, "conformance") for s in SEEDS]


def _values(name: str, dataset: str, null: bool, guesses: list[Guess] | None = None) -> list[float]:
    attack: Attack = registry.attacks.create(name)
    views = views_of(name, dataset, null=null)
    guesses = guesses or attack.infer_many(views, _rngs())
    out = []
    for view, guess, task in zip(views, guesses, _truths(name, dataset, null), strict=True):
        rows = view.targets[attack.splits[0]].numpy()
        truth = Truth("label", np.arange(len(task.y)), task.y)
        metric = primary(task.classes)
        (found,) = score(
            guess, truth, rows, classes=task.classes, prior=task.prior.numpy(), metrics=[metric]
        )
        out.append(float(found.value))  # type: ignore[arg-type]
    return out


def attack_finds_the_leak(name: str) -> None:
    """Mean AUC in the leaky world is at least 0.65 (chance is 0.5)."""
    values = _values(name, "leaky", False)
    assert np.mean(values) >= 0.65, f"{name}: AUC {values} in the leaky world"


def attack_is_calm(name: str) -> None:
    """Where nothing about the truth crosses, mean AUC stays within 4 standard errors of 0.5."""
    values = _values(name, "sealed", True)
    task = _truths(name, "sealed", True)[0]
    n = len(task.sets["labelled"])
    positives = float(task.prior[1]) * n
    error = np.sqrt((n + 1) / (12 * positives * (n - positives)) / len(values))
    assert abs(np.mean(values) - 0.5) <= 4 * error, f"{name}: AUC {values} where nothing leaks"


def attack_repeats(name: str) -> None:
    """The same generator seed gives the same guess, and the view is left as it was."""
    attack: Attack = registry.attacks.create(name)
    view = views_of(name)[0]
    before = copy.deepcopy(view.columns[view.party])
    states = {k: copy.deepcopy(m.state_dict()) for k, m in view.models[view.party].items()}
    first = attack.infer(view, generator(7, "conformance"))
    second = attack.infer(view, generator(7, "conformance"))
    assert np.array_equal(first.rows, second.rows), f"{name}: rows differ"
    assert np.array_equal(first.scores, second.scores), f"{name}: scores differ"
    assert torch.equal(before, view.columns[view.party]), f"{name}: changed the columns"
    for k, module in view.models[view.party].items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, states[k][key]), f"{name}: changed the own model {k}.{key}"


def attack_batched_equals_alone(name: str) -> None:
    """Several replicas at once give each replica what it gets alone."""
    attack: Attack = registry.attacks.create(name)
    views = views_of(name)
    together = attack.infer_many(views, _rngs())
    for view, rng, guess in zip(views, _rngs(), together, strict=True):
        alone = attack.infer_many([view], [rng])[0]
        assert np.array_equal(alone.rows, guess.rows)
        np.testing.assert_allclose(alone.scores, guess.scores, rtol=1e-4, atol=1e-5)


def attack_ignores_row_order(name: str) -> None:
    """Shuffled tables and targets change the score by less than 0.02."""
    attack: Attack = registry.attacks.create(name)
    shuffled = []
    for view in views_of(name):
        g = generator(3, "order")
        tables = {}
        for key, t in view.tables.items():
            tables[key] = t.take(torch.randperm(len(t), generator=g))
        targets = {s: r[torch.randperm(len(r), generator=g)] for s, r in view.targets.items()}
        shuffled.append(
            replace(view, tables=MappingProxyType(tables), targets=MappingProxyType(targets))
        )
    before = _values(name, "leaky", False)
    after = _values(name, "leaky", False, attack.infer_many(shuffled, _rngs()))
    assert np.abs(np.mean(before) - np.mean(after)) < 0.02, f"{name}: {before} became {after}"


def attack_never_targets_known_rows(name: str) -> None:
    """No row whose label was granted is among the rows to be guessed."""
    for view in views_of(name):
        known = view.require_known().rows
        for split, rows in view.targets.items():
            assert not torch.isin(known, rows).any(), f"{name}: known rows in {split}"


def attack_misses_its_needs(name: str) -> None:
    """Without any one of its needs the attack raises ThreatModelError and guesses nothing."""
    attack: Attack = registry.attacks.create(name)
    view = views_of(name)[0]
    assert attack.needs, f"{name} declares no needs"
    for need in as_needs(attack.needs):
        if need.what == "known_rows":
            lacking = replace(view, known=None)
        elif need.what == "prior":
            lacking = replace(view, prior=None)
        elif need.what == "model":
            lacking = replace(view, models=MappingProxyType({view.party: {}}))
        elif need.what == "aux_rows":
            lacking = replace(view, aux=None)
        elif need.what == "parameter_gradient":
            lacking = replace(view, updates=MappingProxyType({}))
        else:
            way = "sent" if need.sent else "received"
            kind = need.kind or need.what
            kept = {k: t for k, t in view.tables.items() if k[:2] != (way, kind)}
            lacking = replace(view, tables=MappingProxyType(kept))
        try:
            attack.infer(lacking, generator(0, "conformance"))
        except ThreatModelError:
            continue
        raise AssertionError(f"{name} answers without {need}")


def attack_file_rules(name: str) -> None:
    """One documented file with a source, at most 300 lines, no way to truth, trainer or disk."""
    entry = registry.attacks.entry(name)
    text = entry.path.read_text(encoding="utf-8")
    assert entry.source, f"{entry.path}: the docstring needs a 'Source:' paragraph"
    assert len(text.splitlines()) <= 300, f"{entry.path}: more than 300 lines"
    banned = ("vflsec.audit", "vflsec.engine", "vflsec.federation", "vflsec.task", "vflsec.data")
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names]
            assert node.level == 0, f"{entry.path}: use absolute imports"
        for found in names:
            assert not found.startswith(banned), f"{entry.path}: imports {found}"
            assert not found.endswith(".Truth"), f"{entry.path}: imports Truth"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print"), f"{entry.path}: calls {node.func.id}"


def attack_checks() -> list[Check]:
    """The checks of an attack that infers labels."""
    return [
        attack_finds_the_leak, attack_is_calm, attack_repeats, attack_batched_equals_alone,
        attack_ignores_row_order, attack_never_targets_known_rows, attack_misses_its_needs,
        attack_file_rules,
    ]  # fmt: skip


STRENGTHS = (0.0, 0.5, 2.0)


def _own(policy: Policy, strengths: tuple[float, ...], seeds: tuple[int, ...], dtype: Any) -> Own:
    return Own(
        party="active" if policy.owner != "passive" else "passive1",
        strength=torch.tensor(strengths, dtype=torch.float64),
        rng=Streams(seeds, "policy", dtype=dtype),
        classes=2,
        prior=torch.tensor([[0.7, 0.3]] * len(seeds), dtype=torch.float64),
        facts={"epochs": 3, "batch_size": 16, "labelled": 100, "classes": 2},
    )


def _messages(policy: Policy, dtype: torch.dtype) -> list[Message]:
    out = []
    for kind in sorted(policy.covers):
        tensor = torch.randn(3, 16, 8, generator=generator(0, "m"), dtype=dtype)
        rows = torch.arange(16).expand(3, -1)
        sender = "active" if kind == "gradient" else "passive1"
        receiver = "passive1" if sender == "active" else "active"
        out.append(Message(kind, sender, receiver, tensor, rows, scale=16.0))  # type: ignore[arg-type]
    return out


def _labels() -> Tensor:
    return (torch.rand(3, 16, generator=generator(0, "y")) < 0.3).long()


def _sent(policy: Policy, own: Own, message: Message) -> Tensor:
    labels = _labels()[: len(own.strength)]
    own.labels, own.context = labels, {"logits": torch.zeros(*labels.shape, 2)}
    return policy.outgoing(message, own)


def defense_is_the_identity_at_zero(name: str) -> None:
    """Strength 0 hands on the very same bits, while others in the cohort are treated."""
    policy: Policy = registry.defenses.create(name)
    if not policy.strengths:
        return
    for dtype in (torch.float32, torch.float64):
        own = _own(policy, STRENGTHS, SEEDS, dtype)
        for message in _messages(policy, dtype):
            out = _sent(policy, own, message)
            assert torch.equal(out[0], message.tensor[0]), f"{name} changes {message.kind} at 0"
        if policy.overrides("labels"):
            y = _labels()
            out = policy.labels(y, _own(policy, STRENGTHS, SEEDS, dtype))
            same = (
                torch.equal(out[0], y[0])
                if out.dim() == 2
                else bool((out[0].argmax(1) == y[0]).all())
            )
            assert same, f"{name} changes labels at strength 0"


def defense_keeps_the_form(name: str) -> None:
    """Shape, dtype and device of every covered message stay; the global generator is not used."""
    policy: Policy = registry.defenses.create(name)
    state = torch.random.get_rng_state()
    for dtype in (torch.float32, torch.float64):
        own = _own(policy, STRENGTHS, SEEDS, dtype)
        for message in _messages(policy, dtype):
            out = _sent(policy, own, message)
            assert out.shape == message.tensor.shape
            assert out.dtype == dtype
            assert bool(torch.isfinite(out).all()), f"{name}: not finite"
    assert torch.equal(state, torch.random.get_rng_state()), f"{name} draws from the global stream"


def defense_ignores_company(name: str) -> None:
    """A replica's message is treated alike alone and in company, bit for bit."""
    policy: Policy = registry.defenses.create(name)
    for message in _messages(policy, torch.float64):
        together = _sent(policy, _own(policy, STRENGTHS, SEEDS, torch.float64), message)
        for r in range(3):
            own = _own(policy, STRENGTHS[r : r + 1], SEEDS[r : r + 1], torch.float64)
            own.prior = own.prior[:1] if own.prior is not None else None
            assert message.rows is not None
            alone = replace(message, tensor=message.tensor[r : r + 1], rows=message.rows[r : r + 1])
            own.labels = _labels()[r : r + 1]
            own.context = {"logits": torch.zeros(1, 16, 2)}
            assert torch.equal(policy.outgoing(alone, own)[0], together[r]), f"{name}: replica {r}"


def defense_refuses_what_it_cannot_treat(name: str) -> None:
    """A covered kind with a payload of whole numbers raises PolicyError instead of passing."""
    policy: Policy = registry.defenses.create(name)
    for message in _messages(policy, torch.float32):
        wrong = replace(message, tensor=message.tensor.long())
        try:
            _sent(policy, _own(policy, (1.0,) * 3, SEEDS, torch.float32), wrong)
        except PolicyError:
            continue
        raise AssertionError(f"{name} passes an integer {message.kind} on")


def defense_leaves_other_kinds_alone(name: str) -> None:
    """Kinds that are not covered pass the channel untouched and without the policy's stamp."""
    policy: Policy = registry.defenses.create(name)
    own = _own(policy, (5.0,) * 3, SEEDS, torch.float32)
    channel = Channel({own.party: [Binding(policy, own)]}, Recorder((), 3, 16), Ledger(3))
    other = "passive1" if own.party == "active" else "active"
    for kind in {"embedding", "gradient", "ids", "signal", "state"} - policy.covers:
        x = torch.randn(3, 16, 8, generator=generator(0, "m"))
        out = channel.send(Message(kind, own.party, other, x))  # type: ignore[arg-type]
        assert torch.equal(out, x), f"{name} touches {kind}"


def defense_promises_carefully(name: str) -> None:
    """An epsilon is stated only with an accountant; at strength 0 nothing is promised."""
    policy: Policy = registry.defenses.create(name)
    facts = {"epochs": 3, "batch_size": 16, "labelled": 100, "classes": 2}
    for strength in (0.0, 1.0):
        found = policy.guarantee(strength, facts)
        assert isinstance(found, Guarantee)
        assert (found.epsilon is None) == (found.accountant == "")
        assert found.epsilon is None or (found.epsilon > 0 and strength > 0)
        assert found.covers


def defense_trains(name: str) -> None:
    """In training, strength 0 equals the undefended run bit for bit beside a defended replica."""
    policy: Policy = registry.defenses.create(name)
    algorithm = registry.algorithms.create("splitnn", {"epochs": 3, "batch_size": 32})
    parties = ("active",) if policy.owner == "active" else ("passive1",)
    if policy.owner == "all":
        parties = ("active", "passive1")
    strengths = torch.tensor([0.0, 0.5], dtype=torch.float64)
    with_it = train(
        algorithm, small_stack([0, 0]), [0, 0], {p: [(policy, strengths)] for p in parties}
    )
    without = train(algorithm, small_stack([0, 0]), [0, 0])
    rows = with_it.fed.stack.rows("test")
    a, b = (predict(algorithm, t.fed, rows) for t in (with_it, without))
    assert bool(torch.isfinite(a).all()), f"{name}: training diverged"
    if policy.strengths and not policy.overrides("model"):
        assert torch.equal(a[0], b[0]), f"{name}: strength 0 is not the undefended run"


def defense_file_rules(name: str) -> None:
    """One documented file with a source and at least one hook."""
    entry = registry.defenses.entry(name)
    policy: Policy = registry.defenses.create(name)
    hooks = (
        "columns", "labels", "model", "loss", "penalty", "gradients", "optimizer", "outgoing",
        "incoming", "link",
    )  # fmt: skip
    assert entry.source, f"{entry.path}: the docstring needs a 'Source:' paragraph"
    assert "not stop" in entry.doc, f"{entry.path}: say what it does not stop"
    assert any(policy.overrides(h) for h in hooks), f"{name} does nothing"


def defense_checks() -> list[Check]:
    """The checks of a defense."""
    return [
        defense_is_the_identity_at_zero, defense_keeps_the_form, defense_ignores_company,
        defense_refuses_what_it_cannot_treat, defense_leaves_other_kinds_alone,
        defense_promises_carefully, defense_trains, defense_file_rules,
    ]  # fmt: skip


def _algorithm(name: str) -> tuple[Algorithm, dict[str, Any]]:
    cls = registry.algorithms.get(name)
    settings = dict(cls.world)
    world = settings.pop("task", {})
    known = registry.parameters(cls)
    quick = {"epochs": 3, "batch_size": 32}
    return cls(**{k: v for k, v in quick.items() if k in known} | settings), world


def algorithm_cuts_the_graph(name: str) -> None:
    """No delivered tensor has a grad_fn, and bytes are elements times size."""
    algorithm, world = _algorithm(name)
    stack = small_stack([0, 1], **world)
    fed = Federation.create(stack, [0, 1])
    deliver = fed.channel.send
    sizes: dict[str, int] = {}

    def watched(message: Message, *args: Any, **kwargs: Any) -> Tensor:
        out = deliver(message, *args, **kwargs)
        assert out.grad_fn is None, f"{name}: {message.kind} carries the graph over"
        sizes[message.kind] = out.element_size()
        return out

    fed.channel.send = watched  # type: ignore[method-assign]
    algorithm.build(fed)
    for _ in run_phases(algorithm, fed):
        pass
    for row in fed.channel.ledger.of(0):
        assert row["bytes"] == row["elements"] * sizes[row["kind"]], row


def algorithm_ignores_company(name: str) -> None:
    """A cell alone equals the cell in company bit for bit in float64, noise on."""
    algorithm, world = _algorithm(name)
    iso = registry.defenses.create("iso")
    seeds, strengths = [3, 0, 1, 0, 2], [0.0, 1.0, 2.0, 0.5, 1.0]
    iso_on = {"active": [(iso, torch.tensor(strengths, dtype=torch.float64))]}
    many = train(algorithm, small_stack(seeds, **world), seeds, iso_on)
    for r in (1, 4):
        twins = [seeds[r]] * LEAST
        alone = {"active": [(iso, torch.tensor([strengths[r]] * LEAST, dtype=torch.float64))]}
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
    algorithm, world = _algorithm(name)
    trained = train(algorithm, small_stack([0], **world), [0])
    fed = trained.fed

    def role(party: str) -> str:
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
    cls = registry.algorithms.get(name)
    settings = dict(cls.world)
    world = {"signal": 4.0, **settings.pop("task", {})}
    settings = {k: v for k, v in settings.items() if k not in ("epochs", "pretrain_epochs")}
    quick = {"epochs": 25, "batch_size": 32, "lr": 1e-2}
    known = registry.parameters(cls)
    algorithm = cls(**{k: v for k, v in quick.items() if k in known} | settings)
    trained = train(algorithm, small_stack([0, 1], **world), [0, 1])
    rows = trained.fed.stack.rows("test")
    logits = predict(algorithm, trained.fed, rows)
    assert logits.shape == (2, rows.shape[1], trained.fed.classes)
    truth = torch.stack([t.y for t in trained.fed.stack.tasks])
    right = (logits.argmax(2) == truth.gather(1, rows)).double().mean()
    chance = 1 / trained.fed.classes
    assert float(right) > chance + 0.1, f"{name}: accuracy {float(right):.3f}"


def algorithm_checks() -> list[Check]:
    """The checks of an algorithm."""
    return [
        algorithm_cuts_the_graph, algorithm_ignores_company, algorithm_declares_what_it_sends,
        algorithm_learns,
    ]  # fmt: skip
