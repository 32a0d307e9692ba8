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

__all__ = ["Regression", "fit_regressors", "r_squared", "ridge"]

ALPHAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 5


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


def _fold(n: int) -> Tensor:
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
    fold = _fold(len(x)).to(x.device)
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

    Args:
        variant: name of the results.
        inputs, values, targets: R tensors (q, p), (q, d), (n, p).
        rngs: R generators for initial weights.
        hidden: widths of the hidden layers.
        steps, lr, weight_decay: of full-batch Adam.
    """
    known, asked = [], []
    for mine, rest in zip(inputs, targets, strict=True):
        both = _standard(torch.cat([mine, rest]))
        known.append(both[: len(mine)])
        asked.append(both[len(mine) :])
    fold = _fold(len(inputs[0])).to(inputs[0].device)
    copies = int(fold.max()) + 2
    widths = [inputs[0].shape[1], *hidden, values[0].shape[1]]
    modules = []
    for g in rngs:
        with as_global(g):
            modules += [mlp(widths) for _ in range(copies)]
    stack = Replicas(modules, device=inputs[0].device, dtype=inputs[0].dtype)
    optimizer = optim.Adam(stack.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
    x = torch.stack(known).repeat_interleave(copies, 0)
    y = torch.stack([v.to(x.dtype) for v in values]).repeat_interleave(copies, 0)
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
    return [
        Regression(
            variant,
            r_squared(held[r * copies + fold, rows].double(), values[r].double()),
            answer[r].double(),
        )
        for r in range(len(rngs))
    ]
