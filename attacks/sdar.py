"""SDAR: the label party simulates the other party's bottom and decodes the embeddings it receives.

On auxiliary rows, whose columns of the victim it knows, the label party trains four networks:
    e    simulates the victim's bottom. Behind the own, frozen top model and beside the own
         embedding of the row it has to give the right label, and what it makes should pass for
         received embeddings:  CE(top(e(x')), y') + l1 BCE(D_e(e(x'), y'), 1)
    D_e  tells received embeddings (z, y) from simulated ones (e(x'), y')
    d    decodes:  ||d(e(x'), y') - x'||^2 + l2 BCE(D_d(d(z, y), y), 1)
    D_d  tells true columns (x', y') from decoded ones (d(z, y), y)
and then answers d(z_i, y_i) for every row. Which auxiliary row belongs to which embedding is not
used, so that rows serve that never took part; with rows that did, embedding_inversion is stronger.

Attacker: the label party, honest but curious, after training. Needs auxiliary rows (`aux_rows`)
with their labels, its own labels, its own models and the received embeddings of the last epoch.
Its controls are regression on own columns, alone and beside its own labels: a decoder that is told
y knows what y tells.
Known failure cases: without a shape of its own the distribution of columns says nothing of which
direction is which (any rotation of normal columns fits as well), so dense bottoms on such tables
resist; noise on embeddings; a top model that hardly looks at the embedding.
Differences from the paper: the simulator learns against the top model as it is at the end, not
along with the training, and all critics learn at one rate (the published rate of D_d, 5e-9, leaves
it at its start).

Source: Zhu, Luo, Wu, Jiang, Xiao, Ooi, "Passive inference attacks on split learning via adversarial
regularization", NDSS 2025, arXiv:2310.10483, section IV (l1 0.02, l2 1e-5, 20,000 iterations of 128
rows, Adam 1e-3 and 5e-4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.nn import optim
from vflsec.nn.joint import Answers, picked
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.party import step
from vflsec.rng import as_global
from vflsec.view import View

ALIASES = ("simulator_decoder",)
FAMILY = "Features of another party"


@registry.attack
@dataclass(frozen=True)
class Sdar(Attack):
    """Hyper-parameters.

    Attributes:
        hidden: widths of the hidden layers of all four networks.
        steps, batch: iterations and their rows; published: 20,000 of 128.
        lr, lr_decoder: Adam of the simulator, and of decoder and critics.
        simulate, decode: l1 and l2, weights of the adversarial terms.
    """

    hidden: tuple[int, ...] = (64,)
    steps: int = 1500
    batch: int = 128
    lr: float = 3e-3
    lr_decoder: float = 1e-3
    simulate: float = 0.02
    decode: float = 1e-5
    needs = frozenset({"embedding:last", "aux_rows", "model", "labels"})
    target: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        for width in self.hidden:
            check.integer("sdar.hidden", width)
        check.integer("sdar.steps", self.steps)
        check.integer("sdar.batch", self.batch, low=2)
        check.positive("sdar.lr", self.lr)
        check.positive("sdar.lr_decoder", self.lr_decoder)
        check.non_negative("sdar.simulate", self.simulate)
        check.non_negative("sdar.decode", self.decode)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        return self.infer_many([view], [rng])[0]

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        first = views[0]
        if "bottom" not in first.models.get(first.party, {}):
            raise ThreatModelError("sdar needs the label party's own models.")
        rows = torch.stack([v.targets["train"] for v in views])  # (R, n)
        z = torch.stack(
            [v.received("embedding", "last").of_rows(r).flatten(1) for v, r in zip(views, rows)]
        )
        sd, mean = torch.std_mean(z, dim=1, keepdim=True, correction=0)
        z, sd = (z - mean) / sd.clamp_min(1e-6), sd.clamp_min(1e-6)
        granted = [v.require_aux() for v in views]
        aux = torch.stack([r for r, _ in granted])
        x = torch.stack([c for _, c in granted]).to(z)
        labels = torch.stack([v.require_labels() for v in views])
        y, y_aux = (_hot(labels.gather(1, at), first.facts.classes).to(z) for at in (rows, aux))
        top = Answers(views, aux)
        d, p, c = z.shape[2], x.shape[2], y.shape[2]
        nets = [self._net(rngs, z, of) for of in ((p, d), (d + c, 1), (d + c, p), (p + c, 1))]
        simulator, critic_z, decoder, critic_x = nets
        rates = (self.lr, self.lr_decoder, self.lr_decoder, self.lr_decoder)
        adams = [optim.Adam(n.parameters(), lr=r) for n, r in zip(nets, rates, strict=True)]

        def learn(k: int, loss: Tensor) -> None:
            own = nets[k].parameters()
            step(adams[k], own, torch.autograd.grad(loss.sum(), own))

        for _ in range(self.steps):
            at, here = (_drawn(rngs, of, self.batch) for of in (aux, rows))
            x1, y1, z2, y2 = picked(x, at), picked(y_aux, at), picked(z, here), picked(y, here)
            made = simulator(x1)
            log_p = torch.log_softmax(top(made * sd + mean, at), dim=2)
            fooled = _bce(critic_z(torch.cat([made, y1], 2)), 1.0)
            learn(0, -(y1 * log_p).sum(2).mean(1) + self.simulate * fooled)
            made = simulator(x1).detach()
            learn(1, _bce(critic_z(torch.cat([z2, y2], 2)), 1.0)
                  + _bce(critic_z(torch.cat([made, y1], 2)), 0.0))  # fmt: skip
            error = (decoder(torch.cat([made, y1], 2)) - x1).square().mean((1, 2))
            told = decoder(torch.cat([z2, y2], 2))
            learn(2, error + self.decode * _bce(critic_x(torch.cat([told, y2], 2)), 1.0))
            learn(3, _bce(critic_x(torch.cat([x1, y1], 2)), 1.0)
                  + _bce(critic_x(torch.cat([told.detach(), y2], 2)), 0.0))  # fmt: skip
        with torch.no_grad():
            answer = decoder(torch.cat([z, y], 2), train=False)
        notes = {"victim": "+".join(first.victims)}
        return [Guess(self.target, rows[r], answer[r], notes=notes) for r in range(len(views))]

    def _net(self, rngs: Sequence[torch.Generator], like: Tensor, ends: tuple[int, int]) -> Replicas:
        """One network for each replica, from `ends[0]` to `ends[1]` numbers."""
        made: list[nn.Module] = []
        for g in rngs:
            with as_global(g):
                made.append(mlp([ends[0], *self.hidden, ends[1]]))
        return Replicas(made, device=like.device, dtype=like.dtype)


def _hot(labels: Tensor, classes: int) -> Tensor:
    hot = nn.functional.one_hot(labels.clamp_min(0), classes)
    return torch.where(labels.unsqueeze(2) < 0, 0, hot)


def _drawn(rngs: Sequence[torch.Generator], of: Tensor, size: int) -> Tensor:
    """Places of `size` rows, drawn with replacement, (R, size)."""
    n = of.shape[1]
    return torch.stack([torch.randint(n, (size,), generator=g) for g in rngs]).to(of.device)


def _bce(logits: Tensor, wanted: float) -> Tensor:
    """Binary cross entropy of logits (R, b, 1) against one answer, (R,)."""
    sign = 1.0 if wanted else -1.0
    return nn.functional.softplus(-sign * logits).mean((1, 2))
