"""How well label logits replay gradients behind tops that stay as they are, without a network."""

from __future__ import annotations

import torch
from torch import Tensor

from vflsec.nn.replicas import Replicas

__all__ = ["misfits", "slopes"]


def slopes(
    stack: Replicas, z: Tensor, g: Tensor, mean: Tensor, sd: Tensor, *, chunk: int = 4096
) -> tuple[Tensor, Tensor, Tensor]:
    """Log class shares (R, n, C), J g (R, n, C) and J J^T (R, n, C, C) of tops at `z`, float64.

    J (C, d) is the derivative of a row's logits by its embedding.
    """
    found = []
    for z_, g_ in zip(z.split(chunk, 1), g.split(chunk, 1), strict=True):
        at = z_.detach().requires_grad_()
        logits = stack((at - mean) / sd)
        j = torch.stack(
            [
                torch.autograd.grad(logits[..., c].sum(), at, retain_graph=True)[0]
                for c in range(logits.shape[2])
            ],
            dim=2,
        ).double()
        log_p = torch.log_softmax(logits.detach().double(), dim=2)
        found.append((log_p, (j @ g_.double().unsqueeze(3)).squeeze(3), j @ j.mT))
    log_p, pulled, gram = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return log_p, pulled, gram


def misfits(error: Tensor, pulled: Tensor, gram: Tensor, square: Tensor) -> Tensor:
    """|g - J^T e| (R, n) of errors e = p - y (R, n, C), from J g, J J^T and |g|^2 (R, n)."""
    replayed = sum(
        (gram[..., c] * error[..., c : c + 1] for c in range(error.shape[2])), -2 * pulled
    )
    off = square + (error * replayed).sum(2)
    return (off.clamp_min(0) + 1e-12 * square + 1e-30).sqrt()
