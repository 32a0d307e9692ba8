"""Rows that hold, number for number, what another row holds: perhaps one person under two ids.

Such a person may be known and scored at once, or trained on and tested: the main task, every attack
and every control then remember instead of guess, and all figures are too high.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vflsec.core.duplicate_rows import has_distinct_column
from vflsec.data.profile import count_holders
from vflsec.data.source import Source

SHARE = 0.01
"""Twins among the common rows from which on they are told."""


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
    common = np.flatnonzero(
        count_holders({p: t.rows for p, t in source.parties.items()}) == len(tables)
    )
    parts = [t.values[_places(t.rows, common)] for t in tables]
    of = _same([column for part in parts for column in part.T], len(common))
    if source.group is None:
        found = int((np.bincount(of)[of] > 1).sum()) if len(of) else 0
    else:
        pairs = np.unique(np.stack([of, source.group[common]]), axis=1)
        found = int((np.bincount(pairs[0])[of] > 1).sum())
    if found < max(2, SHARE * len(common)) or not any(has_distinct_column(p) for p in parts):
        return 0, 0
    return found, len(common)


def _places(rows: NDArray[np.int64], common: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in a table the common rows stand."""
    order = np.argsort(rows, kind="stable")
    return order[np.searchsorted(rows[order], common)]


def _same(columns: list[NDArray[np.float64]], n: int) -> NDArray[np.int64]:
    """A number for each of `n` rows, (n,): equal where all columns are, but for one in 2^64."""
    mixed = np.zeros(n, np.uint64)
    for column in columns:
        bits = np.ascontiguousarray(np.where(column == 0, 0.0, column)).view(np.uint64)
        mixed = (mixed ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.unique(mixed, return_inverse=True)[1].reshape(-1)
