"""Means and standard deviations of columns."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations, of n and not of n - 1, and means of the columns of x (n, d); (d,) each.

    Taken about the first row, so that a column of one value has exactly that mean and 0. Along the
    rows of a large table `torch.std_mean` is some times slower.
    """
    first = x[:1]
    shifted = x - first
    mean = shifted.mean(0)
    return (shifted - mean).square_().mean(0).sqrt_(), first.sum(0) + mean


def standardised(x: Tensor, q: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first `q` rows of x (m, d) and the others, columns standardised over all."""
    sd, mean = torch.std_mean(x, dim=0, correction=0)
    scaled = ((x - mean) / sd.clamp_min(1e-6)).double().cpu().numpy()
    return scaled[:q], scaled[q:]
