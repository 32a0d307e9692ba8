"""Sets of rows that a party without labels would learn, for policies that decide about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RowSets:
    """Row sets of a tree, of any number at once, by how many rows of each class are in them.

    Attributes:
        tree: number of the tree, from 0; several classes have one tree each a round.
        counts: (..., C) rows of each class in each set; (..., 1) rows where labels are no classes.
        total: (C,) the same of all rows of the training.
    """

    tree: int
    counts: NDArray[np.float64]
    total: NDArray[np.float64]

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Rows in each set, (...)."""
        found: NDArray[np.float64] = self.counts.sum(axis=-1)
        return found
