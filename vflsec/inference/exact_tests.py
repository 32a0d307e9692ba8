"""Exact tests of whether a yes/no value goes with a class, of rows that were drawn by class."""

from __future__ import annotations

from functools import lru_cache
from math import lgamma

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@lru_cache(maxsize=1 << 16)
def differ(gap: float, n1: int, n0: int, share: float) -> float:
    """P(|A / n1 - B / n0| >= gap) of independent A and B, Binomial(n1, s) and Binomial(n0, s).

    The share s is rounded to a hundredth towards one half.

    Source: Barnard, "Significance tests for 2 x 2 tables", Biometrika 1947, with a given share.
    """
    share = 0.5 + float(np.copysign(np.floor(100 * abs(share - 0.5) + 1e-9), share - 0.5)) / 100
    b = _binomial(n0, share)
    a = np.arange(n1 + 1) / n1
    below = np.concatenate([[0.0], b.cumsum()])  # P(B < k)
    above = np.concatenate([b[::-1].cumsum()[::-1], [0.0]])  # P(B >= k)
    low = np.clip(np.floor(n0 * (a - gap) + 1e-9).astype(int) + 1, 0, n0 + 1)
    high = np.clip(np.ceil(n0 * (a + gap) - 1e-9).astype(int), 0, n0 + 1)
    return float(min(1.0, _binomial(n1, share) @ (below[low] + above[high])))


@lru_cache(maxsize=1 << 12)
def _binomial(n: int, share: float) -> Floats:
    """Chances of 0 to `n` among `n`."""
    k = np.arange(n + 1)
    if share in (0.0, 1.0):
        return (k == n * share).astype(np.float64)
    ways = np.array([lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) for i in range(n + 1)])
    of: Floats = np.exp(ways + k * np.log(share) + (n - k) * np.log1p(-share))
    return of
