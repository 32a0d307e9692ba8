"""Optimizers over stacked parameters that treat every replica alike, to the last bit.

A fused kernel runs over the flat memory of a stack in vectors and finishes the tail number by
number, with another rounding: what a replica gets would depend on its place. So only tensors whose
replicas fill whole vectors are fused; the others, small ones, take the plain kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vflsec.nn.replicas import VECTOR

__all__ = ["optimizer"]


def optimizer(
    name: str,
    groups: Sequence[Mapping[str, Any]],
    *,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> torch.optim.Optimizer:
    """A fresh ``adam``, ``sgd`` or ``adagrad``.

    Args:
        name: which.
        groups: ``{"params": tensors (R, ...), ...}`` as torch takes them; empty ones are left out.
        lr, weight_decay: defaults of the groups.
        momentum: of ``sgd``.
    """
    if name == "adagrad":
        kept = [dict(g) for g in groups if g["params"]]
        return torch.optim.Adagrad(kept, lr=lr, weight_decay=weight_decay)
    split = []
    for group in groups:
        for fused in (True, False):
            params = [p for p in group["params"] if _whole(p) == fused]
            if params:
                split.append({**group, "params": params, "fused": fused, "foreach": False})
    if name == "adam":
        return torch.optim.Adam(split, lr=lr, weight_decay=weight_decay)
    return torch.optim.SGD(split, lr=lr, weight_decay=weight_decay, momentum=momentum)


def _whole(p: Tensor) -> bool:
    """True if each replica fills whole vectors."""
    return p.numel() // max(1, len(p)) % VECTOR == 0
