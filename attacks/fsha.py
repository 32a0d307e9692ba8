"""FSHA: gradients that teach the other party's bottom to encode as the attacker decodes.

On auxiliary rows, whose columns of the victim it knows, the label party fixes a pilot encoder
    f~(x') = W (x' - mean) / sd
with W the identity where the embedding has room for all columns, and their principal components
where it has not, so that it can be undone. A critic D learns to tell the pilot's embeddings from
the received ones, and what the victim gets instead of its gradient leads its bottom to pass:
    D minimises  mean D(f~(x'), y') - mean D(z, y) + penalty (|dD| - 1)^2  between the two
    sent:        d mean D(z, y) / dz
Once the victim's embeddings are spread like the pilot's, it answers  mean + sd W^T z_i .

Attacker: a malicious label party, from the first step on. Needs auxiliary rows (`aux_rows`), and
with ``labelled`` (on by default) its own labels. It changes what it attacks: the joint model no
longer learns its task, so whoever looks at the utility sees it.
Known failure cases: columns whose distribution does not say which is which (any rotation of normal
columns passes as well, so their direction is lost); noise on embeddings; few steps, so early
stopping, which the label party would not call; a passive party that watches its gradients.
Differences from the paper: there the pilot is trained along with a decoder, for images; the labels
beside embeddings are those of a later attack of this kind.

Source: Pasquini, Ateniese, Bernaschi, "Unleashing the tiger: inference attacks on split learning",
CCS 2021, arXiv:2012.02670, section 4 (penalty 500, Adam 1e-4); labels beside: Yao et al., "URVFL:
undetectable data reconstruction attack on vertical federated learning", arXiv:2404.19582 (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.message import Message
from vflsec.nn import optim
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.party import step
from vflsec.policy import Own, Policy
from vflsec.rng import as_global
from vflsec.view import View

ALIASES = ("hijacking", "feature_space_hijacking")
FAMILY = "Features of another party"


@registry.attack
@dataclass(frozen=True)
class Fsha(Attack):
    """Hyper-parameters.

    Attributes:
        hidden: widths of the critic's hidden layers.
        penalty: on the length of the critic's gradient; published: 500.
        rounds: steps of the critic for each message of the victim.
        lr: Adam of the critic; published: 1e-4.
        labelled: whether the critic sees the label beside the embedding.
    """

    hidden: tuple[int, ...] = (64, 64)
    penalty: float = 10.0
    rounds: int = 3
    lr: float = 1e-3
    labelled: bool = True
    needs = frozenset({"embedding:last", "aux_rows"})
    target: ClassVar[str] = "feature"
    world: ClassVar[dict[str, Any]] = {"patience": 0}

    def __post_init__(self) -> None:
        for width in self.hidden:
            check.integer("fsha.hidden", width)
        check.non_negative("fsha.penalty", self.penalty)
        check.integer("fsha.rounds", self.rounds)
        check.positive("fsha.lr", self.lr)

    def policy(self) -> Policy:
        return Hijack(tuple(self.hidden), self.penalty, self.rounds, self.lr, self.labelled)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        rows, first = view.targets["train"], view.victims
        z = view.received("embedding", "last").of_rows(rows).flatten(1)
        senders = [p for p in view.facts.parties if p not in view.adversary]
        widths = [view.facts.widths.get(p, z.shape[1]) for p in senders]
        if sum(widths) != z.shape[1]:
            raise ThreatModelError("fsha cannot tell whose part of the embeddings is whose.")
        view.require_aux()
        assert view.aux is not None
        answers = []
        for p, part in zip(senders, z.split(widths, dim=1), strict=True):
            if p in view.aux:
                columns = view.schema[p].design(view.aux[p][1]).to(part)
                answers.append(Pilot.of(columns, part.shape[1]).decoded(part))
        return Guess(
            self.target, rows, torch.cat(answers, dim=1), notes={"victim": "+".join(first)}
        )


@dataclass(frozen=True)
class Pilot:
    """The encoder that the victim is to imitate: `mean` and `sd` (p,), `weight` (p, d)."""

    mean: Tensor
    sd: Tensor
    weight: Tensor

    @classmethod
    def of(cls, columns: Tensor, width: int) -> Pilot:
        """For the victim's columns (q, p) of auxiliary rows, and `width` of its embedding."""
        sd, mean = torch.std_mean(columns, dim=0, correction=0)
        sd = sd.clamp_min(1e-6)
        p = columns.shape[1]
        weight = torch.eye(p, width).to(columns)
        if p > width:
            scaled = (columns - mean) / sd
            weight = torch.linalg.eigh(scaled.T @ scaled).eigenvectors[:, -width:].flip(1)
        return cls(mean, sd, weight)

    def encoded(self, columns: Tensor) -> Tensor:
        """Embeddings (q, d) of columns (q, p)."""
        return (columns - self.mean) / self.sd @ self.weight

    def decoded(self, z: Tensor) -> Tensor:
        """Columns (n, p) of embeddings (n, d)."""
        return z @ self.weight.T * self.sd + self.mean


@dataclass(frozen=True)
class Hijack(Policy):
    """Trains a critic on what it receives, and sends what makes the victim please it."""

    hidden: tuple[int, ...]
    weight: float
    rounds: int
    lr: float
    labelled: bool
    covers = frozenset({"gradient"})
    owner = "active"

    def incoming(self, message: Message, own: Own) -> Tensor:
        if message.kind == "embedding" and message.phase != "predict":
            own.memory.setdefault("z", {})[message.sender] = message.tensor.detach()
        return message.tensor

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g, victim = message.tensor, message.receiver
        z = own.memory.get("z", {}).get(victim)
        if z is None or victim not in own.memory["aux"][0][1] or z.shape != g.shape:
            return g
        y = own.labels if self.labelled else None
        made = own.memory.setdefault("critics", {})
        if victim not in made:
            made[victim] = _Critic(self, own, victim, z.flatten(2), y is not None)
        return own.choose(made[victim].pull(z.flatten(2), y, own).reshape(g.shape).to(g), g)


class _Critic:
    """The critic of one victim, with the pilot's embeddings (R, q, d) of auxiliary rows."""

    def __init__(self, of: Hijack, own: Own, victim: str, z: Tensor, labelled: bool) -> None:
        self.of, self.classes = of, own.classes if labelled else 0
        columns = [by[victim].to(z) for _, by, _ in own.memory["aux"]]
        self.real = torch.stack([Pilot.of(x, z.shape[2]).encoded(x) for x in columns])
        self.y = torch.stack([y.to(z.device) for _, _, y in own.memory["aux"]])
        made: list[nn.Module] = []
        for g in own.rng.generators:
            with as_global(g):
                made.append(mlp([z.shape[2] + self.classes, *of.hidden, 1]))
        self.net = Replicas(made, device=z.device, dtype=z.dtype)
        self.adam = optim.Adam(self.net.parameters(), lr=of.lr, betas=(0.5, 0.9))

    def pull(self, z: Tensor, y: Tensor | None, own: Own) -> Tensor:
        """The critic learns from received embeddings (R, b, d); what leads them to pass."""
        b = z.shape[1]
        fake = self._beside(z, y)
        for _ in range(self.of.rounds):
            at = own.rng.integers(self.real.shape[1], (b,)).to(z.device)
            some = self.real.gather(1, at.unsqueeze(2).expand(-1, -1, z.shape[2]))
            real = self._beside(some, None if y is None else self.y.gather(1, at))
            share = own.rng.uniform((b, 1)).to(z)
            loss = (self.net(real) - self.net(fake)).mean((1, 2))
            loss = loss + self.of.weight * self._steepness(share * real + (1 - share) * fake)
            mine = self.net.parameters()
            step(self.adam, mine, torch.autograd.grad(loss.sum(), mine))
        moving = z.clone().requires_grad_()
        told = self.net(self._beside(moving, y)).mean((1, 2)).sum()
        return torch.autograd.grad(told, moving)[0]

    def _steepness(self, at: Tensor) -> Tensor:
        """How far the length of the critic's gradient is from 1, (R,)."""
        at = at.detach().requires_grad_()
        slope = torch.autograd.grad(self.net(at).sum(), at, create_graph=True)[0]
        return (slope.square().sum(2).add(1e-12).sqrt() - 1).square().mean(1)

    def _beside(self, z: Tensor, y: Tensor | None) -> Tensor:
        if y is None or not self.classes:
            return z
        hot = nn.functional.one_hot(y.clamp_min(0), self.classes).to(z)
        return torch.cat([z, hot], dim=2)
