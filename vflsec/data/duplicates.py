"""Rows that hold, number for number, what another row holds: perhaps one person under two ids.

Such a person may be known and scored at once, or trained on and tested: the main task, every attack
and every control then remember instead of guess, and all figures are too high.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vflsec.core.duplicate_rows import has_distinct_column
from vflsec.data.profile import count_holders
from vflsec.data.source import Source

SHARE = 0.01
"""Twins among the common rows from which on they are told."""
_PART = 1 << 16  # rows that are added up at once


def count_duplicates(source: Source) -> tuple[int, int]:
    """Common rows that equal another one, of another group, in every column of every party.

    Tables of few values, none of whose columns tells most rows apart, have equal rows by chance:
    nothing is said of them, nor of images.

    Returns:
        How many, and of how many rows; (0, 0) where less than one row in a hundred is equal.
    """
    tables = list(source.parties.values())
    if not all(t.values.ndim == 2 for t in tables):
        return 0, 0
    held = count_holders({p: t.rows for p, t in source.parties.items()}) == len(tables)
    places = [np.flatnonzero(held[t.rows]) for t in tables]
    places = [at[np.argsort(t.rows[at])] for t, at in zip(tables, places, strict=True)]

    def read(rows: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        """Common rows, all columns; of -0.0 and 0.0 one is left."""
        parts = [t.values[at[rows]] for t, at in zip(tables, places, strict=True)]
        return np.concatenate(parts, axis=1, dtype=np.float64) + 0.0

    n, width = int(held.sum()), sum(t.values.shape[1] for t in tables)
    weights = 1 / (np.arange(width) + math.pi)  # that bring equal rows together
    sums = np.empty(n)
    for start in range(0, n, _PART):  # all at once they are as large as the tables
        part = slice(start, start + _PART)
        sums[part] = np.nan_to_num((np.nan_to_num(read(part)) * weights).sum(1))
    order = np.argsort(sums, kind="stable")
    beside = np.concatenate([[False], sums[order[1:]] == sums[order[:-1]], [False]])
    order = order[beside[1:] | beside[:-1]]  # those that equal a neighbour, perhaps
    if len(order) < max(2, SHARE * n):
        return 0, 0
    bits = read(order).view(np.int64)  # a missing value equals another
    alike = np.zeros(len(order), dtype=np.int64)  # which of the rows that differ each is
    alike[1:] = np.cumsum((bits[1:] != bits[:-1]).any(1))
    whose = (np.flatnonzero(held) if source.group is None else source.group[held])[order]
    persons = np.unique(np.stack([alike, whose]), axis=1)[0]
    found = int((np.bincount(persons)[alike] > 1).sum())
    parts = (t.values[at] for t, at in zip(tables, places, strict=True))
    if found < max(2, SHARE * n) or not any(has_distinct_column(p) for p in parts):
        return 0, 0
    return found, n
