"""Losses by row: cross entropy with its gradient by hand, binary ones, squared errors.

Classes come first in memory, (R, C, b): the CPU's kernels of log-softmax treat many rows at once
there, and one after another where the few classes are last.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


def log_shares(logits: Tensor) -> Tensor:
    """Log-softmax of logits (R, b, C), as (R, C, b)."""
    return torch.log_softmax(logits.transpose(1, 2).contiguous(), 1)


def through(log_p: Tensor, by: Tensor) -> Tensor:
    """Gradient (R, b, C) by the logits of what has the gradient `by` (R, C, b) by `log_p`."""
    back = torch._log_softmax_backward_data(by, log_p, 1, log_p.dtype)
    return back.transpose(1, 2).contiguous()  # products on anything else may round otherwise


@cache
def _less_one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """-1; a number of Python takes the kernel for scattered sums twice as long."""
    return torch.full((), -1.0, dtype=dtype, device=device)


def _back(log_p: Tensor, y: Tensor, scale: Tensor | float) -> Tensor:
    """(p - e_y) times `scale` (R, 1, b), as (R, b, C); of class shares (p sum(y) - y).

    A share of 1 gives the bits of its class.
    """
    p = log_p.exp()
    if y.dim() == 2:
        index = y.unsqueeze(1)
        p.scatter_add_(1, index, _less_one(p.dtype, p.device).expand(index.shape))
    else:
        shares = y.transpose(1, 2)
        p.mul_(shares.sum(1, keepdim=True)).sub_(shares)
    return p.mul_(scale).transpose(1, 2).contiguous()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, y: Tensor) -> Tensor:
        log_p = log_shares(logits)
        ctx.save_for_backward(logits, y, log_p)
        return _losses(log_p, y)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> Any:  # type: ignore[override]
        logits, y, log_p = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates this once more
            (out,) = torch.autograd.grad(
                _losses(log_shares(logits), y), logits, rows, create_graph=True
            )
            return out, None
        return _back(log_p, y, rows.unsqueeze(1)), None


def _losses(log_p: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 2:
        return -log_p.gather(1, y.unsqueeze(1)).squeeze(1)
    return -(y.transpose(1, 2) * log_p).sum(1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of each row, (R, b); logits (R, b, C), `y` (R, b) int64 or (R, b, C) shares."""
    if y.requires_grad:
        return _losses(log_shares(logits), y)
    made: Tensor = _CrossEntropy.apply(logits, y if y.dim() == 2 else y.to(logits))
    return made


@torch.no_grad()
def slope(logits: Tensor, y: Tensor) -> Tensor:
    """Gradient (R, b, C) of the mean cross entropy of every replica; `y` as there."""
    return _back(log_shares(logits), y, 1.0 / y.shape[1])


def binary_cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over L labels of the cross entropy of each, (R, b), of logits and 0 or 1 (R, b, L)."""
    each = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
    return each.mean(2)


def squared_error(answer: Tensor, y: Tensor) -> Tensor:
    """Squared error of each row, (R, b), of answers and values (R, b, 1)."""
    return (answer - y).square().sum(2)


def poisson_loss(answer: Tensor, y: Tensor) -> Tensor:
    """Negative log likelihood of each count, (R, b), of log means and counts (R, b, 1)."""
    return (answer.exp() - y * answer).sum(2)
