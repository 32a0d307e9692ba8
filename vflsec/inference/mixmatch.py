"""MixMatch: fitting a head to a few labelled and many unlabelled rows.

One step draws b labelled rows with one-hot targets and b unlabelled ones whose targets are the
model's own class shares, sharpened: p_c^(1/T) / sum. All 2b rows are mixed with a permutation of
themselves, l x + (1-l) x' and likewise their targets, l = max(l', 1-l'), l' ~ Beta(a, a). The loss
is the soft cross entropy of the labelled half plus w (t / steps) times the mean squared difference
of class shares in the unlabelled half. Weights are averaged exponentially, and the average answers.

Both halves go through the model as one batch, so that batch normalisation sees mixed batches
without the interleaving of implementations that pass the halves one after the other. The averaging
starts with a shorter memory, min(decay, (1+t)/(10+t)), so that short runs forget where they began.

Source: Berthelot, Carlini, Goodfellow, Papernot, Oliver, Raffel, "MixMatch: A holistic approach to
semi-supervised learning", NeurIPS 2019, arXiv:1905.02249, algorithm 1; the settings are those of Fu
et al., "Label inference attacks against vertical federated learning", USENIX Security 2022, whose
published code makes one view of each unlabelled row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.party import step
from vflsec.core.rng import as_global
from vflsec.core.view import Known
from vflsec.inference.completion import Fitted, Problem, assign_folds
from vflsec.inference.inference_heads import compute_answers, make_fitted
from vflsec.nn import optim
from vflsec.nn.flat_parameters import find_blocks
from vflsec.nn.loss import log_shares, through
from vflsec.nn.replicas import Replicas
from vflsec.nn.rows import widen


@dataclass(frozen=True)
class MixMatch:
    """Settings. The published ones, except that they take 1024 iterations and 5 to 25 epochs.

    Attributes:
        temperature: T of the sharpening; 1 leaves shares as they are.
        alpha: of the Beta distribution of mixing weights.
        weight: w, final weight of the unlabelled half.
        batch: b, rows of each half.
        epochs, iterations: steps = epochs x iterations.
        lr: of Adam.
        decay: of the exponential average of weights; 0 answers with the last weights.
        shrink: weights are multiplied by 1 - shrink x lr after each step.
        depth: blocks of batch normalisation, ReLU and a linear layer in the head.
    """

    temperature: check.Positive = 0.8
    alpha: check.Positive = 0.75
    weight: check.NonNegative = 50.0
    batch: check.Count = 16
    epochs: check.Count = 5
    iterations: check.Count = 100
    lr: check.Positive = 2e-3
    decay: check.BelowOne = 0.999
    shrink: check.NonNegative = 0.02
    depth: check.Count = 1

    name: ClassVar[str] = "mixmatch"

    def __post_init__(self) -> None:
        check.fields(self)

    @property
    def steps(self) -> int:
        """Optimisation steps in all."""
        return self.epochs * self.iterations


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """Class shares (..., C) raised to 1/T and normalised."""
    q = p ** (1 / temperature)
    return q / q.sum(-1, keepdim=True)


def mix(x: Tensor, at: Tensor, weight: Tensor) -> Tensor:
    """weight x + (1 - weight) x' for rows (R, b, ...) and weight (R,); `at` (R, b) says which of
    all R b rows are x'.
    """
    w = widen(weight, x).to(x)
    return (w * x).add_((1 - w) * _taken(x.flatten(0, 1), at))


def _taken(rows: Tensor, at: Tensor) -> Tensor:
    """The rows (R, b, ...) of (n, ...) that `at` (R, b) names."""
    return rows.index_select(0, at.reshape(-1)).reshape(*at.shape, *rows.shape[1:])


def make_head(width: int, classes: int, depth: int) -> nn.Sequential:
    """`depth` blocks of batch normalisation, ReLU, linear; the last to `classes` numbers."""
    blocks: list[nn.Module] = []
    for k in range(depth):
        out = classes if k == depth - 1 else width
        blocks += [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, out)]
    return nn.Sequential(*blocks)


@dataclass
class _Draws:
    """All random numbers of a run, drawn for each replica from its own generator: (S, R, ...)."""

    labelled: Tensor
    unlabelled: Tensor
    order: Tensor
    weight: Tensor


def _draw(rngs: Sequence[torch.Generator], settings: MixMatch, unlabelled: int) -> _Draws:
    s, b = settings.steps, settings.batch
    parts: list[tuple[Tensor, ...]] = []
    for g in rngs:
        beta = np.random.default_rng(int(torch.randint(2**62, (1,), generator=g)))
        one = torch.from_numpy(beta.beta(settings.alpha, settings.alpha, s))
        parts.append(
            (
                torch.rand((s, b), generator=g),
                torch.randint(unlabelled, (s, b), generator=g),
                torch.rand((s, 2 * b), generator=g).argsort(1),
                torch.maximum(one, 1 - one),
            )
        )
    return _Draws(*(torch.stack(t, dim=1) for t in zip(*parts, strict=True)))


def fit_mixmatch(
    variant: str,
    bottoms: Sequence[nn.Module],
    problem: Problem,
    unlabelled: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    settings: MixMatch,
    *,
    finetune: bool,
    mix_inputs: bool,
) -> Fitted:
    """Fit a head (and the bottom, if `finetune`) for each replica and fold, as one stacked model.

    Args:
        variant: name of the result.
        bottoms: R starting bottoms; batch normalisation inside stays in evaluation mode.
        problem: rows that are known, and rows to answer.
        unlabelled: R tensors (n, ...) of unlabelled rows.
        rngs: R generators.
        settings: of the procedure.
        finetune: train the bottom along.
        mix_inputs: mix rows before the bottom; else their embeddings (rows with category codes).

    Returns:
        The variant of all R, cross-validated on the known rows.
    """
    inputs, knowns, targets, classes = problem
    folds = [assign_folds(k.labels) for k in knowns]
    copies = int(max(int(f.max()) for f in folds)) + 2
    body, top = _nets(bottoms, inputs, rngs, classes, settings.depth, copies)
    pool = _Pool.of(inputs, knowns, unlabelled, folds, copies, classes)
    trained = top.parameters() + (body.parameters() if finetune else [])
    optimizer = optim.Adam(trained, lr=settings.lr, fused=True)
    lying = find_blocks(trained)
    assert lying is not None  # stacks lie in flat buffers
    weights = [b.data for b in lying]
    average = [w.clone() for w in weights]
    draws = _draw(rngs, settings, len(unlabelled[0]))
    line = torch.arange(len(pool.replica)).unsqueeze(1) * (2 * settings.batch)
    for t in range(settings.steps):
        x, hot = pool.batch(draws, t)
        with torch.no_grad():
            guess = torch.softmax(top(body(x[:, settings.batch :], train=False), train=False), -1)
            target = torch.cat([hot, sharpen(guess, settings.temperature)], dim=1)
        other = (draws.order[t].index_select(0, pool.replica) + line).to(x.device)
        share = draws.weight[t].index_select(0, pool.replica).to(x)
        target = mix(target, other, share)
        if mix_inputs:
            z = body(mix(x, other, share), train=False)
        else:
            z = mix(body(x, train=False), other, share)
        logits = top(z, train=True)
        slope = compute_slopes(logits, target, settings.batch, settings.weight * t / settings.steps)
        step(optimizer, trained, torch.autograd.grad(logits, trained, slope))
        for w, a in zip(weights, average, strict=True):
            w.mul_(1 - settings.shrink * settings.lr)
            follow(a, w, settings.decay, t)
    for w, a in zip(weights, average, strict=True):
        w.copy_(a)
    last = torch.arange(copies - 1, len(pool.replica), copies, device=pool.known.device)
    bodies, tops = body.take(last), top.take(last)  # those of all known rows
    with torch.no_grad():
        every = torch.log_softmax(top(body(pool.known, train=False), train=False), dim=-1)
    answer = partial(compute_answers, [bodies, tops], targets)
    return make_fitted(variant, problem, folds, every.double().cpu().numpy(), answer)


def _nets(
    bottoms: Sequence[nn.Module], inputs: Sequence[Tensor], rngs: Sequence[torch.Generator],
    classes: int, depth: int, copies: int,
) -> tuple[Replicas, Replicas]:  # fmt: skip
    """Bottoms and fresh heads, `copies` a replica: one for each fold, the last on all rows."""
    device, dtype = inputs[0].device, inputs[0].dtype
    bodies, heads = [], []
    for bottom, x, g in zip(bottoms, inputs, rngs, strict=True):
        with torch.no_grad():
            width = bottom.eval()(x).shape[1]
        with as_global(g):
            heads += [make_head(width, classes, depth) for _ in range(copies)]
        bodies += [bottom] * copies
    return (
        Replicas(bodies, device=device, dtype=dtype),
        Replicas(heads, device=device, dtype=dtype),
    )


@dataclass
class _Pool:
    """The rows that batches are drawn from.

    Attributes:
        known: known rows of every copy, (R', q, ...).
        rows: the same and then the unlabelled rows of every replica, (R' q + R n, ...).
        hot: classes of the known ones, (R' q, C).
        usable: places in `rows` that each copy may train on, of known rows all but those of its
            fold, (R', q); what fills a line up is never looked at.
        many: how many these are, (R', 1).
        free: where in `rows` each copy's unlabelled ones begin, (R', 1), on the CPU.
        replica: which replica each copy belongs to, (R',), on the CPU.
    """

    known: Tensor
    rows: Tensor
    hot: Tensor
    usable: Tensor
    many: Tensor
    free: Tensor
    replica: Tensor

    @classmethod
    def of(
        cls, inputs: Sequence[Tensor], knowns: Sequence[Known], unlabelled: Sequence[Tensor],
        folds: Sequence[Tensor], copies: int, classes: int,
    ) -> _Pool:  # fmt: skip
        device, dtype = inputs[0].device, inputs[0].dtype
        y = torch.stack([k.labels for k in knowns]).repeat_interleave(copies, 0).to(device)
        mine = torch.stack([f != c for f in folds for c in range(copies)]).to(device)
        known = torch.stack(list(inputs)).repeat_interleave(copies, 0)
        begin = torch.arange(len(mine), device=device).unsqueeze(1) * mine.shape[1]
        replica = torch.arange(len(knowns)).repeat_interleave(copies)
        rows = torch.cat([known.flatten(0, 1), *unlabelled])
        return cls(
            known,
            rows,
            nn.functional.one_hot(y.flatten(), classes).to(dtype),
            mine.int().argsort(dim=1, descending=True, stable=True) + begin,
            mine.sum(1, keepdim=True),
            mine.numel() + replica.unsqueeze(1) * len(unlabelled[0]),
            replica,
        )

    def batch(self, draws: _Draws, t: int) -> tuple[Tensor, Tensor]:
        """Rows of step `t`, labelled ones first, (R', 2b, ...), and the labelled ones' classes."""
        device = self.rows.device
        u = draws.labelled[t].index_select(0, self.replica).to(device)  # (R', b)
        at = self.usable.gather(1, (u * self.many).long())
        free = (draws.unlabelled[t].index_select(0, self.replica) + self.free).to(device)
        return _taken(self.rows, torch.cat([at, free], dim=1)), _taken(self.hot, at)


def follow(average: Tensor, now: Tensor, decay: float, t: int) -> None:
    """Move the exponential average of a weight towards its value after step `t`, in place.

    The share that is kept starts small and grows to `decay`; decay 0 keeps nothing.
    """
    keep = min(decay, (1 + t) / (10 + t))
    average.mul_(keep).add_(now, alpha=1 - keep)


@torch.no_grad()
def compute_slopes(logits: Tensor, target: Tensor, labelled: int, weight: float) -> Tensor:
    """Gradient (R, 2b, C) of the losses of R replicas by their logits.

    By hand, as its graph of a dozen small nodes takes longer than the step's matrix products.
    """
    log_p, aim = log_shares(logits), target.transpose(1, 2)  # (R, C, 2b)
    by = aim * (-1 / labelled)
    p = log_p[..., labelled:].exp()
    share = p.new_tensor(weight) / p[0].numel()
    by[..., labelled:] = ((p - aim[..., labelled:]) * 2).mul_(share).mul_(p)
    return through(log_p, by)
