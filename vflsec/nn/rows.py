"""What is done with many rows: modules in pieces, sums by group, spreads and means of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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


def spread(*parts: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations, of n and not of n - 1, and means of columns; (d,) each.

    Taken about the first row, so that a column of one value has exactly that mean and 0. Of a large
    table piece by piece, which takes neither the memory of a second one nor its time.

    Args:
        parts: the rows (n, d), all or some at a time; numbers are added as the first part's are.
    """
    first, n = parts[0][:1], sum(map(len, parts))
    pieces = [piece for part in parts for piece in part.split(ROWS)]
    mean = torch.stack([(piece - first).sum(0) for piece in pieces]).sum(0) / n
    square = torch.stack([(p - first).sub_(mean).square_().sum(0) for p in pieces]).sum(0) / n
    return square.sqrt_(), first.sum(0) + mean


@dataclass(frozen=True)
class Scaled:
    """Numbers of rows less their means and divided by their sizes, worked out when asked for.

    Attributes:
        blocks: the numbers (n, k), some columns at a time.
        means, sizes: of each block, (k,).
    """

    blocks: Sequence[Tensor]
    means: Sequence[Tensor]
    sizes: Sequence[Tensor]

    def take(
        self, rows: Tensor | slice, at: Sequence[int] | slice = slice(None)
    ) -> NDArray[np.float64]:
        """These rows (m, d), or the columns `at` of the only block."""
        every = zip(self.blocks, self.means, self.sizes, strict=True)
        made = [(x[rows, at] - mean[at]).div_(size[at]) for x, mean, size in every]
        return torch.cat(made, dim=1).double().cpu().numpy()  # type: ignore[no-any-return]

    def pieces(self, first: int = 0) -> Iterator[NDArray[np.float64]]:
        """The rows from `first` on, some at a time."""
        for k in range(first, len(self.blocks[0]), ROWS):
            yield self.take(slice(k, k + ROWS))


def scale_columns(x: Tensor) -> Scaled:
    """Each column of x (n, d) by its standard deviation."""
    sd, mean = spread(x)
    return Scaled([x], [mean], [sd.clamp_min(1e-6)])


def scale_blocks(blocks: Sequence[Tensor]) -> Scaled:
    """Each block (n, k) by the root of its whole variance, so that none drowns another."""
    found = [spread(x) for x in blocks]
    sizes = [sd.norm().clamp_min(1e-12).expand_as(sd) for sd, _ in found]
    return Scaled(blocks, [mean for _, mean in found], sizes)
