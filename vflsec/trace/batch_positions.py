"""Ids that are places in a batch: told when recording begins, not after it has ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Places"]

_LEAST = 8  # rows of a batch of which it can be told
_SAME = 0.5  # correlation; that of one batch at two steps of a training is near 1


class Places:
    """The ids of the first two batches, and their embeddings."""

    def __init__(self) -> None:
        self.left = 2
        self.first: NDArray[Any] | None = None

    def taken(self, rows: NDArray[np.int64] | None, values: NDArray[Any], n: int) -> bool:
        """Whether both batches name rows 0 to b-1 in order, although they are of other samples.

        Args:
            rows, values: of a batch, (b,) and (b, ...).
            n: how many rows there are.
        """
        self.left -= 1
        b = len(values)
        if rows is None or not _LEAST <= b < n or not np.array_equal(rows, np.arange(b)):
            self.left, self.first = 0, None
            return False
        now = values.reshape(b, -1).astype(np.float64)  # a copy
        before, self.first = self.first, now
        if before is None or before.shape != now.shape:
            return False
        self.first = None
        one, two = (x - x.mean(0) for x in (before, now))
        size = float(np.sqrt((one**2).sum() * (two**2).sum()))
        return size > 0 and float((one * two).sum()) < _SAME * size
