"""Quantiles and tails of distributions, bit-equal to `scipy.stats` and without importing it.

`scipy.stats` takes a second to import, which every command that judges anything would pay; the
special functions behind these few are there in a tenth of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special


def normal_quantile(p: float) -> float:
    """The number below which a standard normal falls with chance `p`."""
    return float(special.ndtri(p))


def beta_quantile(p: float, a: float, b: float) -> float:
    """The number below which a beta variable falls with chance `p`; `a` and `b` are positive."""
    return float(special.betaincinv(a, b, p))


def binomial_tail(k: ArrayLike, n: int, p: float) -> NDArray[np.float64]:
    """Chance of at least `k` (any shape) successes in `n` tries of chance `p` each."""
    least = np.asarray(k, float)
    inside = np.clip(least, 1, n) if n else np.ones_like(least)
    found = special.betainc(inside, n - inside + 1, p) if n else np.zeros_like(least)
    return np.where(least <= 0, 1.0, np.where(least > n, 0.0, found))


def entropy(shares: ArrayLike) -> float:
    """Of a distribution (C,), in nats."""
    p = np.asarray(shares, float)
    return float(special.entr(p / np.sum(p)).sum())


def is_rising(values: NDArray[Any]) -> bool:
    """Whether each value (n,) is larger than the one before it."""
    return bool((values[1:] > values[:-1]).all())


def midranks(ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1 of values (n,) that are sorted; equal ones get the mean of theirs."""
    n = len(ascending)
    if n == 0:
        return np.empty(0)
    first = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))
    if len(first) == n:
        return np.arange(1.0, n + 1.0)
    ends = np.append(first[1:], n)
    return np.repeat(0.5 * (first + ends + 1), ends - first)
