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

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vflsec import check
from vflsec.nn import optim
from vflsec.nn.completion import Fitted, answers, cv_score, folds_of
from vflsec.nn.replicas import Replicas
from vflsec.party import step
from vflsec.rng import as_global
from vflsec.view import Known

__all__ = ["MixMatch", "fit_mixmatch", "mix", "sharpen"]


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

    temperature: float = 0.8
    alpha: float = 0.75
    weight: float = 50.0
    batch: int = 16
    epochs: int = 5
    iterations: int = 100
    lr: float = 2e-3
    decay: float = 0.999
    shrink: float = 0.02
    depth: int = 1

    def __post_init__(self) -> None:
        for name in ("temperature", "alpha", "lr"):
            check.positive(f"mixmatch.{name}", getattr(self, name))
        for name in ("batch", "epochs", "iterations", "depth"):
            check.integer(f"mixmatch.{name}", getattr(self, name))
        check.non_negative("mixmatch.weight", self.weight)
        check.non_negative("mixmatch.shrink", self.shrink)
        check.in_unit("mixmatch.decay", self.decay, high_open=True)

    @property
    def steps(self) -> int:
        """Optimisation steps in all."""
        return self.epochs * self.iterations


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """Class shares (..., C) raised to 1/T and normalised."""
    q = p ** (1 / temperature)
    return q / q.sum(-1, keepdim=True)


def mix(x: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """weight x + (1 - weight) x[order] for rows (R, b, ...); order (R, b), weight (R,)."""
    w = weight.reshape(-1, *([1] * (x.dim() - 1))).to(x)
    return w * x + (1 - w) * picked(x, order)


def picked(x: Tensor, rows: Tensor, of: Tensor | None = None) -> Tensor:
    """Rows (R', b) of x (R, n, ...), those of line `of` (R',) each or of its own; (R', b, ...)."""
    line = torch.arange(len(rows), device=x.device) if of is None else of
    flat = (rows + (line * x.shape[1]).unsqueeze(1)).reshape(-1)
    return x.flatten(0, 1).index_select(0, flat).reshape(*rows.shape, *x.shape[2:])


def head(width: int, classes: int, depth: int) -> nn.Sequential:
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
    inputs: Sequence[Tensor],
    knowns: Sequence[Known],
    unlabelled: Sequence[Tensor],
    targets: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    classes: int,
    settings: MixMatch,
    *,
    finetune: bool,
    mix_inputs: bool,
) -> Fitted:
    """Fit a head (and the bottom, if `finetune`) for each replica and fold, as one stacked model.

    Args:
        variant: name of the result.
        bottoms: R starting bottoms; batch normalisation inside stays in evaluation mode.
        inputs: R tensors (q, ...) of the known rows.
        knowns: R grants of q rows.
        unlabelled: R tensors (n, ...) of unlabelled rows.
        targets: R tensors (t, ...) of the rows to answer.
        rngs: R generators.
        settings: of the procedure.
        finetune: train the bottom along.
        mix_inputs: mix rows before the bottom; else their embeddings (rows with category codes).

    Returns:
        The variant of all R, cross-validated on the known rows.
    """
    folds = [folds_of(k.labels) for k in knowns]
    copies = int(max(int(f.max()) for f in folds)) + 2
    body, top = _nets(bottoms, inputs, rngs, classes, settings.depth, copies)
    pool = _Pool.of(inputs, knowns, unlabelled, folds, copies, classes)
    trained = top.parameters() + (body.parameters() if finetune else [])
    average = [p.detach().clone() for p in trained]
    optimizer = optim.Adam(trained, lr=settings.lr, fused=True)
    draws = _draw(rngs, settings, len(unlabelled[0]))
    for t in range(settings.steps):
        x, hot = pool.batch(draws, t)
        with torch.no_grad():
            guess = torch.softmax(top(body(x[:, settings.batch :], train=False), train=False), -1)
            target = torch.cat([hot, sharpen(guess, settings.temperature)], dim=1)
        order = draws.order[t, pool.replica].to(x.device)
        weight = draws.weight[t, pool.replica].to(x.device)
        target = mix(target, order, weight)
        if mix_inputs:
            z = body(mix(x, order, weight), train=False)
        else:
            z = mix(body(x, train=False), order, weight)
        logits = top(z, train=True)
        ramp = settings.weight * t / settings.steps
        loss = losses(logits, target, settings.batch, ramp).sum()
        step(optimizer, trained, torch.autograd.grad(loss, trained))
        with torch.no_grad():
            for p, a in zip(trained, average, strict=True):
                p.mul_(1 - settings.shrink * settings.lr)
                follow(a, p, settings.decay, t)
    with torch.no_grad():
        for p, a in zip(trained, average, strict=True):
            p.copy_(a)
    last = torch.arange(copies - 1, len(pool.replica), copies, device=pool.known.device)
    bodies, tops = body.take(last), top.take(last)  # those of all known rows
    with torch.no_grad():
        every = torch.log_softmax(top(body(pool.known, train=False), train=False), dim=-1)
    cv, held = [], []
    for r, (known, fold) in enumerate(zip(knowns, folds, strict=True)):
        score, of = 0.5 if classes == 2 else 1.0 / classes, None
        if int(fold.max()) >= 1:
            of = every[r * copies + fold, torch.arange(len(fold))].double().cpu().numpy()
            score = cv_score(of, known.labels.cpu().numpy())
        cv.append(score)
        held.append(of)
    answer = partial(answers, [bodies, tops], targets)
    return Fitted(variant, cv, held, [None] * len(cv), answer)


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
            heads += [head(width, classes, depth) for _ in range(copies)]
        bodies += [copy.deepcopy(bottom) for _ in range(copies)]
    return (
        Replicas(bodies, device=device, dtype=dtype),
        Replicas(heads, device=device, dtype=dtype),
    )


@dataclass
class _Pool:
    """The rows that batches are drawn from.

    Attributes:
        known: known rows of every copy, (R', q, ...).
        hot: their classes, (R', q, C).
        usable: which known rows each copy may train on, all but those of its fold, (R', q); what
            fills a line up is never looked at.
        many: how many these are, (R', 1).
        free: unlabelled rows, (R, n, ...).
        replica: which replica each copy belongs to, (R',), on the CPU.
    """

    known: Tensor
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
        return cls(
            torch.stack(list(inputs)).repeat_interleave(copies, 0),
            nn.functional.one_hot(y, classes).to(dtype),
            mine.int().argsort(dim=1, descending=True, stable=True),
            mine.sum(1, keepdim=True),
            torch.stack(list(unlabelled)),
            torch.arange(len(knowns)).repeat_interleave(copies),
        )

    def batch(self, draws: _Draws, t: int) -> tuple[Tensor, Tensor]:
        """Rows of step `t`, labelled ones first, (R', 2b, ...), and the labelled ones' classes."""
        device = self.known.device
        u = draws.labelled[t, self.replica].to(device)  # (R', b)
        at = self.usable.gather(1, (u * self.many).long())
        free = draws.unlabelled[t, self.replica].to(device)
        drawn = picked(self.free, free, self.replica.to(device))
        return torch.cat([picked(self.known, at), drawn], dim=1), picked(self.hot, at)


def follow(average: Tensor, now: Tensor, decay: float, t: int) -> None:
    """Move the exponential average of a weight towards its value after step `t`, in place.

    The share that is kept starts small and grows to `decay`; decay 0 keeps nothing.
    """
    keep = min(decay, (1 + t) / (10 + t))
    average.mul_(keep).add_(now, alpha=1 - keep)


def losses(logits: Tensor, target: Tensor, labelled: int, weight: float) -> Tensor:
    """Loss (R,) of mixed rows (R, 2b, C) whose first `labelled` came from labelled ones."""
    log_p = torch.log_softmax(logits, dim=-1)
    known = -(target * log_p)[:, :labelled].sum(-1).mean(1)
    free = (log_p.exp() - target)[:, labelled:].square().mean((1, 2))
    return known + weight * free
