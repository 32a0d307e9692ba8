"""The parties of one cohort at work: what an algorithm's step is written against.

All tensors carry the replica axis first. A Federation knows rows, batches, columns, labels, the
channel and the clock; what is computed and sent is the algorithm's business. It asks the policies
of a party about what the party owns (columns, labels, loss, predictions), and sends what leaves one
at the current time, through the channel or a link. What is planned is in `phase`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.channel import Channel, Recorder
from vflsec.core.link import Link, WayBack
from vflsec.core.message import Message
from vflsec.core.message_kinds import Kind
from vflsec.core.party import Party
from vflsec.core.phase import Pass, Phase
from vflsec.core.poisson_sampling import draw_batches, find_sampled_policies
from vflsec.core.policy import Own, Policy
from vflsec.core.policy_binding import Binding
from vflsec.core.privacy_usage import Counter, Guarded, RunFacts, lend_labels, mask_silent, unguard
from vflsec.core.rng import Streams, as_global, generator
from vflsec.core.task import Stack
from vflsec.core.traffic_ledger import Ledger
from vflsec.core.view import Facts
from vflsec.errors import PolicyError
from vflsec.nn import manual_backprop
from vflsec.nn.loss import slope
from vflsec.nn.replicas import Replicas

__all__ = ["Federation", "Pass", "Phase", "PlainLink"]


@dataclass
class Federation:
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
        epochs, kept: by phase that has ended, the epochs that each replica trained, and the one
            whose weights it kept, 0 for none; a phase that judges none is not in `kept`.
        encryption: by replica, seconds by operation on ciphertexts.
        extra: state of the algorithm.
        batch: sample ids (R, b) of the current step.
        attacked: party whose column policies act at inference too, while an attack is judged.
        graphs: makes what captures a step (`vflsec.train.cuda_graphs`); None where none is asked
            for.
        audited: names of the phases after which attacks are made.
    """

    stack: Stack
    seeds: tuple[int, ...]
    parties: dict[str, Party]
    channel: Channel
    labels: Tensor
    overrides: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    phase: str = ""
    epoch: int = 0
    steps: int = 0
    epochs: dict[str, list[int]] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)
    encryption: list[dict[str, float]] = field(init=False)
    extra: dict[str, Any] = field(default_factory=dict)
    batch: Tensor | None = None
    attacked: str = ""
    graphs: Callable[[], Any] | None = None
    audited: Sequence[str] = ()
    _links: dict[str, Link[Federation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.encryption = [{} for _ in self.seeds]

    @classmethod
    def create(
        cls,
        stack: Stack,
        seeds: Sequence[int],
        policies: Mapping[str, Sequence[tuple[Policy, Tensor]]] | None = None,
        recorder: Recorder | None = None,
        facts: RunFacts | None = None,
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
                    facts=facts or RunFacts(),
                )  # fmt: skip
                if policy.counted:
                    later = ("a policy after it computes with labels",)
                    own.uses = Counter(
                        stack.replicas, len(task.y), stack.device,
                        *(later if policy.counted == "outgoing" else ()), poisson=policy.poisson,
                    )  # fmt: skip
                party.bindings.append(Binding(policy, own))
            parties[name] = party
        replicas = stack.replicas
        bindings = {name: p.bindings for name, p in parties.items()}
        recorder = recorder or Recorder((), replicas, len(task.y))
        channel = Channel(bindings, recorder, Ledger(replicas))
        labels = _build_training_labels(stack, parties[task.active].bindings)
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
        """Number of classes C, see :class:`vflsec.core.task.Task`."""
        return self.stack.first.classes

    @property
    def outputs(self) -> int:
        """How many numbers a prediction has, see :class:`vflsec.core.task.Task`."""
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

    def draw_anew(self) -> None:
        """Policies and modules draw on from streams of the phase that has ended: where theirs stand
        hangs on how long the replicas beside trained.
        """
        for party in self.parties.values():
            for b in party.bindings:
                b.own.rng = b.own.rng.spawn(self.phase)
            for module in party.modules.values():
                module.rng = module.rng and module.rng.spawn(self.phase)

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
        del order  # as large as all rows, for as long as the pass takes
        bound = find_sampled_policies(self.parties.values())
        if bound and walk.batch_size < n:
            key = f"poisson.{self.phase}.{walk.name}"
            if key not in self.extra:
                self.extra[key] = Streams(self.seeds, "poisson", walk.name, dtype=torch.float64)
            coins = self.extra[key]
            yield from draw_batches(walk.rows, shuffled, bound, coins, self.phase, self.epoch)
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

    @cached_property
    def active(self) -> Party:
        """The party that holds the labels."""
        return self.parties[self.stack.first.active]

    def columns(self, party: str, rows: Tensor, *, train: bool = True) -> Tensor:
        """Own input rows (R, b, ...) of a party for ids (R, b), after its column policies."""
        x = self.stack.columns(party, rows)
        if train or self.attacked == party:
            for b in self.parties[party].bindings:
                if b.policy.overrides("columns"):
                    b.own.context = {"rows": rows, "schema": self.stack.first.schema[party]}
                    hook = partial(b.policy.columns, x, b.own)
                    x = b.treated("columns", x, hook, self.phase, self.epoch)
        return x

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
        silent = self.stack.silent(rows)
        guarded = counters or silent is not None
        return Guarded.over(y, rows, counters, silent) if guarded else y

    def released(self, rows: Tensor, on: Tensor | None = None) -> Tensor:
        """Those of the sample ids (R, n) whose labels no policy holds back, as many by replica.

        Replicas that are not `on` (R,) have as many of their first.
        """
        if not any(b.policy.trainings > 1 for b in self.active.bindings):
            return rows
        held = self.labels.gather(1, rows) < 0
        if on is not None:
            held &= on.unsqueeze(1)
        n = int((~held).sum(1).min())
        return rows.gather(1, held.long().argsort(dim=1, stable=True))[:, :n]

    def _by_loss(self) -> list[Binding]:
        """The active party's policies that protect labels by the loss alone."""
        return [b for b in self.active.bindings if b.policy.counted == "loss"]

    def loss(self, logits: Tensor, y: Tensor, *, train: bool = True) -> Tensor:
        """Mean of :meth:`losses` over a batch, by replica, (R,)."""
        return self.losses(logits, y, train=train).mean(1)

    def losses(self, logits: Tensor, y: Tensor, *, train: bool = True) -> Tensor:
        """Loss of each row, (R, b): cross entropy, or what the active party's policy says.

        `logits` (R, b, C); `y` (R, b) int64 or (R, b, C) class shares. Of a quantity the squared
        error, of several labels the mean of their binary cross entropies.
        """
        given, y = y, unguard(y)
        for b in self.active.bindings:
            if b.policy.overrides("loss"):
                b.own.context = {"train": train}
                rows = b.call("loss", logits, y)
                if rows is not None:
                    b.acted = True
                    self._count_loss(given, b, train)
                    return mask_silent(rows, given)
        self._count_loss(given, None, train)
        return mask_silent(self.stack.first.label.losses(logits, y), given)

    def descend(
        self, logits: Tensor, y: Tensor, terms: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradients of :meth:`loss` and further terms (R,), summed over replicas, of `wanted`."""
        if not manual_backprop.is_noted(logits):
            total = self.loss(logits, y).sum()
            for term in terms:
                total = total + term.sum()
            return list(torch.autograd.grad(total, list(wanted)))
        if y.dim() == 2 and not isinstance(y, Guarded):
            start = slope(logits, y)
        else:
            leaf = logits.detach().requires_grad_()
            (start,) = torch.autograd.grad(self.loss(leaf, y).sum(), leaf)
        grads = list(manual_backprop.slopes(logits, wanted, start))
        for term in terms:
            more = torch.autograd.grad(term.sum(), list(wanted), allow_unused=True)
            grads = [g if m is None else g + m for g, m in zip(grads, more, strict=True)]
        return grads

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
                hook = partial(b.policy.decode, logits, b.own)
                logits = b.treated("predictions", logits, hook, self.phase)
        return logits

    def penalty(
        self, party: str, x: Tensor, h: dict[str, Tensor], y: Tensor | None
    ) -> Tensor | None:
        """The sum of a party's penalty terms (R,), or None."""
        total: Tensor | None = None
        rows = y.rows if isinstance(y, Guarded) else None
        for b in self.parties[party].bindings:
            if b.policy.overrides("penalty"):
                term = b.policy.penalty(x, h, lend_labels(y, rows, b.own.active), b.own)
                if term is not None:
                    b.acted = True
                    total = term if total is None else total + term
        return total

    def message(
        self,
        kind: Kind,
        sender: str,
        receiver: str,
        tensor: Tensor,
        rows: Tensor | None = None,
        *,
        phase: str = "",
        **about: Any,
    ) -> Message:
        """A message at the current time; `about` are further fields of it, such as its name."""
        return Message(
            kind, sender, receiver, tensor, rows, phase or self.phase, self.epoch, self.steps,
            **about,
        )  # fmt: skip

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
        **context: Any,
    ) -> Tensor:
        """Send one message at the current time; see :meth:`deliver`."""
        message = self.message(
            kind, sender, receiver, tensor.detach(), rows, phase=phase, name=name, scale=scale
        )
        return self.deliver(message, **context)

    def deliver(self, message: Message, **context: Any) -> Tensor:
        """Deliver a message; see :meth:`vflsec.core.channel.Channel.send`.

        Raises:
            PolicyError: a link promised that such a message does not pass in the clear.
        """
        active = self.active.name
        for party in (message.sender, message.receiver):
            known = party != active and party in self.parties  # a server need not be a party
            if known and message.kind in self.link(party).replaces:
                what = f"{party}: {message.kind} messages"
                raise PolicyError.must(what, "pass encrypted", "one in the clear", "Use splitnn.")
        return self.channel.send(message, **context)

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
        message = self.message(
            kind, sender, receiver, tensor.detach(), rows, phase=phase, scale=scale
        )
        self.channel.derive(message, own=own)

    def treat(
        self, kind: Kind, sender: str, receiver: str, tensor: Tensor, rows: Tensor, phase: str = ""
    ) -> Tensor:
        """A payload after the sender's policies, for a link that sends it in another form."""
        message = self.message(kind, sender, receiver, tensor, rows, phase=phase)
        return self.channel.treat(message).tensor

    def link(self, party: str) -> Link[Federation]:
        """The way between a passive party and the active one: plain, or what a policy puts there.

        Raises:
            PolicyError: two policies of the party want to replace it.
        """
        if party not in self._links:
            made = []
            for b in self.parties[party].bindings:
                link = b.policy.link(b.own) if b.policy.overrides("link") else None
                if link is not None:
                    b.acted = True
                    made.append((b.policy.name, link))
            if len(made) > 1:
                names = " and ".join(name for name, _ in made)
                raise PolicyError.must(f"{party}: replacements of embeddings", "be one", names)
            self._links[party] = made[0][1] if made else PlainLink(party)
        return self._links[party]


def hide_labels(stack: Stack) -> Tensor:
    """Labels that the active party was given, as of :class:`Stack`, without those of test rows."""
    labels = stack.labels()
    for task_index, t in enumerate(stack.tasks):
        mask = torch.ones(len(t.y), dtype=torch.bool)
        mask[t.sets["test"]] = False
        hidden = (stack.of == task_index).nonzero().squeeze(1)
        keep = mask.to(labels.device)
        if labels.dim() == 3:
            keep = keep.unsqueeze(1)
        labels[hidden] = torch.where(keep, labels[hidden], t.label.missing)
    return labels


def collect_context(stack: Stack) -> dict[str, Any]:
    """What a policy has at hand when it treats labels (`Own.context`)."""
    rows = {name: stack.rows(name) for name in ("labelled", "validation")}
    return {**rows, "design": stack.design}


def _build_training_labels(stack: Stack, bindings: Sequence[Binding]) -> Tensor:
    """What the active party trains on, (R, N) or (R, N, C): no test row, after its policies."""
    labels = hide_labels(stack)
    for b in bindings:
        if b.policy.overrides("labels"):
            b.own.context = collect_context(stack)
            known = labels >= 0 if labels.dim() == 2 else labels.abs().sum(2) > 0
            true = labels.clone()
            labels, b.acted = b.policy.labels(labels, b.own), True
            b.check_off("labels", true, labels)
            if b.own.uses is not None and b.policy.counted == "labels":
                out = labels >= 0 if labels.dim() == 2 else torch.ones_like(known)
                b.own.uses.mark(known & out, "release")
    return labels


class PlainLink(Link[Federation]):
    """The plain way: the embedding is one message, its gradient another."""

    def up(self, fed: Federation, z: Tensor, rows: Tensor, *, phase: str = "") -> Tensor:
        return fed.send("embedding", self.party, fed.active.name, z, rows, phase=phase)

    def down(self, fed: Federation, way: WayBack) -> Tensor | None:
        z, gradient, penalty, rows, y, logits, x = way
        delivered = fed.send(
            "gradient", fed.active.name, self.party, gradient, rows, scale=float(rows.shape[1]),
            labels=y, logits=logits,
        )  # fmt: skip
        fed.parties[self.party].continue_backward(z, delivered, penalty, x=x, ids=rows)
        return delivered
