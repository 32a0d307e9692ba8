"""Fitting numbers to vectors from a few rows: shared by feature attacks and their controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.nn import optim
from vflsec.nn.columns import spread
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.party import step
from vflsec.rng import as_global

__all__ = ["Regression", "fit_regressors", "folds", "r_squared", "ridge"]

ALPHAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 5
WIDE = 4
"""Columns for each known row above which a network answers in coordinates of the rows."""


@dataclass(frozen=True)
class Regression:
    """A fitted variant: its name, cross-validated R^2 on the known rows, answer (n, d)."""

    variant: str
    cv: float
    values: Tensor


def r_squared(guess: Tensor, truth: Tensor) -> float:
    """1 - squared error / variance, mean over columns that vary; 0 if none does."""
    spread = truth.var(0, correction=0)
    use = spread > 1e-12
    if not bool(use.any()):
        return 0.0
    return float((1 - ((guess - truth) ** 2).mean(0)[use] / spread[use]).mean())


def folds(n: int) -> Tensor:
    """Fold of each of `n` known rows, (n,) int64."""
    return torch.arange(n) % min(FOLDS, n)


def _standard(x: Tensor) -> Tensor:
    sd, mean = spread(x)
    return (x - mean) / torch.where(sd > 1e-9, sd, torch.ones_like(sd))


def _ridge(x: Tensor, y: Tensor, targets: Tensor, alpha: float) -> Tensor:
    mean_x, mean_y = x.mean(0), y.mean(0)
    centred = x - mean_x
    gram = centred.T @ centred + alpha * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return (targets - mean_x) @ torch.linalg.solve(gram, centred.T @ (y - mean_y)) + mean_y


def ridge(variant: str, x: Tensor, y: Tensor, targets: Tensor) -> Regression:
    """Ridge regression on standardised columns, its penalty chosen by cross-validation.

    Args:
        variant: name of the result.
        x: inputs of the known rows (q, p).
        y: their values (q, d).
        targets: inputs of the rows to answer (n, p).
    """
    both = _standard(torch.cat([x, targets]).double())
    x, targets, y = both[: len(x)], both[len(x) :], y.double()
    fold = folds(len(x)).to(x.device)
    best, alpha = -torch.inf, ALPHAS[-1]
    if len(x) >= 4:
        for a in ALPHAS:
            held = torch.empty_like(y)
            for f in range(int(fold.max()) + 1):
                out = fold == f
                held[out] = _ridge(x[~out], y[~out], x[out], a)
            score = r_squared(held, y)
            if score > best:
                best, alpha = score, a
    return Regression(variant, float(best), _ridge(x, y, targets, alpha))


def _turned(y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Values (q, d) with d > q in q coordinates (q, q), and the way back (q, d).

    No column is lost: q rows span at most q directions, along which squared errors are those of the
    columns but for a factor. The directions are drawn among those of the rows, which spreads what
    varies most over all of them. A coordinate is twice as large as a column was: a network is then
    further from repeating its rows after as many steps, and answered better in drawn worlds.
    """
    q, d = y.shape
    mixed = torch.linalg.qr(torch.randn(q, q, generator=rng, dtype=torch.float64))[0].to(y.device)
    basis = torch.linalg.qr(y.double().T)[0] @ mixed  # (d, q)
    size = (d / q) ** 0.5 / 2
    return (y.double() @ basis / size).to(y.dtype), (basis.T * size).to(y.dtype)


def fit_regressors(
    variant: str,
    inputs: Sequence[Tensor],
    values: Sequence[Tensor],
    targets: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    *,
    hidden: Sequence[int] = (64,),
    steps: int = 300,
    lr: float = 3e-3,
    weight_decay: float = 1e-3,
) -> list[Regression]:
    """Fit networks by squared error, for each replica and each fold, as one stacked model.

    Values of more than :data:`WIDE` columns a known row are fitted in as many coordinates as there
    are rows, which costs as much less.

    Args:
        variant: name of the results.
        inputs, values, targets: R tensors (q, p), (q, d), (n, p).
        rngs: R generators for initial weights and, of wide values, the coordinates.
        hidden: widths of the hidden layers.
        steps, lr, weight_decay: of full-batch Adam.
    """
    told, backs = list(values), []
    if values[0].shape[1] > WIDE * len(values[0]):
        turned = [_turned(v, g) for v, g in zip(values, rngs, strict=True)]
        told, backs = [t for t, _ in turned], [back for _, back in turned]
    known, asked = [], []
    for mine, rest in zip(inputs, targets, strict=True):
        both = _standard(torch.cat([mine, rest]))
        known.append(both[: len(mine)])
        asked.append(both[len(mine) :])
    fold = folds(len(inputs[0])).to(inputs[0].device)
    copies = int(fold.max()) + 2
    widths = [inputs[0].shape[1], *hidden, told[0].shape[1]]
    modules = []
    for g in rngs:
        with as_global(g):
            modules += [mlp(widths) for _ in range(copies)]
    stack = Replicas(modules, device=inputs[0].device, dtype=inputs[0].dtype)
    optimizer = optim.Adam(stack.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
    x = torch.stack(known).repeat_interleave(copies, 0)
    y = torch.stack([v.to(x.dtype) for v in told]).repeat_interleave(copies, 0)
    weight = torch.stack([(fold != c).to(x.dtype) for c in range(copies)])
    weight = (weight / weight.sum(1, keepdim=True)).repeat(len(rngs), 1).unsqueeze(2)
    for _ in range(steps):
        loss = (weight * (stack(x) - y) ** 2).sum()
        step(optimizer, stack.parameters(), torch.autograd.grad(loss, stack.parameters()))
    with torch.no_grad():
        held = stack(x, train=False)
        last = torch.arange(copies - 1, stack.count, copies, device=x.device)
        answer = stack.take(last)(torch.stack(asked), train=False)
    rows = torch.arange(len(fold), device=x.device)
    out = []
    for r, truth in enumerate(values):
        mine, given = held[r * copies + fold, rows].double(), answer[r].double()
        if backs:
            mine, given = (t @ backs[r].double() for t in (mine, given))
        out.append(Regression(variant, r_squared(mine, truth.double()), given))
    return out
