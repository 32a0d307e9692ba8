"""Rows that hold, number for number, what another row holds: perhaps one person under two ids.

Such a person may be known and scored at once, or trained on and tested: the main task, every attack
and every control then remember instead of guess, and all figures are too high.
"""

from __future__ import annotations

import math

import numpy as np

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
    held = count_holders({p: t.rows for p, t in source.parties.items()}) == len(tables)
    shared = [(t.values[held[t.rows]], t.rows[held[t.rows]]) for t in tables]
    parts = [values[np.argsort(rows)] for values, rows in shared]
    whole = np.concatenate(parts, axis=1, dtype=np.float64) + 0.0  # of -0.0 and 0.0 one is left
    weights = 1 / (np.arange(whole.shape[1]) + math.pi)  # that bring equal rows together
    order = np.argsort((np.nan_to_num(whole) * weights).sum(1), kind="stable")
    bits = whole.view(np.int64)[order]  # a missing value equals another
    alike = np.zeros(len(whole), dtype=np.int64)  # which of the rows that differ each is
    alike[order[1:]] = np.cumsum((bits[1:] != bits[:-1]).any(1))
    whose = np.flatnonzero(held) if source.group is None else source.group[held]
    persons = np.unique(np.stack([alike, whose]), axis=1)[0]
    found = int((np.bincount(persons)[alike] > 1).sum())
    if found < max(2, SHARE * len(whole)) or not any(has_distinct_column(p) for p in parts):
        return 0, 0
    return found, len(whole)
