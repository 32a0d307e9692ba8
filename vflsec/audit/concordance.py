"""Whether values are ranked rightly: the concordance of a quantity, and its interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vflsec.audit.intervals import normal_quantile
from vflsec.audit.truth_join import Floats, Ints

ROWS = 2000
"""Rows from which the spread of a concordance is estimated, at most."""
PAIRS = 1 << 22
"""Pairs of rows that are looked at at once."""


def compute_concordance(
    s: Floats, y: Floats, order: Ints, confidence: float
) -> tuple[float | None, float | None, float | None]:
    """Of all pairs of rows with different values, the share ranked as they are; ties count half.

    The variance is that of a U-statistic, 4/n times the variance of the rows' own shares, of at
    most ROWS rows.

    Args:
        s, y: scores and values (n,).
        order: of the rows (n,), in which those of the spread come first.
        confidence: of the interval.

    Returns:
        the share and the ends of its interval, None where there is none.
    """
    from scipy import stats

    pairs = _untied(y)
    if len(y) < 2 or not pairs:
        return None, None, None
    tau = stats.kendalltau(s, y).statistic
    surplus = 0.0 if np.isnan(tau) else float(tau) * math.sqrt(_untied(s) * pairs)
    value = 0.5 + surplus / (2 * pairs)
    some = np.argsort(order)[:ROWS]
    parts = np.array_split(some, math.ceil(len(some) * len(y) / PAIRS))
    own = np.concatenate([_ranked(s, y, part) for part in parts])
    if len(some) < 3:
        return value, None, None
    z = normal_quantile(0.5 + confidence / 2)
    half = z * 2 * float(own.std(ddof=1)) / math.sqrt(len(y))
    return value, max(0.0, value - half), min(1.0, value + half)


def _ranked(s: Floats, y: Floats, some: Ints) -> Floats:
    """Of the pairs of each of some rows, the share that scores rank as values do, ties half."""
    way = _sign(y, y[some])
    pairs, agree = (way != 0).sum(1), (_sign(s, s[some]) * way).sum(1)
    return np.asarray(0.5 + agree / np.maximum(pairs, 1) / 2)


def _sign(x: Floats, of: Floats) -> NDArray[np.int8]:
    """Whether x (n,) is above or below each of (m,): 1, 0 or -1, (m, n)."""
    one = of[:, None]
    return (x > one).view(np.int8) - (x < one).view(np.int8)


def _untied(x: Floats) -> float:
    """Pairs of different values."""
    counts = np.unique(x, return_counts=True)[1].astype(float)
    n = float(len(x))
    return (n * (n - 1) - float((counts * (counts - 1)).sum())) / 2
