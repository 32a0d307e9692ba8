"""Whether equal rows of a table are one sample under two ids, or equal by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def has_distinct_column(part: NDArray[Any]) -> bool:
    """Whether one of its columns (n, d) has as many values as half the rows, so that rows are not
    equal by chance. It has as many where every row stands there twice.
    """
    return any(2 * len(np.unique(column)) >= len(column) for column in part.T)
