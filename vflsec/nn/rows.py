"""What is done with many rows: modules in pieces, sums by group, spreads and means of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROWS = 2048
"""Rows of a piece."""


def in_pieces(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What a module that treats every row by itself makes of x (n, ...), without a graph.

    So what lies between two layers stays in the cache.
    """
    with torch.no_grad():
        if len(x) <= ROWS:
            return module(x)
        return torch.cat([module(piece) for piece in x.split(ROWS)])


def sums(value: Tensor, place: Tensor, n: int) -> Tensor:
    """Sums (n, ...) of the rows of `value` (m, ...) by the `place` (m,) of each, 0 to n - 1.

    They are added in the order in which they stand. ``index_add`` of a GPU adds in the order in
    which its threads come, so that two runs differ in the last bits; ``index_put`` sorts first.
    """
    out = value.new_zeros(n, *value.shape[1:])
    if value.is_cuda:
        return out.index_put_((place,), value, accumulate=True)
    return out.index_add_(0, place, value)


def widen(x: Tensor, like: Tensor) -> Tensor:
    """x (m, ...) with axes of length 1 at its end, as many as `like` (m, ..., ...) has more."""
    return x.reshape(*x.shape, *[1] * (like.dim() - x.dim()))


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations, of n and not of n - 1, and means of the columns of x (n, d); (d,) each.

    Taken about the first row, so that a column of one value has exactly that mean and 0. Along the
    rows of a large table `torch.std_mean` is some times slower.
    """
    first = x[:1]
    shifted = x - first
    mean = shifted.mean(0)
    return shifted.sub_(mean).square_().mean(0).sqrt_(), first.sum(0) + mean


def standardise(
    x: Tensor, q: int
) -> tuple[NDArray[np.float64], Callable[..., NDArray[np.float64]]]:
    """The first `q` rows of x (m, d), columns standardised over all rows; and what makes the other
    rows when they are asked for, or some columns of them.
    """
    sd, mean = spread(x)
    scale = sd.clamp_min(1e-6)

    def make(rows: slice, at: Sequence[int] | slice = slice(None)) -> NDArray[np.float64]:
        scaled = (x[rows, at] - mean[at]).div_(scale[at])
        return scaled.double().cpu().numpy()  # type: ignore[no-any-return]

    return make(slice(q)), partial(make, slice(q, None))
