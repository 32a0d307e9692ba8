"""Modules on many rows: in pieces, so that what lies between two layers stays in the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = 2048
"""Rows of a piece."""


def in_pieces(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a module that treats every row by itself makes of x (n, ...), without a graph."""
    with torch.no_grad():
        if len(x) <= ROWS:
            return module(x)
        return torch.cat([module(piece) for piece in x.split(ROWS)])
