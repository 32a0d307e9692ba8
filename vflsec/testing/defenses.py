"""The checks of a defense.

PYTEST_DONT_REWRITE: messages say what is wrong; rewritten, pytest would add whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from vflsec.core.channel import Channel, Recorder, check_same_form
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS
from vflsec.core.policy import Guarantee, Own, Policy
from vflsec.core.policy_binding import Binding
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.core.rng import Streams, generator
from vflsec.core.rounds import Rounds
from vflsec.core.traffic_ledger import Ledger
from vflsec.errors import PolicyError
from vflsec.plugins import registry
from vflsec.testing.filled import assert_filled
from vflsec.testing.worlds import SEEDS, Check, Trained, small_stack, train
from vflsec.train.loop import predict
from vflsec.trees.profiles import PROFILES

_QUICK = {"epochs": 3, "batch_size": 32}
_HOOKS = (
    "columns", "labels", "model", "loss", "penalty", "gradients", "optimizer", "outgoing",
    "incoming", "link", "regrow", "shows", "pairs", "sums", "mask", "least_rows",
)  # fmt: skip


def _own(policy: Policy, strengths: tuple[float, ...], seeds: tuple[int, ...], dtype: Any) -> Own:
    return Own(
        party="active" if policy.owner != "passive" else "passive1",
        strength=torch.tensor(strengths, dtype=torch.float64),
        rng=Streams(seeds, "policy", dtype=dtype),
        classes=2,
        prior=torch.tensor([[0.7, 0.3]] * len(seeds), dtype=torch.float64),
        facts=RunFacts(2, 100, 3, 16),
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
    return check_same_form(policy.name, message.tensor, policy.outgoing(message, own))


def defense_is_the_identity_at_zero(name: str) -> None:
    """Strength 0 hands on the very same bits, while others in the cohort are treated."""
    policy: Policy = registry.defenses.create(name)
    if not policy.strengths:
        return
    for dtype in (torch.float32, torch.float64):
        own = _own(policy, policy.trial, SEEDS, dtype)
        for message in _messages(policy, dtype):
            out = _sent(policy, own, message)
            assert torch.equal(out[0], message.tensor[0]), f"{name} changes {message.kind} at 0"
        if policy.overrides("labels"):
            y = _labels()
            out = policy.labels(y, _own(policy, policy.trial, SEEDS, dtype))
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
        own = _own(policy, policy.trial, SEEDS, dtype)
        for message in _messages(policy, dtype):
            out = _sent(policy, own, message)
            assert bool(torch.isfinite(out).all()), f"{name}: {message.kind} is not finite"
    assert torch.equal(state, torch.random.get_rng_state()), f"{name} draws from the global stream"


def defense_ignores_company(name: str) -> None:
    """A replica's message, and its labels, are treated alike alone and in company, bit for bit."""
    policy: Policy = registry.defenses.create(name)

    def alone_as(r: int) -> Own:
        return _own(policy, policy.trial[r : r + 1], SEEDS[r : r + 1], torch.float64)

    if policy.overrides("labels"):
        labels = policy.labels(_labels(), _own(policy, policy.trial, SEEDS, torch.float64))
        for r in range(3):
            found = policy.labels(_labels()[r : r + 1], alone_as(r))[0]
            assert torch.equal(found, labels[r]), f"{name}: labels of replica {r}"
    for message in _messages(policy, torch.float64):
        together = _sent(policy, _own(policy, policy.trial, SEEDS, torch.float64), message)
        for r in range(3):
            own = alone_as(r)
            assert message.rows is not None
            alone = replace(message, tensor=message.tensor[r : r + 1], rows=message.rows[r : r + 1])
            own.labels = _labels()[r : r + 1]
            own.context = {"logits": torch.zeros(1, 16, 2)}
            assert torch.equal(policy.outgoing(alone, own)[0], together[r]), f"{name}: replica {r}"


def defense_refuses_what_it_cannot_treat(name: str) -> None:
    """A covered kind with a payload of whole numbers raises PolicyError instead of passing, and so
    do class shares where labels are treated.
    """
    policy: Policy = registry.defenses.create(name)
    if policy.overrides("labels"):
        shares = torch.rand(3, 16, 2, generator=generator(0, "shares"))
        try:
            policy.labels(shares, _own(policy, policy.trial, SEEDS, torch.float32))
        except PolicyError:
            pass
        else:
            raise AssertionError(f"{name} takes class shares for classes")
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
    facts = RunFacts(2, 100, 3, 16)
    assert policy.guarantee(1.0, facts).epsilon is None, f"{name}: claims what was not counted"
    facts = replace(facts, uses=Uses(counted=3))
    for strength in (0.0, 1.0):
        found = policy.guarantee(strength, facts)
        at = f"{name}: guarantee at strength {strength:g}"
        assert isinstance(found, Guarantee), f"{at} is a {type(found).__name__}"
        epsilon = found.epsilon
        counted = f"{at}: epsilon {epsilon} by the accountant {found.accountant!r}"
        assert (epsilon is None) == (found.accountant == ""), counted
        assert epsilon is None or (epsilon > 0 and strength > 0), counted
        assert found.sentence(), f"{at} says nothing"
        told = found.what and found.neighbours and found.against
        assert epsilon is None or told, f"{at} lacks what, neighbours or against"


@dataclass
class _Sent:
    """What is sent in a training at strengths 0 and the largest tried."""

    ways: set[tuple[str, str, str]] = field(default_factory=set)
    """Kind, sender and receiver of each message."""
    first: set[tuple[str, str]] = field(default_factory=set)
    """Kinds by sender, of which later messages may differ through the model."""
    early: list[str] = field(default_factory=list)
    """Kinds whose first message differs between the two strengths, in order."""
    differs: set[str] = field(default_factory=set)
    """Kinds of which some message differs."""

    def watch(self, message: Message, out: Tensor) -> None:
        """Note a message of networks: trees and regressions send for one cell after the other."""
        self.ways.add((message.kind, message.sender, message.receiver))
        rows = message.rows
        same = rows is None or torch.equal(rows[0], rows[1])  # else the batches are others
        if KINDS[message.kind].is_readable and same and not torch.equal(out[0], out[1]):
            self.differs.add(message.kind)
            if (message.kind, message.sender) not in self.first:
                self.early.append(message.kind)
        self.first.add((message.kind, message.sender))


def _owners(policy: Policy) -> tuple[str, ...]:
    return {"active": ("active",), "passive": ("passive1",)}.get(
        policy.owner, ("active", "passive1")
    )


def _world(policy: Policy) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Name and settings of the algorithm that a defense is tried in."""
    world = dict(policy.world)
    quick = {} if "algorithm" in world else _QUICK
    made = world.pop("algorithm", "splitnn")
    return made, tuple(sorted({**quick, **world}.items()))


def _seen(name: str) -> tuple[Trained, _Sent]:
    cls: Any = registry.defenses.get(name)
    return _train_with(name, tuple(getattr(cls, hook) for hook in _HOOKS))


@lru_cache(maxsize=1)
def _train_with(name: str, _version: tuple[Any, ...]) -> tuple[Trained, _Sent]:
    """What two of the checks look at, trained once for each version of the defense."""
    policy: Policy = registry.defenses.create(name)
    made, settings = _world(policy)
    algorithm = registry.algorithms.create(made, dict(settings))
    strengths = torch.tensor([0.0, max(policy.trial)], dtype=torch.float64)
    sent = _Sent()
    trained = train(
        algorithm, small_stack([0, 0]), [0, 0],
        {party: [(policy, strengths)] for party in _owners(policy)},
        watch=None if isinstance(algorithm, Rounds) else sent.watch,
    )  # fmt: skip
    return trained, sent


@cache
def _predict_without(made: str, settings: tuple[tuple[str, Any], ...]) -> Tensor:
    """What a system without a defense predicts of test rows."""
    stack = small_stack([0, 0])
    trained = train(registry.algorithms.create(made, dict(settings)), stack, [0, 0])
    return predict(trained.algorithm, trained.fed, stack.rows("test"))


def defense_trains(name: str) -> None:
    """In training, strength 0 equals the undefended run bit for bit, and the largest tried not."""
    policy: Policy = registry.defenses.create(name)
    trained, _ = _seen(name)
    a = predict(trained.algorithm, trained.fed, trained.fed.stack.rows("test"))
    b = _predict_without(*_world(policy))
    assert bool(torch.isfinite(a).all()), f"{name}: training diverged"
    if policy.strengths and not policy.overrides("model"):
        assert torch.equal(a[0], b[0]), f"{name}: strength 0 is not the undefended run"
    if policy.strengths:
        most = max(policy.trial)
        assert not torch.equal(a[1], b[1]), f"{name}: strength {most:g} is the undefended run"


def defense_acts_on_what_it_says(name: str) -> None:
    """Of the first messages of a run, the first that differs from the undefended one is of a kind
    that it acts on; in the whole training every such kind differs. What a defense without a
    strength acts on, nobody gets.

    Of trees and regressions, which send for one cell after the other: each kind that it acts on and
    that is sent differs, and one is sent. What shows less of row sets tells of fewer rows in
    just the profiles in which it says that it acts on them.
    """
    policy: Policy = registry.defenses.create(name)
    made, settings = _world(policy)
    if issubclass(registry.algorithms.get(made), Rounds):
        _check_rounds(policy, made, dict(settings))
        return
    _, seen = _seen(name)
    acts = policy.acts_on
    if policy.strengths:
        assert {*seen.early[:1]} <= acts, f"{name}: changes {seen.early[0]}, and does not say so"
        idle = (acts & {kind for kind, *_ in seen.ways}) - seen.differs
        assert not idle, f"{name}: leaves {sorted(idle)} as they are"
    else:
        told = {kind for kind, *ends in seen.ways if {*ends} & {*_owners(policy)}} & acts
        assert not told, f"{name}: {sorted(told)} are sent all the same"


def _check_rounds(policy: Policy, made: str, settings: dict[str, Any]) -> None:
    name, profile = policy.name, getattr(registry.algorithms.create(made, settings), "profile", "")
    without, treated = _list_sent(made, settings), _list_sent(made, settings, policy)
    sent, acts = {*without, *treated}, policy.acts_in(profile)
    assert not policy.acts_on or acts & sent, f"{name}: nothing that it acts on is sent"
    idle = {k for k in acts & sent if _are_same(without.get(k, []), treated.get(k, []))}
    assert not idle, f"{name}: leaves {sorted(idle)} as they are"
    for of in PROFILES if profile and policy.overrides("shows") else ():
        there = {**settings, "profile": of}
        before, after = (
            sum(
                m.rows.shape[1]
                for m, _ in sent.get("partition", [])
                if m.sender == "active" and m.rows is not None
            )
            for sent in (_list_sent(made, there), _list_sent(made, there, policy))
        )
        hides = "partition" in policy.acts_in(of)
        assert hides == (after < before), f"{name}: {before} rows become {after} in {of}"


_Messages = dict[str, list[tuple[Message, Tensor]]]


def _list_sent(made: str, settings: dict[str, Any], policy: Policy | None = None) -> _Messages:
    """Messages of a training undefended or with the policy at the largest strength, by kind."""
    if policy is None:
        return _list_without(made, tuple(sorted(settings.items())))
    strengths = torch.full((2,), max(policy.trial), dtype=torch.float64)
    return _listen(made, settings, {party: [(policy, strengths)] for party in _owners(policy)})


@cache
def _list_without(made: str, settings: tuple[tuple[str, Any], ...]) -> _Messages:
    return _listen(made, dict(settings), {})


def _listen(
    made: str, settings: dict[str, Any], policies: dict[str, list[tuple[Policy, Tensor]]]
) -> _Messages:
    out: _Messages = {}
    train(
        registry.algorithms.create(made, settings), small_stack([0, 0]), [0, 0], policies,
        watch=lambda message, sent: out.setdefault(message.kind, []).append((message, sent[0])),
    )  # fmt: skip
    return out


def _are_same(a: Sequence[tuple[Message, Tensor]], b: Sequence[tuple[Message, Tensor]]) -> bool:
    return len(a) == len(b) and all(torch.equal(x[1], y[1]) for x, y in zip(a, b, strict=True))


def defense_file_rules(name: str) -> None:
    """One documented file with a source and at least one hook."""
    entry = registry.defenses.entry(name)
    policy: Policy = registry.defenses.create(name)
    assert_filled(entry.path)
    assert entry.source, f"{entry.path}: the docstring needs a 'Source:' paragraph"
    assert "not stop" in " ".join(entry.doc.split()), f"{entry.path}: say what it does not stop"
    assert any(policy.overrides(h) for h in _HOOKS), f"{name} does nothing"


def defense_checks() -> list[Check]:
    """The checks of a defense."""
    return [
        defense_is_the_identity_at_zero, defense_keeps_the_form, defense_ignores_company,
        defense_refuses_what_it_cannot_treat, defense_leaves_other_kinds_alone,
        defense_promises_carefully, defense_trains, defense_acts_on_what_it_says,
        defense_file_rules,
    ]  # fmt: skip
