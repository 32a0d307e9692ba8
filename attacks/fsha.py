"""FSHA: gradients that make the other party's bottom an encoder that the attacker can undo.

On q auxiliary rows, whose columns x' of the victim it knows, the label party fixes a pilot encoder
    f~(x') = (x' - mean) / sd V Q
with V the identity, or where the embedding is narrower than the columns their first principal
components, and Q a rotation. Instead of its loss's gradient it sends what leads the victim there:
* ``pairs``: 2 (z_i - f~(x_i)) / m for the m auxiliary rows of the batch, 0 for all others. Then
  ``embedding_inversion`` decodes.
* ``critic``, which is the published attack and does not ask whose embedding is whose: d mean D(z,
  y) / dz, where the critic D minimises, `rounds` times for each message,
      mean D(f~(x'), y') - mean D(z, y) + penalty mean (|dD| - 1)^2  at points between the two.
  After 16, 24, 36, ... messages Q becomes the rotation whose f~(x') is nearest in energy distance
  to the received z. The answer is  mean + sd V Q z_i  with the Q nearest to the last embeddings.

Attacker: a malicious label party, from the first step on. Needs auxiliary rows (`aux_rows`), which
for ``critic`` need not take part; that one, with ``labelled``, needs its own labels too. It alters
every gradient. A top model that reads the label off the columns goes on learning, so utility need
not tell: it falls where only a trained bottom could tell the label.
Known failure cases: embeddings narrower than the columns; noise on embeddings; two embeddings of a
step that are equally wide; a passive party that looks at its gradients (0 for most rows, or they do
not shrink); few steps. Of ``critic`` also columns that look alike from several sides (normal ones,
which no label tells apart: any rotation passes) and many columns on few auxiliary rows. Differences
from the paper: there the pilot is trained along with a decoder, for images, and never turned; the
labels are those of a later attack of this kind; the penalty is 500 and Adam's rate 1e-4, too slow
for the few steps of a table. ``pairs`` is this package's own.

Source: Pasquini, Ateniese, Bernaschi, "Unleashing the tiger: inference attacks on split learning",
CCS 2021, arXiv:2012.02670, section 4; labels beside: Yao et al., "URVFL: undetectable data
reconstruction attack on vertical federated learning", arXiv:2404.19582 (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from vflsec.attacks.embedding_inversion import EmbeddingInversion
from vflsec.attacks.sdar import hot
from vflsec.core.party import step
from vflsec.inference.gradient_replay import by_embedding
from vflsec.inference.orthogonal_alignment import rotate_nearest
from vflsec.nn import optim
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.plugin import (
    Attack,
    Facts,
    Guess,
    Message,
    Own,
    Policy,
    ThreatModelError,
    View,
    as_global,
    check,
    registry,
)

ALIASES = ("hijacking", "feature_space_hijacking")
FAMILY = "features"
FIRST = 16  # messages before the pilot is turned for the first time
OFTEN = 1.5  # it is turned anew after so many times more
KEPT = 500  # of the last embeddings, to which it is turned


@registry.attack
@dataclass(frozen=True)
class Fsha(Attack):
    """Hyper-parameters.

    Attributes:
        use: ``pairs`` or ``critic``. All others are the critic's.
        labelled: whether it sees the label beside the embedding.
        hidden: widths of its hidden layers.
        penalty: on the length of its gradient; published: 500.
        rounds: its steps for each message of the victim.
        lr: of its Adam; published: 1e-4.
    """

    use: Literal["pairs", "critic"] = "pairs"
    labelled: bool = True
    hidden: tuple[check.Count, ...] = (64, 64)
    penalty: check.NonNegative = 1.0
    rounds: check.Count = 3
    lr: check.Positive = 5e-3
    target: ClassVar[str] = "feature"
    seconds: ClassVar[float] = 0.1

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        own = {"labels"} if self.use == "critic" and self.labelled else set()
        return frozenset({"embedding:last+", "aux_rows"} | own)

    def applicable(self, facts: Facts) -> str:
        if facts.label.floating and "labels" in self.needs:
            return self.explain_need(f"classes; {facts.label.sentence}", "Set labelled = false.")
        return ""

    def policy(self) -> Policy:
        return Teach() if self.use == "pairs" else Hijack(self)

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        if self.use == "pairs":
            return EmbeddingInversion().decode(views, rngs, ("last",))
        found = by_embedding(self, views, rngs)
        return found or [self._by_pilot(v, g) for v, g in zip(views, rngs, strict=True)]

    def _by_pilot(self, view: View, rng: torch.Generator) -> Guess:
        rows, facts = view.targets["train"], view.facts
        view.require_aux()
        z = view.received("embedding", "last", facts.active).of_rows(rows).flatten(1)
        widths = {p: d for p, d in facts.widths.items() if p != facts.active}
        if sum(widths.values()) != z.shape[1]:
            raise ThreatModelError("fsha cannot assign embeddings to parties.")
        parts = dict(zip(widths, z.split(list(widths.values()), dim=1), strict=True))
        labels = view.require_labels() if self.labelled else torch.zeros(0)
        classes = facts.classes if self.labelled else 0
        answers = []
        for p, (aux, x) in (view.aux or {}).items():
            pilot = Pilot(view.schema[p].design(x).to(z), parts[p].shape[1])
            told, heard = (labels[at] if classes else None for at in (aux, rows))
            pilot.turn_to(parts[p], told, heard, classes, rng)
            answers.append(pilot.decoded(parts[p]))
        found = torch.cat(answers, dim=1)
        return Guess(self.target, rows, found, notes={"victim": "+".join(view.victims)})


class Pilot:
    """The encoder that a victim is to imitate.

    Args:
        columns: of the victim, on the auxiliary rows, (q, p).
        width: of its embedding.

    Attributes:
        places: what it makes of these rows before it is turned, (q, k), k the smaller width.
        turn: Q (k, k), the identity at first.
    """

    def __init__(self, columns: Tensor, width: int) -> None:
        sd, self.mean = torch.std_mean(columns, dim=0, correction=0)
        self.sd = sd.clamp_min(1e-6)
        scaled = (columns - self.mean) / self.sd
        self.width, k = width, min(width, columns.shape[1])
        self.axes = torch.eye(k).to(columns)
        if k < columns.shape[1]:
            self.axes = torch.linalg.eigh(scaled.T @ scaled).eigenvectors[:, -k:].flip(1)
        self.places = scaled @ self.axes
        self.turn = torch.eye(k).to(columns)

    @property
    def encoded(self) -> Tensor:
        """Its embeddings of the auxiliary rows, (q, d)."""
        made = self.places @ self.turn
        return nn.functional.pad(made, (0, self.width - made.shape[1]))

    def turn_to(
        self, z: Tensor, told: Tensor | None, heard: Tensor | None, classes: int,
        rng: torch.Generator,
    ) -> None:  # fmt: skip
        """Turn to where embeddings (n, d) are nearest, labels (q,) and (n,) beside the two."""
        far = z[:, : len(self.turn)]
        pair = ((self.places, told), (far, heard))
        near, there = ((x, x[:, :0] if y is None else 2 * hot(y, classes).to(x)) for x, y in pair)
        self.turn = rotate_nearest(near, there, self.turn, rng)

    def decoded(self, z: Tensor) -> Tensor:
        """Columns (n, p) of embeddings (n, d)."""
        return z[:, : len(self.turn)] @ self.turn.T @ self.axes.T * self.sd + self.mean


class _Sender(Policy):
    """Remembers what it receives, and answers each victim of which it knows columns otherwise."""

    covers = frozenset({"gradient"})
    owner = "active"
    quantities: ClassVar[bool] = True

    def incoming(self, message: Message, own: Own) -> Tensor:
        if message.kind == "embedding" and message.phase != "predict":
            of = own.memory.setdefault("z", {}).setdefault(message.sender, {})
            of[message.tensor.shape] = message.tensor.detach()  # a step may bring several
        return message.tensor

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g, victim = message.tensor, message.receiver
        z = own.memory.get("z", {}).get(victim, {}).get(g.shape)
        if z is None or message.rows is None or victim not in own.memory["aux"][0][1]:
            return g
        with torch.enable_grad():
            sent = self.pull(z.flatten(2), message.rows, victim, own)
        return own.choose(sent.reshape(g.shape).to(g), g)

    def pull(self, z: Tensor, rows: Tensor, victim: str, own: Own) -> Tensor:
        """What is sent for embeddings (R, b, d) of sample ids (R, b)."""
        raise NotImplementedError("abstract")


@dataclass(frozen=True)
class Teach(_Sender):
    """Sends the way to the pilot's embedding for auxiliary rows, and nothing for others."""

    def pull(self, z: Tensor, rows: Tensor, victim: str, own: Own) -> Tensor:
        goals, of = own.memory.setdefault("goals", {}), (victim, z.shape[2])
        if of not in goals:
            known = [by[victim].to(z) for _, by, _ in own.memory["aux"]]
            goals[of] = [Pilot(x, z.shape[2]).encoded for x in known]
        out = torch.zeros_like(z)
        for r, ((ids, _, _), goal) in enumerate(zip(own.memory["aux"], goals[of], strict=True)):
            here, at = (rows[r].unsqueeze(1) == ids.to(rows.device)).nonzero().unbind(1)
            out[r, here] = 2 * (z[r, here] - goal[at]) / max(len(here), 1)
        return out


@dataclass(frozen=True)
class Hijack(_Sender):
    """Trains a critic on what it receives, and sends what makes the victim please it."""

    attack: Fsha

    def pull(self, z: Tensor, rows: Tensor, victim: str, own: Own) -> Tensor:
        y = own.labels
        if not self.attack.labelled or own.classes < 2 or y is None or y.dim() != 2:
            y = None
        made, of = own.memory.setdefault("critics", {}), (victim, z.shape[2], y is None)
        if of not in made:
            made[of] = _Critic(self.attack, own, victim, z, 0 if y is None else own.classes)
        return made[of].pull(z, y, own)  # type: ignore[no-any-return]


class _Critic:
    """The critic of one victim, and the pilots of the replicas."""

    def __init__(self, of: Fsha, own: Own, victim: str, z: Tensor, classes: int) -> None:
        self.of, self.classes, self.seen, self.turn_at = of, classes, 0, FIRST
        self.pilots = [Pilot(by[victim].to(z), z.shape[2]) for _, by, _ in own.memory["aux"]]
        self.y = torch.stack([y.to(z.device) for _, _, y in own.memory["aux"]])
        self.kept: list[tuple[Tensor, Tensor | None]] = []
        made: list[nn.Module] = []
        for g in own.rng.generators:
            with as_global(g):
                made.append(mlp([z.shape[2] + classes, *of.hidden, 1]))
        self.net = Replicas(made, device=z.device, dtype=z.dtype)
        self.adam = optim.Adam(self.net.parameters(), lr=of.lr, betas=(0.5, 0.9))

    def pull(self, z: Tensor, y: Tensor | None, own: Own) -> Tensor:
        """The critic learns from received embeddings (R, b, d); what leads them to pass."""
        self._turned(z, y, own)
        real = torch.stack([p.encoded for p in self.pilots])
        b, fake = z.shape[1], self._joined(z, y)
        for _ in range(self.of.rounds):
            at = own.rng.integers(real.shape[1], (b,)).to(z.device)
            some = real.gather(1, at.unsqueeze(2).expand(-1, -1, z.shape[2]))
            true = self._joined(some, None if y is None else self.y.gather(1, at))
            share = own.rng.uniform((b, 1)).to(z)
            loss = (self.net(true) - self.net(fake)).mean((1, 2))
            loss = loss + self.of.penalty * self._steepness(share * true + (1 - share) * fake)
            mine = self.net.parameters()
            step(self.adam, mine, torch.autograd.grad(loss.sum(), mine))
        moving = z.clone().requires_grad_()
        told = self.net(self._joined(moving, y)).mean((1, 2)).sum()
        return torch.autograd.grad(told, moving)[0]

    def _turned(self, z: Tensor, y: Tensor | None, own: Own) -> None:
        """Now and then, pilots turn to where the last embeddings are nearest."""
        self.kept = [*self.kept, (z, y)][-max(1, -(-KEPT // z.shape[1])) :]
        self.seen += 1
        if self.seen < self.turn_at:
            return
        self.turn_at = int(self.turn_at * OFTEN)
        wide = torch.cat([of for of, _ in self.kept], 1)
        told = None if y is None else torch.cat([of for _, of in self.kept if of is not None], 1)
        for r, (pilot, g) in enumerate(zip(self.pilots, own.rng.generators, strict=True)):
            mine, heard = (None, None) if told is None else (self.y[r], told[r])
            with torch.no_grad():
                pilot.turn_to(wide[r], mine, heard, self.classes, g)

    def _steepness(self, at: Tensor) -> Tensor:
        """How far the length of the critic's gradient is from 1, squared, (R,)."""
        at = at.detach().requires_grad_()
        slope = torch.autograd.grad(self.net(at).sum(), at, create_graph=True)[0]
        return (slope.square().sum(2).add(1e-12).sqrt() - 1).square().mean(1)

    def _joined(self, z: Tensor, y: Tensor | None) -> Tensor:
        return torch.cat([z, hot(y, self.classes).to(z)], dim=2) if y is not None else z
