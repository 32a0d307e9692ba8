"""FALSE-VFL: a deep latent variable model of all columns, then a predictor on its latents.

A row of which a party has no record is a row with a missing block. The model is z -> h -> x, y:
z ~ N(0, I), p(h|z) Gaussian, p(x^k|h) for every party's columns, p(y|h). Party k has an encoder
(its bottom) and a decoder p(x^k|h); the active party has those of its own columns, q(z|h), p(h|z)
and p(y|h) (`top`) as well. From the parties S that have the row

    q(h|x^S) = N(mean of mu_k, (sum of 1 / v_k)^-1), k in S,  of q(h|x^k) = N(mu_k, v_k).

With h_l ~ q(h|x^S), z_l ~ q(z|h_l), l = 1..kappa, and the importance ratios
r_l = prod_S p(x^k|h_l) p(h_l|z_l) p(z_l) / (q(h_l|x^S) q(z_l|h_l)):

1. ``pretrain``, without labels: log(mean of r_l) is maximised on all rows, the aligned ones with
   all their blocks and every party's other rows with its own block.
2. ``train``: all of that is frozen. The top learns on labelled rows, the active party's other ones
   too, from the loss of log sum_l w_l p(y|h_l), w_l = r_l / sum of r. Its gradient is that of
   the bound log(mean of r_l p(y|h_l)), of which the rest is constant. The same sum answers at
   inference, where any parties may be `absent`.

Messages a step and passive party that has the rows: (mu_k, v_k) up, the samples h_l down, the kappa
numbers log p(x^k|h_l) up; inference sends the same. Pre-training sends the gradient of each of
these back the way it came. These come from columns alone: no message tells a label, but for when
early stopping ends training. With `tune_encoders` stage 2 trains all encoders by that bound, and
the gradients of labelled rows tell labels as those of FedSplitNN do. In return a passive party gets
samples of what all others' columns say of a row, from which `embedding_inversion` reads these
columns; `embedding_noise` of the active party covers that, and `iso` on gradients does not.
Encrypted layers do not go with it: means, variances and samples are combined in the clear.

Source: Hong, Park, Hwang, "Deep latent variable model based vertical federated learning with
flexible alignment and labeling scenarios", ICLR 2026, arXiv:2505.11035, FALSE-VFL-I (missing at
random) with two latent layers. Only summaries of the paper were at hand. They say that stage 2
trains p(y|h) alone; of FALSE-VFL-II, which models why a block is missing, they give no formula, so
it is not built. Ours are the networks, their widths, the floor of variances, normal densities of
numbers and categorical ones of codes (at most 64 a column), kappa, the length of pre-training,
`tune_encoders`, and that a gradient crosses for every message. A row counts as one of all parties
or of each alone. At inference all rows share their noise, so that a row's answer is a function of
the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from vflsec.algorithms._any_parties import AnyParties
from vflsec.core import check
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.link import WayBack
from vflsec.core.party import Party
from vflsec.core.rng import Streams
from vflsec.core.view import Facts, Schema
from vflsec.errors import PolicyError
from vflsec.nn.models import mlp
from vflsec.plugins import registry

ALIASES = ("false_vfl",)
FLOOR = 1e-2
"""The least variance of any normal distribution: columns have a variance of about 1."""

GENERATIVE = ("decoder", "generator")
"""Whose weights stay as pre-training left them."""


@dataclass
class Samples:
    """What an exchange on a batch leaves at the parties.

    Attributes:
        rows: sample ids (R, b).
        h: samples (R, b, kappa, d) at the active party; there: each passive party's copy of them,
            (R, b, kappa d).
        ratios: log r_l, (R, b, kappa).
        x, sent, got: own input rows, what was made of them (R, b, 2d), and what the active party
            has of that, by party.
        told, heard: log p(x^k|h_l) (R, b, kappa), at the passive party and at the active one.
    """

    rows: Tensor
    h: Tensor
    ratios: Tensor
    x: dict[str, Tensor]
    sent: dict[str, Tensor]
    got: dict[str, Tensor]
    there: dict[str, Tensor] = field(default_factory=dict)
    told: dict[str, Tensor] = field(default_factory=dict)
    heard: dict[str, Tensor] = field(default_factory=dict)

    def bound(self) -> Tensor:
        """log(mean of r_l) of every row, (R, b)."""
        return self.ratios.logsumexp(2) - math.log(self.ratios.shape[2])


@registry.algorithm
@dataclass(frozen=True)
class FalseVfl(AnyParties):
    """Hyper-parameters beside those of FedSplitNN.

    Attributes:
        cut: d, numbers in h; a party sends twice as many.
        top: of p(y|h).
        latent: numbers in z.
        samples: kappa, of every row and step, and of an answer.
        noise: standard deviation of a number given h, in that of its column.
        pretrain_epochs: epochs of stage 1; 0 leaves it out.
        pretrain_lr: of stage 1.
        tune_encoders: True trains all encoders on labels too, in stage 2.
    """

    top: tuple[check.Count, ...] = (64,)
    latent: check.Count = 16
    samples: check.Count = 5
    noise: check.Positive = 0.1
    pretrain_epochs: check.Whole = 100
    pretrain_lr: check.Positive = 1e-3
    tune_encoders: bool = False

    quantities: ClassVar[bool] = False
    sends: ClassVar[frozenset[tuple[str, str, str]]] = AnyParties.sends | {
        ("embedding", "active", "passive"),
        ("score", "passive", "active"),
        ("gradient", "passive", "active"),
    }
    world = {"task": {"unaligned": 40}, "pretrain_epochs": 4}

    def width(self, party: str, classes: int) -> int:
        return 2 * super().width(party, classes)

    def _top(self, fused: int, classes: int) -> Callable[[], nn.Module]:
        return super()._top(fused // 2, classes)

    def build(self, fed: Federation) -> None:
        active, names = fed.active, [p.name for p in self.holders(fed)]
        d = self.width(names[0], fed.outputs) // 2
        for b in active.bindings:
            if b.policy.overrides("penalty"):
                raise PolicyError(
                    f"{self.name}: {b.policy.name} presses on embeddings by labels, which these "
                    "are not trained on. Leave the defense out, or take splitnn."
                )
        for name in names:
            if name != active.name and fed.link(name).width(2 * d) != 2 * d:
                raise PolicyError(
                    f"{self.name}: means and variances of {name} are combined in the clear. Leave "
                    "he_embedding out, or take splitnn."
                )
        super().build(fed)
        for name in names:
            numbers, codes = parts_of(fed.stack.first.schema[name])
            sizes = [d, *reversed(self.hidden), numbers + sum(codes)]
            fed.add(name, "decoder", partial(mlp, sizes))
        for part, sizes in (("encoder", [d, self.latent]), ("generator", [self.latent, d])):
            fed.add(active.name, part, partial(mlp, [sizes[0], *self.hidden, 2 * sizes[1]]))
        self._restart(fed, self.pretrain_lr)
        fed.extra["noise"] = self._noise(fed, "noise")

    def _noise(self, fed: Federation, name: str) -> Streams:
        stack = fed.stack
        return Streams(fed.seeds, self.name, name, device=stack.device, dtype=stack.dtype)

    def _restart(self, fed: Federation, lr: float) -> None:
        for party in fed.parties.values():
            party.start(self.optimizer, lr, self.weight_decay, embedding_l2=self.embedding_l2)

    def phases(self, fed: Federation) -> list[Phase]:
        (train,) = super().phases(fed)
        train = replace(train, before=partial(self._freeze, fed))
        if not self.pretrain_epochs:
            return [train]
        aligned, holders = fed.stack.rows("aligned"), self.holders(fed)
        every = [
            Pass(f"pretrain:{p.name}", rows, self.batch_size, partial(self.explain, fed, [p]))
            for p in holders
            if (rows := fed.stack.unaligned(p.name)).shape[1]
        ]
        every.append(Pass("pretrain", aligned, self.batch_size, partial(self.pretrain_step, fed)))
        first = Phase(
            "pretrain", aligned, self.batch_size, self.pretrain_epochs,
            partial(self.pretrain_step, fed), passes=tuple(every), predicts=False,
        )  # fmt: skip
        return [first, train]

    def _freeze(self, fed: Federation) -> None:
        """Before stage 2: what it does not train is a constant from here on."""
        for party in fed.parties.values():
            for part, module in party.modules.items():
                if part in GENERATIVE:
                    for p in module.parameters():
                        p.requires_grad_(False)
        self._restart(fed, self.lr)

    # The exchange of a batch.

    def sample(
        self,
        fed: Federation,
        holders: Sequence[Party],
        rows: Tensor,
        *,
        graph: bool,
        phase: str = "",
    ) -> Samples:
        """Draw h and z for rows (R, b) that the `holders` have, and weigh them.

        Args:
            graph: keep the graphs that :meth:`learn` needs; modules then are in training mode.
            phase: ``predict``, or '' in training.
        """
        active, x, sent, got = fed.active, {}, {}, {}
        for party in holders:
            name = party.name
            x[name] = fed.columns(name, rows, train=not phase)
            got[name] = party.modules["bottom"](x[name], train=graph)
            if not party.active:
                sent[name] = got[name]
                got[name] = fed.link(name).up(fed, sent[name], rows, phase=phase)
                got[name].requires_grad_(graph)
        mean, variance = (v.unsqueeze(2) for v in fuse(list(got.values())))  # (R, b, 1, d)
        noise = self._noise(fed, "answers") if phase else fed.extra["noise"]
        shape = (1 if phase else rows.shape[1], self.samples)
        h = mean + variance.sqrt() * noise.normal((*shape, mean.shape[3]))
        of_z = self._run(active, "encoder", h, graph)
        z = of_z[0] + of_z[1].sqrt() * noise.normal((*shape, self.latent))
        prior = torch.zeros_like(z), torch.ones_like(z)
        ratios = log_normal(z, *prior) - log_normal(z, *of_z) - log_normal(h, mean, variance)
        ratios = ratios + log_normal(h, *self._run(active, "generator", z, graph))
        made = Samples(rows, h, ratios, x, sent, got)
        for party in holders:
            made.ratios = made.ratios + self._score(fed, party, made, graph=graph, phase=phase)
        return made

    @staticmethod
    def _run(party: Party, part: str, h: Tensor, graph: bool) -> tuple[Tensor, Tensor]:
        """Means and variances (R, b, kappa, n) that a module makes of samples."""
        out = party.modules[part](h.flatten(1, 2), train=graph).unflatten(1, h.shape[1:3])
        return moments(out)

    def _score(
        self, fed: Federation, party: Party, made: Samples, *, graph: bool, phase: str
    ) -> Tensor:
        """log p(x^k|h_l) (R, b, kappa) of a party's own columns, as the active party has it."""
        name, rows, h = party.name, made.rows, made.h
        if not party.active:
            copy = fed.send(
                "embedding", fed.active.name, name, h.flatten(2), rows, name="latent", phase=phase
            )
            made.there[name] = copy.requires_grad_(graph)
            h = copy.unflatten(2, h.shape[2:])
        out = party.modules["decoder"](h.flatten(1, 2), train=graph).unflatten(1, h.shape[1:3])
        score = log_density(fed.stack.first.schema[name], made.x[name], out, self.noise)
        if party.active:
            return score
        made.told[name] = score
        heard = fed.send("score", name, fed.active.name, score, rows, phase=phase)
        made.heard[name] = heard.requires_grad_(graph)
        return made.heard[name]

    def learn(
        self,
        fed: Federation,
        made: Samples,
        total: Tensor,
        parts: Sequence[str],
        y: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> None:
        """One update of all parties that were there, down the slope of `total` (R,).

        Args:
            parts: the active party's modules that are updated.
            y, logits: of the rows, where labels are in `total`.
        """
        active, rows = fed.active, made.rows
        names, scale = list(made.sent), float(rows.shape[1])
        slopes = torch.autograd.grad(
            total.sum(), [made.heard[n] for n in names], retain_graph=True
        ) if names else ()  # fmt: skip
        terms, back = {}, torch.zeros_like(made.h)
        for name, slope in zip(names, slopes, strict=True):
            by = fed.send(
                "gradient", active.name, name, slope, rows, name="score", scale=scale, labels=y,
                logits=logits,
            )  # fmt: skip
            own = (made.told[name] * by).flatten(1).sum(1)
            (there,) = torch.autograd.grad(own.sum(), made.there[name], retain_graph=True)
            penalty = fed.penalty(name, made.x[name], {name: made.sent[name]}, None)
            terms[name] = own if penalty is None else own + penalty
            there = fed.send("gradient", name, active.name, there, rows, name="latent", scale=scale)
            back = back + there.unflatten(2, back.shape[2:])
        mine, got = active.parameters(parts), [made.got[n] for n in names]
        ends: list[Tensor] = [total.sum(), made.h]
        grads = torch.autograd.grad(ends, [*mine, *got], [torch.ones_like(ends[0]), back])
        for name, gradient in zip(names, grads[len(mine) :], strict=True):
            way = WayBack(made.sent[name], gradient, terms[name], rows, y, logits, made.x[name])
            fed.link(name).down(fed, way)
        active.update(grads[: len(mine)], parts)

    # Stage 1.

    def explain(self, fed: Federation, holders: Sequence[Party], rows: Tensor) -> None:
        """One update on rows (R, b) by what their columns say, for those who have them."""
        made = self.sample(fed, holders, rows, graph=True)
        own = ("bottom", "decoder") if fed.active in holders else ()
        self.learn(fed, made, -made.bound().mean(1), (*own, "encoder", "generator"))

    def pretrain_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of all parties on aligned rows (R, b)."""
        self._announce(fed, rows)
        self.explain(fed, self.holders(fed), rows)

    def _announce(self, fed: Federation, rows: Tensor) -> None:
        for party in self.passive(fed):
            fed.send("ids", fed.active.name, party.name, rows, rows, name="batch")

    # Stage 2.

    def step(self, fed: Federation, rows: Tensor) -> None:
        self._announce(fed, rows)
        self._supervise(fed, self.holders(fed), rows)

    def own_step(self, fed: Federation, rows: Tensor) -> None:
        self._supervise(fed, [fed.active], rows)

    def _supervise(self, fed: Federation, holders: Sequence[Party], rows: Tensor) -> None:
        with torch.set_grad_enabled(self.tune_encoders):
            made = self.sample(fed, holders, rows, graph=self.tune_encoders)
        logits, y = self.answer(fed, made, train=True), fed.targets(rows)
        total = fed.loss(logits, y)
        if self.tune_encoders:
            own = ("bottom",) if fed.active in holders else ()
            total = total - made.bound().mean(1)
            self.learn(fed, made, total, (*own, "encoder", "top"), y, logits.detach())
            return
        grads = torch.autograd.grad(total.sum(), fed.active.parameters(("top",)))
        fed.active.update(grads, ("top",))

    def answer(self, fed: Federation, made: Samples, *, train: bool) -> Tensor:
        """log sum_l w_l p(y|h_l) of every class, (R, b, C)."""
        logits = fed.active.modules["top"](made.h.flatten(1, 2), train=train)
        log_p = logits.log_softmax(-1).unflatten(1, made.h.shape[1:3])
        return (made.ratios.log_softmax(2).unsqueeze(3) + log_p).logsumexp(2)

    def infer(self, fed: Federation, rows: Tensor) -> Tensor:
        made = self.sample(fed, self.present(fed), rows, graph=False, phase="predict")
        return self.answer(fed, made, train=False)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        facts = super().planned_facts(active, parties, classes)
        return replace(facts, extra={**facts.extra, "top_input": "samples"})

    def facts(self, fed: Federation) -> Facts:
        facts = super().facts(fed)
        return replace(facts, epochs=self.pretrain_epochs) if fed.phase == "pretrain" else facts


def moments(out: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (..., n) that a network's last 2n numbers stand for."""
    mean, raw = out.chunk(2, -1)
    return mean, softplus(raw) + FLOOR


def fuse(every: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance (R, b, d) of q(h|x^S) from what each party of S sent, (R, b, 2d)."""
    means, variances = zip(*map(moments, every), strict=True)
    return torch.stack(means).mean(0), 1 / torch.stack([1 / v for v in variances]).sum(0)


def log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Log density of independent normal numbers, summed over the last axis."""
    square = (x - mean).square() / variance
    return -0.5 * (square + variance.log() + math.log(2 * math.pi)).sum(-1)


def parts_of(schema: Schema) -> tuple[int, list[int]]:
    """How many numbers, and how many codes of each category, :meth:`Schema.design` has."""
    places = schema.design_places()
    codes = [places.count(i) for i in schema.categorical]
    return len(places) - sum(codes), codes


def log_density(schema: Schema, x: Tensor, out: Tensor, noise: float) -> Tensor:
    """log p(x|h) (R, b, kappa) of rows x (R, b, ...), of what a decoder makes of samples,
    (R, b, kappa, n): means of numbers, whose standard deviation is `noise`, then logits of codes.
    """
    numbers, codes = parts_of(schema)
    value = schema.design(x.flatten(0, 1)).unflatten(0, x.shape[:2]).unsqueeze(2)
    mean = out[..., :numbers]
    found = log_normal(value[..., :numbers], mean, torch.full_like(mean, noise**2))
    hot, logits = value[..., numbers:].split(codes, -1), out[..., numbers:].split(codes, -1)
    for one, of in zip(hot, logits, strict=True):
        found = found + (one * of.log_softmax(-1)).sum(-1)
    return found
