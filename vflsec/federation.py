"""The parties of one cohort at work: what an algorithm's step is written against.

All tensors carry the replica axis first. A Federation knows rows, batches, columns, labels, the
channel and the clock; what is computed and sent is the algorithm's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vflsec import check
from vflsec.channel import Binding, Channel, Ledger, Recorder
from vflsec.counts import Counter, Guarded, plain
from vflsec.errors import PolicyError
from vflsec.link import Link
from vflsec.message import Kind, Message
from vflsec.nn.replicas import Replicas
from vflsec.party import Party
from vflsec.poisson import draws, sampled
from vflsec.policy import Own, Policy
from vflsec.rng import Streams, as_global, generator
from vflsec.task import Stack
from vflsec.view import Facts

__all__ = ["Federation", "Pass", "Phase"]


@dataclass(frozen=True)
class Pass:
    """One walk over some rows, in a fresh order every time.

    Attributes:
        name: of the stream that shuffles; passes of one name and seed see the same orders.
        rows: sample ids, (R, n).
        batch_size, step: as in :class:`Phase`.
        smallest: a last batch of fewer rows is left out.
    """

    name: str
    rows: Tensor
    batch_size: int
    step: Callable[[Tensor], None]
    smallest: int = 1


@dataclass
class Phase:
    """One stretch of training.

    Attributes:
        name: of the phase, for example ``train``, ``pretrain``, ``finetune``.
        rows: sample ids to train on, (R, n).
        batch_size, epochs: how; an epoch is one pass over `rows` in a fresh order.
        step: one optimisation step on sample ids (R, b).
        after_epoch: called after each epoch, for example to aggregate; may be None.
        select: True if the best epoch on validation rows is kept.
        select_by: what is best: the lowest ``loss``, or the highest ``auc`` (two classes).
        patience: epochs without a better one before a replica stops; 0 = never.
        audited: True if attacks look at the state after this phase.
        predicts: True if the main task can be evaluated after this phase.
        listeners: passive parties that are told each epoch whether training goes on.
        passes: what an epoch consists of, in order; empty means one pass over `rows` by `step`.
        before: called once before the first epoch, for example to drop modules; may be None.
        drawn: row sets (R, n) from which steps draw further rows, with replacement; for the plan.
    """

    name: str
    rows: Tensor
    batch_size: int
    epochs: int
    step: Callable[[Tensor], None]
    after_epoch: Callable[[int], None] | None = None
    select: bool = False
    select_by: str = "loss"
    patience: int = 0
    audited: bool = True
    predicts: bool = True
    listeners: tuple[str, ...] = ()
    passes: tuple[Pass, ...] = ()
    before: Callable[[], None] | None = None
    drawn: tuple[Tensor, ...] = ()

    def walks(self) -> tuple[Pass, ...]:
        """The passes of an epoch."""
        return self.passes or (Pass(self.name, self.rows, self.batch_size, self.step),)


@dataclass
class Federation:
    """The state of one cohort in training.

    Attributes:
        stack: data of all replicas.
        seeds: (R) base seed of each replica.
        parties: by name, active first.
        channel: the only way between them.
        labels: (R, N) int64 labels the active party trains on, -1 where unknown, or (R, N, C)
            class shares, after its label policies.
        phase, epoch, steps: the clock.
        extra: state of the algorithm.
        batch: sample ids (R, b) of the current step.
        attacked: party whose column policies act at inference too, while an attack is judged.
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
                policy.check_task(task.classes)
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
                    own.uses = Counter(stack.replicas, len(task.y), stack.device)
                party.bindings.append(Binding(policy, own))
            parties[name] = party
        replicas = stack.replicas
        bindings = {name: p.bindings for name, p in parties.items()}
        recorder = recorder or Recorder((), replicas, len(task.y))
        channel = Channel(bindings, recorder, Ledger(replicas))
        labels = stack.labels()
        for task_index, t in enumerate(stack.tasks):
            mask = torch.ones(len(t.y), dtype=torch.bool)
            mask[t.sets["test"]] = False
            hidden = (stack.of == task_index).nonzero().squeeze(1)
            keep = mask.to(labels.device)
            labels[hidden] = torch.where(keep, labels[hidden], -1)
        for b in parties[task.active].bindings:
            if b.policy.overrides("labels"):
                b.own.context = {name: stack.rows(name) for name in ("labelled", "validation")}
                known = labels >= 0 if labels.dim() == 2 else labels.abs().sum(2) > 0
                true = labels.clone()
                labels = b.policy.labels(labels, b.own)
                b.check_off("labels", true, labels)
                if b.own.uses is not None and b.policy.counted == "labels":
                    out = labels >= 0 if labels.dim() == 2 else torch.ones_like(known)
                    b.own.uses.mark(known & out, "release")
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
    def active(self) -> Party:
        """The party that holds the labels."""
        return self.parties[self.stack.first.active]

    @property
    def passive(self) -> list[Party]:
        """The other parties, in order."""
        return [p for p in self.parties.values() if not p.active]

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.stack.first.classes

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
                        module = b.policy.model(module, part, b.own)
                made.append(module)
        stack = Replicas(
            made,
            device=self.stack.device,
            dtype=self.stack.dtype,
            rng=Streams(self.seeds, "module", party, part, dtype=self.stack.dtype),
        )
        owner.modules[part] = stack
        return stack

    def columns(self, party: str, rows: Tensor, *, train: bool = True) -> Tensor:
        """Own input rows (R, b, ...) of a party for ids (R, b), after its column policies."""
        x = self.stack.columns(party, rows)
        if train or self.attacked == party:
            for b in self.parties[party].bindings:
                if b.policy.overrides("columns"):
                    b.own.context = {"rows": rows, "schema": self.stack.first.schema[party]}
                    changed = b.policy.columns(x, b.own)
                    b.check_off("columns", x, changed, self.phase, self.epoch)
                    x = changed
        return x

    def send(
        self,
        kind: Kind,
        sender: str,
        receiver: str,
        tensor: Tensor,
        rows: Tensor | None = None,
        *,
        name: str = "",
        scale: float = 1.0,
        phase: str = "",
        labels: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        """Send one message at the current time; see :meth:`vflsec.channel.Channel.send`.

        Raises:
            PolicyError: a link promised that such a message does not pass in the clear.
        """
        known = {sender, receiver} & self.parties.keys()  # a server need not be a party
        for party in known - {self.active.name}:
            if kind in self.link(party).replaces:
                raise PolicyError(
                    f"{party}: {kind} messages must pass encrypted, but the algorithm sends one in "
                    "the clear: it does not train through Federation.link. Use splitnn."
                )
        message = Message(
            kind, sender, receiver, tensor, rows, phase or self.phase, self.epoch, self.steps,
            name, scale,
        )  # fmt: skip
        return self.channel.send(message, labels, **context)

    def derive(
        self,
        kind: Kind,
        sender: str,
        receiver: str,
        tensor: Tensor,
        rows: Tensor | None = None,
        *,
        scale: float = 1.0,
        phase: str = "",
        own: bool = False,
    ) -> None:
        """Record what `receiver` works out by itself, for example by taking off its own mask.

        Nothing crosses, nothing is counted; `sender` is whose values these are. With `own` it is
        the sender who keeps what it sent encrypted.
        """
        self.channel.derive(
            Message(
                kind, sender, receiver, tensor.detach(), rows, phase or self.phase, self.epoch,
                self.steps, "", scale,
            ),
            own=own,
        )  # fmt: skip

    def treat(
        self, kind: Kind, sender: str, receiver: str, tensor: Tensor, rows: Tensor, phase: str = ""
    ) -> Tensor:
        """A payload after the sender's policies, for a link that sends it in another form."""
        message = Message(
            kind, sender, receiver, tensor, rows, phase or self.phase, self.epoch, self.steps
        )
        return self.channel.treat(message).tensor

    def link(self, party: str) -> Link:
        """The way between a passive party and the active one: plain, or what a policy puts there.

        Raises:
            PolicyError: two policies of the party want to replace it.
        """
        if party not in self._links:
            made = []
            for b in self.parties[party].bindings:
                link = b.policy.link(b.own) if b.policy.overrides("link") else None
                if link is not None:
                    made.append((b.policy.name, link))
            if len(made) > 1:
                raise PolicyError(
                    f"{party}: one policy may replace the way of its embeddings, got "
                    f"{' and '.join(name for name, _ in made)}. Keep one of them."
                )
            self._links[party] = made[0][1] if made else Link(party)
        return self._links[party]

    def targets(self, rows: Tensor) -> Tensor:
        """What the active party trains on for sample ids (R, b): (R, b) or (R, b, C).

        To be handed to :meth:`losses`. Where a policy claims something of the loss alone, any other
        use is noted and ends its claim.
        """
        index = rows if self.labels.dim() == 2 else rows.unsqueeze(-1)
        if self.labels.dim() == 3:
            index = index.expand(-1, -1, self.labels.shape[2])
        y = self.labels.gather(1, index)
        counters = tuple(b.own.uses for b in self._by_loss() if b.own.uses is not None)
        return Guarded.over(y, rows, counters) if counters else y

    def _by_loss(self) -> list[Binding]:
        """The active party's policies that protect labels by the loss alone."""
        return [b for b in self.active.bindings if b.policy.counted == "loss"]

    def loss(self, logits: Tensor, y: Tensor, *, train: bool = True) -> Tensor:
        """Mean of :meth:`losses` over a batch, by replica, (R,)."""
        return self.losses(logits, y, train=train).mean(1)

    def losses(self, logits: Tensor, y: Tensor, *, train: bool = True) -> Tensor:
        """Loss of each row, (R, b): cross entropy, or what the active party's policy says.

        `logits` (R, b, C); `y` (R, b) int64 or (R, b, C) class shares.
        """
        given, y = y, plain(y)
        for b in self.active.bindings:
            if b.policy.overrides("loss"):
                b.own.context = {"train": train}
                rows = b.policy.loss(logits, y, b.own)
                if rows is not None:
                    self._count_loss(given, b, train)
                    return rows
        self._count_loss(given, None, train)
        return cross_entropy(logits, y)

    def _count_loss(self, y: Tensor, by: Binding | None, train: bool) -> None:
        """Labels were used by the loss of `by`, or by plain cross entropy."""
        for b in self._by_loss() if isinstance(y, Guarded) else ():
            assert isinstance(y, Guarded)
            assert b.own.uses is not None
            if b is by:
                b.own.uses.add(y.rows, "" if train else "validation")
            else:
                b.own.uses.passed("another loss than its own uses the labels")

    def decode(self, logits: Tensor) -> Tensor:
        """Logits (R, b, C) as the active party uses them for prediction, after its policies."""
        for b in reversed(self.active.bindings):
            if b.policy.overrides("decode"):
                decoded = b.policy.decode(logits, b.own)
                b.check_off("predictions", logits, decoded, self.phase)
                logits = decoded
        return logits

    def penalty(
        self, party: str, x: Tensor, h: dict[str, Tensor], y: Tensor | None
    ) -> Tensor | None:
        """The sum of a party's penalty terms (R,), or None."""
        total: Tensor | None = None
        for b in self.parties[party].bindings:
            if b.policy.overrides("penalty"):
                term = b.policy.penalty(x, h, y, b.own)
                if term is not None:
                    total = term if total is None else total + term
        return total

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
            yield from draws(walk.rows, shuffled, bound, self.extra[key], self.phase)
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


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of each row, (R, b); `y` (R, b) int64 or (R, b, C) class shares."""
    log_p = torch.log_softmax(logits, dim=-1)
    if y.dim() == 2:
        return -log_p.gather(2, y.unsqueeze(2)).squeeze(2)
    return -(y * log_p).sum(2)
