"""Columns that tell the label by themselves: a copy of it, or something known only after it.

What a party's own columns tell is no leak, so where one tells all, every attack of that party ends
with nothing gained and a gate on labels passes, whatever the messages say. Nobody means to audit
that; a reader has to be told before training.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vflsec.data.source import Source

__all__ = ["alone", "telling_columns"]

TELLS = 0.99
_CELLS, _MOST, _LEAST = 4_000_000, 5000, 200  # numbers to look at in a table; rows of it
_RARE = 10  # a class of fewer rows is not looked at


def telling_columns(source: Source) -> dict[tuple[str, str], dict[str, float]]:
    """{(party, label): {column: AUC}} of columns whose AUC, the least over classes, is >= 0.99.

    The label is '' where a row has one. A quantity has no classes, and none is named. Of large
    tables every k-th row is looked at.
    """
    out: dict[tuple[str, str], dict[str, float]] = {}
    for label, y in _labels(source):
        for party, data in source.parties.items():
            if data.values.ndim != 2 or not data.names:
                continue
            there = np.nonzero(y[data.rows] >= 0)[0]
            most = int(np.clip(_CELLS // len(data.names), _LEAST, _MOST))
            there = there[:: -(-len(there) // most) or 1]
            for j, name in enumerate(data.names):
                found = alone(data.values[there, j], y[data.rows[there]])
                if found >= TELLS:
                    out.setdefault((party, label), {})[name] = found
    return out


def _labels(source: Source) -> Iterator[tuple[str, NDArray[np.int64]]]:
    if source.labels and source.values is not None:
        for name, column in zip(source.labels, source.values.T, strict=True):
            yield name, np.where(np.isnan(column), -1, column).astype(np.int64)
    elif source.classes > 1:
        yield "", source.y


def alone(x: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """How well one column tells classes by itself: the AUC, the least over classes.

    Few values are ranked by their share of the class, as codes without an order; many by size, from
    either end, a missing value last. 0.5 if there is nothing to compare.

    Args:
        x: (m,) NaN = missing.
        y: (m,) class numbers.
    """
    values, group = np.unique(x, return_inverse=True)
    found = []
    for c in np.unique(y):
        mine = y == c
        if min(mine.sum(), (~mine).sum()) < _RARE:
            continue
        ones = np.bincount(group[mine], minlength=len(values)).astype(float)
        zeros = np.bincount(group[~mine], minlength=len(values)).astype(float)
        if len(values) <= len(x) // 10:
            order = np.argsort(ones / (ones + zeros))
            ones, zeros = ones[order], zeros[order]
        below = np.cumsum(zeros) - zeros
        auc = float((ones * (below + zeros / 2)).sum() / (ones.sum() * zeros.sum()))
        found.append(max(auc, 1 - auc))
    return min(found, default=0.5)
