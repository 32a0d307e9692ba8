"""Rows that hold, number for number, what another row holds: perhaps one person under two ids.

Such a person may be known and scored at once, or trained on and tested: the main task, every attack
and every control then remember instead of guess, and all figures are too high.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

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
    parts = [t.values[pd.Index(t.rows).get_indexer(pd.Index(common))] for t in tables]
    whole = pd.DataFrame(np.concatenate(parts, axis=1) + 0.0)  # of -0.0 and 0.0 one is left
    alike = pd.util.hash_pandas_object(whole, index=False).to_numpy()
    whose = common if source.group is None else source.group[common]
    persons = pd.DataFrame({"alike": alike, "whose": whose}).drop_duplicates().alike
    found = int(np.isin(alike, persons[persons.duplicated()]).sum())
    if found < max(2, SHARE * len(common)) or not any(has_distinct_column(p) for p in parts):
        return 0, 0
    return found, len(common)
