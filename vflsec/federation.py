"""The parties of one cohort at work: what an algorithm's step is written against.

All tensors carry the replica axis first. A Federation knows rows, batches, columns, labels, the
channel and the clock; what is computed and sent is the algorithm's business. What policies do to
own things is in `hooks`, what leaves a party in `post`, what is planned in `phase`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vflsec import check
from vflsec.binding import Binding
from vflsec.channel import Channel, Recorder
from vflsec.counts import Counter
from vflsec.hooks import Hooks
from vflsec.ledger import Ledger
from vflsec.link import Link
from vflsec.nn.replicas import Replicas
from vflsec.party import Party
from vflsec.phase import Pass, Phase
from vflsec.poisson import draws, sampled
from vflsec.policy import Own, Policy
from vflsec.post import Post
from vflsec.rng import Streams, as_global, generator
from vflsec.task import Stack
from vflsec.view import Facts

__all__ = ["Federation", "Pass", "Phase"]


@dataclass
class Federation(Hooks, Post):
    """The state of one cohort in training.

    Attributes:
        stack: data of all replicas.
        seeds: (R) base seed of each replica.
        parties: by name, active first.
        channel: the only way between them.
        labels: (R, N) int64 labels the active party trains on, -1 where unknown, or (R, N, C)
            class shares, after its label policies; values (R, N, 1) or several labels (R, N, L),
            NaN where unknown.
        phase, epoch, steps: the clock.
        extra: state of the algorithm.
        batch: sample ids (R, b) of the current step.
        attacked: party whose column policies act at inference too, while an attack is judged.
        graphs: makes what captures a step (`vflsec.train.captured`); None where none is asked for.
    """

    stack: Stack
    seeds: tuple[int, ...]
    parties: dict[str, Party]
    channel: Channel
    labels: Tensor
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    phase: str = ""
    epoch: int = 0
    steps: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    batch: Tensor | None = None
    attacked: str = ""
    graphs: Callable[[], Any] | None = None
    _links: dict[str, Link] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        stack: Stack,
        seeds: Sequence[int],
        policies: Mapping[str, Sequence[tuple[Policy, Tensor]]] | None = None,
        recorder: Recorder | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Federation:
        """Set up the parties with their policies.

        Args:
            stack: data of the cohort.
            seeds: base seed of each replica, length R.
            policies: for each party its (policy, strength per replica (R,)) in order.
            recorder: what to keep of the messages; nothing by default.
            facts: public facts for the policies.
        """
        task = stack.first
        policies = policies or {}
        for name in policies:
            check.one_of("the party of a policy", name, task.parties)
        parties: dict[str, Party] = {}
        for name in task.parties:
            active = name == task.active
            party = Party(name, active)
            for i, (policy, strength) in enumerate(policies.get(name, ())):
                policy.check_label(task.classes)
                own = Own(
                    party=name,
                    strength=strength.double().cpu(),
                    rng=Streams(
                        seeds, "policy", name, i, policy.name, device=stack.device,
                        dtype=stack.dtype,
                    ),
                    classes=task.classes if active else 0,
                    prior=stack.priors() if active else None,
                    facts=dict(facts or {}),
                )  # fmt: skip
                if policy.counted:
                    own.uses = Counter(
                        stack.replicas, len(task.y), stack.device, *_told(policy),
                        poisson=policy.poisson,
                    )  # fmt: skip
                party.bindings.append(Binding(policy, own))
            parties[name] = party
        replicas = stack.replicas
        bindings = {name: p.bindings for name, p in parties.items()}
        recorder = recorder or Recorder((), replicas, len(task.y))
        channel = Channel(bindings, recorder, Ledger(replicas))
        labels = _labels(stack, parties[task.active].bindings)
        fed = cls(stack, tuple(seeds), parties, channel, labels)
        for name in recorder.observed:
            parties[name].observer = fed._observer(name)
        return fed

    def _observer(self, party: str) -> Callable[[dict[str, Tensor], dict[str, Tensor]], None]:
        """Records own optimisation steps of `party`."""

        def observe(gradients: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
            if self.batch is not None:
                self.channel.recorder.add_update(
                    party, self.phase, self.epoch, self.steps, self.batch, gradients, weights,
                    self.channel.alive_mask,
                )  # fmt: skip

        return observe

    @property
    def replicas(self) -> int:
        """R."""
        return self.stack.replicas

    @property
    def passive(self) -> list[Party]:
        """The other parties, in order."""
        return [p for p in self.parties.values() if not p.active]

    @property
    def classes(self) -> int:
        """Number of classes C, see :class:`vflsec.task.Task`."""
        return self.stack.first.classes

    @property
    def outputs(self) -> int:
        """How many numbers a prediction has, see :class:`vflsec.task.Task`."""
        return self.stack.first.outputs

    def add(
        self,
        party: str,
        part: str,
        build: Callable[[], nn.Module],
        inputs: Mapping[str, int] | None = None,
    ) -> Replicas:
        """Give a party one module, made once for each replica from that replica's own stream.

        The same seed gives the same initial weights whatever the defenses are. `inputs` says which
        party's embedding fills how many of the module's input columns, in order; policies that
        change modules read it.
        """
        owner = self.parties[party]
        made = []
        for r, seed in enumerate(self.seeds):
            with as_global(generator(seed, "init", party, part)):
                module = build()
                for b in owner.bindings:
                    if b.policy.overrides("model"):
                        b.own.context = {"replica": r, "inputs": dict(inputs or {})}
                        given, module = module, b.policy.model(module, part, b.own)
                        b.acted = b.acted or module is not given
                made.append(module)
        stack = Replicas(
            made,
            device=self.stack.device,
            dtype=self.stack.dtype,
            rng=Streams(
                self.seeds, "module", party, part, device=self.stack.device, dtype=self.stack.dtype
            ),
            products=self.stack.products,
        )
        owner.modules[part] = stack
        return stack

    def batches(self, walk: Pass | Phase) -> Iterator[Tensor]:
        """Sample ids (R, b) of one pass, each replica in its own fresh order."""
        if isinstance(walk, Phase):
            (walk,) = walk.walks()
        n = walk.rows.shape[1]
        key = f"order.{self.phase}.{walk.name}"
        if key not in self.extra:
            self.extra[key] = Streams(self.seeds, "batches", walk.name)
        order = self.extra[key].permutations(n).to(walk.rows.device)
        shuffled = walk.rows.gather(1, order).split(walk.batch_size, dim=1)
        bound = sampled(self.parties.values())
        if bound and walk.batch_size < n:
            key = f"poisson.{self.phase}.{walk.name}"
            if key not in self.extra:
                self.extra[key] = Streams(self.seeds, "poisson", walk.name, dtype=torch.float64)
            coins = self.extra[key]
            yield from draws(walk.rows, shuffled, bound, coins, self.phase, self.epoch)
            return
        for batch in shuffled:
            if batch.shape[1] >= walk.smallest:
                yield batch

    def state(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """A copy of all parties' weights."""
        return {
            name: {part: m.state() for part, m in p.modules.items()}
            for name, p in self.parties.items()
        }

    def load(self, state: dict[str, dict[str, dict[str, Tensor]]], replicas: Tensor) -> None:
        """Put weights back, of the given replicas only."""
        for name, parts in state.items():
            for part, weights in parts.items():
                self.parties[name].modules[part].load(weights, replicas)

    def facts(self, **known: Any) -> Facts:
        """Public facts of the run at this moment."""
        task = self.stack.first
        sends = frozenset(
            (kind, sender, receiver)
            for (_, kind, _, sender, receiver) in self.channel.ledger.entries
        )
        sends |= self.channel.derived
        return Facts(
            phase=self.phase, active=task.active, parties=task.parties, classes=task.classes,
            sends=sends, **known,
        )  # fmt: skip


def _told(policy: Policy) -> tuple[str, ...]:
    """What a policy's counter says of labels that are used past it, if not the usual words."""
    return ("a policy after it computes with labels",) if policy.counted == "outgoing" else ()


def _labels(stack: Stack, bindings: Sequence[Binding]) -> Tensor:
    """What the active party trains on, (R, N) or (R, N, C): no test row, after its policies."""
    labels = stack.labels()
    for task_index, t in enumerate(stack.tasks):
        mask = torch.ones(len(t.y), dtype=torch.bool)
        mask[t.sets["test"]] = False
        hidden = (stack.of == task_index).nonzero().squeeze(1)
        keep = mask.to(labels.device)
        if labels.dim() == 3:
            keep = keep.unsqueeze(1)
        labels[hidden] = torch.where(keep, labels[hidden], t.label.missing)
    for b in bindings:
        if b.policy.overrides("labels"):
            b.own.context = {name: stack.rows(name) for name in ("labelled", "validation")}
            b.own.context["design"] = stack.design
            known = labels >= 0 if labels.dim() == 2 else labels.abs().sum(2) > 0
            true = labels.clone()
            labels, b.acted = b.policy.labels(labels, b.own), True
            b.check_off("labels", true, labels)
            if b.own.uses is not None and b.policy.counted == "labels":
                out = labels >= 0 if labels.dim() == 2 else torch.ones_like(known)
                b.own.uses.mark(known & out, "release")
    return labels
