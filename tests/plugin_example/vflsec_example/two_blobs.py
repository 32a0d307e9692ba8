"""Two Gaussian blobs, the columns shared out between two parties.

Class y in {0, 1}; every column is normal with mean `gap` * (y - 1/2) and variance 1.

Source: an example, made up by a generator; the seed fixes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vflsec.plugin import PartyData, Source, check, numpy_generator, registry


@registry.dataset
@dataclass(frozen=True)
class TwoBlobs:
    """Two blobs.

    Attributes:
        n: rows.
        gap: distance of the class means in each column, in standard deviations.
    """

    n: int = 200
    gap: float = 1.0

    def __post_init__(self) -> None:
        check.integer("two_blobs: n", self.n, low=2)
        check.non_negative("two_blobs: gap", self.gap)

    def load(self, seed: int) -> Source:
        """The data set; every party holds every row, three columns each."""
        rng = numpy_generator(seed, "two_blobs")
        y = rng.permutation(np.arange(self.n, dtype=np.int64) % 2)
        rows = np.arange(self.n, dtype=np.int64)
        parties = {}
        for party in ("active", "passive"):
            values = rng.normal(size=(self.n, 3)) + self.gap * (y[:, None] - 0.5)
            names = tuple(f"{party}_{i}" for i in range(3))
            parties[party] = PartyData(values, rows, names, (None, None, None))
        return Source(
            name="two_blobs",
            parties=parties,
            active="active",
            y=y,
            class_names=("left", "right"),
            digest=f"two_blobs-{seed}-{self.n}-{self.gap}",
        )
