"""SDAR: the label party simulates the other party's bottom and decodes the embeddings it receives.

On auxiliary rows, whose columns of the victim it knows, the label party trains four networks:
    e    simulates the victim's bottom. Behind the own, frozen top model and beside the own
         embedding of the row it has to give the right label, and what it makes should pass for
         received embeddings:  CE(top(e(x')), y') + l1 BCE(D_e(e(x'), y'), 1)
    D_e  tells received embeddings (z, y) from simulated ones (e(x'), y')
    d    decodes:  ||d(e(x'), y') - x'||^2 + l2 BCE(D_d(d(z, y), y), 1)
    D_d  tells true columns (x', y') from decoded ones (d(z, y), y)
and then answers d(z_i, y_i) for every row, within the range of the auxiliary columns. It is begun
`starts` times; the one is kept whose (e(x'), y') are nearest to the received (z, y) and answers
(d(z, y), y) to the auxiliary (x', y'), in the sum of both energy distances. Which auxiliary row
belongs to which embedding is not used, so that rows serve that never took part; with rows that did,
embedding_inversion is stronger.

Attacker: the label party, honest but curious, after training. Needs auxiliary rows (`aux_rows`)
with their labels, its own labels, its own models and the received embeddings of the last epoch.
Its controls are regression on own columns, alone and beside its own labels: a decoder that is told
y knows what y tells. Where a third party sends embeddings, these are simulated along.
Known failure cases: many columns on few auxiliary rows (six on 200 gave nothing, two on 400 half of
their variance); without a shape of its own the distribution of columns says nothing of which
direction is which (any rotation of normal columns fits as well), so dense bottoms on such tables
resist; noise on embeddings; a top model that hardly looks at the embedding.
Differences from the paper: several starts, for a single one often ends in a wrong rotation; answers
are kept within the range of what is known, for a decoder of few rows may lead far out of it; the
simulator learns against the top model as it is at the end, not along with the training; all critics
learn at one rate (the published ones are 1e-3 l1 and, for D_d, 5e-9, which leaves it at its start);
l1 is ten times larger, as chosen on made worlds of skewed columns other than those of the tests.

Source: Zhu, Luo, Wu, Jiang, Xiao, Ooi, "Passive inference attacks on split learning via adversarial
regularization", NDSS 2025, arXiv:2310.10483, section IV (l1 0.02, l2 1e-5, 20,000 iterations of 128
rows, Adam 1e-3 and 5e-4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from vflsec.core.party import step
from vflsec.inference.adversary_model import Answers, pick_rows
from vflsec.inference.gradient_replay import by_embedding
from vflsec.nn import optim
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.plugin import Attack, Facts, Guess, ThreatModelError, View, as_global, check, registry

ALIASES = ("simulator_decoder",)
FAMILY = "features"
COMPARED = 1000  # rows by which starts are compared


@registry.attack
@dataclass(frozen=True)
class Sdar(Attack):
    """Hyper-parameters.

    Attributes:
        hidden: widths of the hidden layers of all four networks.
        starts: how often it is begun anew; the one nearest to received and auxiliary rows is kept.
        steps, batch: iterations and their rows; published: 20,000 of 128.
        lr, lr_decoder: Adam of the simulator, and of decoder and critics; published: 1e-3, 5e-4.
        simulate, decode: l1 and l2, weights of the adversarial terms; published: 0.02, 1e-5.
    """

    hidden: tuple[check.Count, ...] = (64,)
    starts: check.Count = 4
    steps: check.Count = 1500
    batch: Annotated[int, check.at_least(2)] = 128
    lr: check.Positive = 3e-3
    lr_decoder: check.Positive = 1e-3
    simulate: check.NonNegative = 0.2
    decode: check.NonNegative = 1e-5
    needs = frozenset({"embedding:last+", "aux_rows", "labels"})
    target: ClassVar[str] = "feature"
    seconds: ClassVar[float] = 20

    def applicable(self, facts: Facts) -> str:
        if facts.label.floating:
            return self.explain_need(f"classes; {facts.label.sentence}")
        return ""

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        each = by_embedding(self, views, rngs)
        if each is not None:
            return each
        first = views[0]
        if "bottom" not in first.models.get(first.party, {}):
            raise ThreatModelError("sdar needs the label party's own models.")
        known = _gather(views)
        simulator, decoder = self._train(views, rngs, known)
        rows, z, y, x, k = known.rows, known.z, known.y, known.x, self.starts
        at, here = (_drawn(rngs, of, COMPARED) for of in (known.aux, rows))
        with torch.no_grad():
            logits = Answers(views, rows)(z * known.sd + known.mean)
            off = -(y * torch.log_softmax(logits, dim=2)).sum(2).mean(1)
            least, most = (of(dim=1, keepdim=True) for of in (x.amin, x.amax))
            answer = decoder(torch.cat([z, y], 2).repeat_interleave(k, 0), train=False).clamp(
                least.repeat_interleave(k, 0), most.repeat_interleave(k, 0)
            )
            made = simulator(x.repeat_interleave(k, 0), train=False)
            far = [
                _measure_distance(known, i // k, made[i], answer[i], at[i // k], here[i // k])
                for i in range(k * len(views))
            ]
        out = []
        for r in range(len(views)):
            tried = far[r * k : (r + 1) * k]
            best = min(range(k), key=tried.__getitem__)
            notes = {"victim": "+".join(first.victims), "distance": round(tried[best], 4),
                     "misfit": round(float(off[r]), 4)}  # fmt: skip
            out.append(Guess(self.target, rows[r], answer[r * k + best], notes=notes))
        return out

    def _train(
        self, views: Sequence[View], rngs: Sequence[torch.Generator], known: _Known
    ) -> tuple[Replicas, Replicas]:
        """The simulator and the decoder of every start, (R x starts) stacked."""
        k, x, z, y, y_aux = self.starts, known.x, known.z, known.y, known.y_aux
        top = Answers([v for v in views for _ in range(k)], known.aux.repeat_interleave(k, 0))
        d, p, c = z.shape[2], x.shape[2], y.shape[2]
        nets = [self._net(rngs, z, of) for of in ((p, d), (d + c, 1), (d + c, p), (p + c, 1))]
        simulator, critic_z, decoder, critic_x = nets
        rates = (self.lr, self.lr_decoder, self.lr_decoder, self.lr_decoder)
        adams = [optim.Adam(n.parameters(), lr=r) for n, r in zip(nets, rates, strict=True)]
        wide, centre = (t.repeat_interleave(k, 0) for t in (known.sd, known.mean))

        def learn(i: int, loss: Tensor) -> None:
            own = nets[i].parameters()
            step(adams[i], own, torch.autograd.grad(loss.sum(), own))

        for _ in range(self.steps):
            at, here = (_drawn(rngs, of, self.batch) for of in (known.aux, known.rows))
            x1, y1, z2, y2 = (
                pick_rows(of, i).repeat_interleave(k, 0)
                for of, i in ((x, at), (y_aux, at), (z, here), (y, here))
            )
            made = simulator(x1)
            logits = top(made * wide + centre, at.repeat_interleave(k, 0))
            fooled = _bce(critic_z(torch.cat([made, y1], 2)), 1.0)
            right = (y1 * torch.log_softmax(logits, dim=2)).sum(2).mean(1)
            learn(0, self.simulate * fooled - right)
            made = simulator(x1).detach()
            learn(1, _bce(critic_z(torch.cat([z2, y2], 2)), 1.0)
                  + _bce(critic_z(torch.cat([made, y1], 2)), 0.0))  # fmt: skip
            error = (decoder(torch.cat([made, y1], 2)) - x1).square().mean((1, 2))
            told = decoder(torch.cat([z2, y2], 2))
            learn(2, error + self.decode * _bce(critic_x(torch.cat([told, y2], 2)), 1.0))
            learn(3, _bce(critic_x(torch.cat([x1, y1], 2)), 1.0)
                  + _bce(critic_x(torch.cat([told.detach(), y2], 2)), 0.0))  # fmt: skip
        return simulator, decoder

    def _net(
        self, rngs: Sequence[torch.Generator], like: Tensor, ends: tuple[int, int]
    ) -> Replicas:
        """One network for each start of each replica, from `ends[0]` to `ends[1]` numbers."""
        made: list[nn.Module] = []
        for g in rngs:
            with as_global(g):
                made += [mlp([ends[0], *self.hidden, ends[1]]) for _ in range(self.starts)]
        return Replicas(made, device=like.device, dtype=like.dtype)


class _Known(NamedTuple):
    """What the label party learns from, (R, ...).

    Attributes:
        rows, z, y: sample ids (R, n) of received embeddings; these, standardised; their labels.
        mean, sd: by which they are, (R, 1, d).
        aux, x, y_aux: sample ids of auxiliary rows, columns of the victim and labels.
    """

    rows: Tensor
    z: Tensor
    y: Tensor
    mean: Tensor
    sd: Tensor
    aux: Tensor
    x: Tensor
    y_aux: Tensor


def _gather(views: Sequence[View]) -> _Known:
    rows = torch.stack([v.targets["train"] for v in views])
    z = torch.stack(
        [v.received("embedding", "last").of_rows(r).flatten(1) for v, r in zip(views, rows)]
    )
    sd, mean = torch.std_mean(z, dim=1, keepdim=True, correction=0)
    z, sd = (z - mean) / sd.clamp_min(1e-6), sd.clamp_min(1e-6)
    granted = [v.require_aux() for v in views]
    aux = torch.stack([r for r, _ in granted])
    x = torch.stack([c for _, c in granted]).to(z)
    labels = torch.stack([v.require_labels() for v in views])
    classes = views[0].facts.classes
    y, y_aux = (hot(labels.gather(1, at), classes).to(z) for at in (rows, aux))
    return _Known(rows, z, y, mean, sd, aux, x, y_aux)


def _measure_distance(
    known: _Known, r: int, made: Tensor, answer: Tensor, at: Tensor, here: Tensor
) -> float:
    """How far one start's simulated embeddings and answers are from received and auxiliary ones.

    `at` and `here` are the auxiliary rows and the answered rows that are compared.
    """
    ends = ((made, known.z[r]), (known.x[r], answer))
    return sum(
        energy_distance(torch.cat([a, known.y_aux[r]], 1)[at], torch.cat([b, known.y[r]], 1)[here])
        for a, b in ends
    )


def hot(labels: Tensor, classes: int) -> Tensor:
    """Labels (...) as rows (..., classes) of one 1, or of zeros for a label of -1."""
    wide = nn.functional.one_hot(labels.clamp_min(0), classes)
    return torch.where(labels.unsqueeze(-1) < 0, 0, wide)


def energy_distance(a: Tensor, b: Tensor) -> float:
    """2 E|a - b| - E|a - a'| - E|b - b'| of two samples (n, d), (m, d); 0 if they are the same."""
    between = torch.cdist(a, b).mean()
    return float(2 * between - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


def _drawn(rngs: Sequence[torch.Generator], of: Tensor, size: int) -> Tensor:
    """Places of `size` rows, drawn with replacement, (R, size)."""
    n = of.shape[1]
    return torch.stack([torch.randint(n, (size,), generator=g) for g in rngs]).to(of.device)


def _bce(logits: Tensor, wanted: float) -> Tensor:
    """Binary cross entropy of logits (R, b, 1) against one answer, (R,)."""
    sign = 1.0 if wanted else -1.0
    return nn.functional.softplus(-sign * logits).mean((1, 2))
