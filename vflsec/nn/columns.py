"""Means and standard deviations of columns."""

from __future__ import annotations

from torch import Tensor

__all__ = ["spread"]


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations, of n and not of n - 1, and means of the columns of x (n, d); (d,) each.

    Taken about the first row, so that a column of one value has exactly that mean and 0. Along the
    rows of a large table `torch.std_mean` is some times slower.
    """
    first = x[:1]
    shifted = x - first
    mean = shifted.mean(0)
    return (shifted - mean).square_().mean(0).sqrt_(), first.sum(0) + mean
