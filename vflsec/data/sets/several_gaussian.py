"""Positive control of several labels: 100 passive and 20 active normal columns, L yes/no labels.

    y_k = 1[1.5 w_kA . x_A + 0.7 w_kB . x_B > q],    with q so that a share is positive,

then flipped with probability `flips`; unit vectors w_kA (passive) and w_kB (active) are drawn for
each label and seed. 2,000 rows train, 500 validate and 1,000 test.

What a sound audit finds: behind binary cross entropies the gradient of a row is a sum of one vector
for each label, (p_k - y_k) W_k, so a passive party with some known rows of a label ranks it (AUC
above 0.9, own columns with twenty known rows below 0.7), label by label, and its trained bottom
points along all w_kA. Under heavy gradient noise (ratio 25) neither is left.

Source: this package's own design; the form of control_gaussian with several labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.sets._parts import numeric_table, world_digest
from vflsec.data.source import Source
from vflsec.plugins import registry

_WEIGHTS = {"active": 0.7, "passive": 1.5}


@registry.dataset
@dataclass(frozen=True)
class SeveralGaussian:
    """A fresh world for each seed.

    Args:
        labels: their names, at least two.
        rows: training rows.
        test_rows, validation_rows: rows on top.
        positive_rate: share of ones of every label, before flips.
        flips: share of labels that are flipped.
        d_passive, d_active: columns of the parties.
    """

    labels: tuple[str, ...] = ("a", "b", "c")
    rows: Annotated[int, check.at_least(50)] = 2000
    test_rows: Annotated[int, check.at_least(50)] = 1000
    validation_rows: Annotated[int, check.at_least(50)] = 500
    positive_rate: check.OpenUnit = 0.5
    flips: check.Unit = 0.02
    d_passive: check.Count = 100
    d_active: check.Count = 20

    def __post_init__(self) -> None:
        check.fields(self)
        if len(set(self.labels)) != len(self.labels) or len(self.labels) < 2:
            rule = "at least two different names"
            raise check.fail("several_gaussian.labels", rule, self.labels)

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng = numpy_generator(seed, "world", "several_gaussian")
        sizes = {"train": self.rows, "validation": self.validation_rows, "test": self.test_rows}
        n, many = sum(sizes.values()), len(self.labels)
        score, tables = np.zeros((n, many)), {}
        for party, width in (("active", self.d_active), ("passive", self.d_passive)):
            x = rng.standard_normal((n, width))
            w = rng.standard_normal((width, many))
            score += _WEIGHTS[party] * (x @ (w / np.linalg.norm(w, axis=0)))
            tables[party] = numeric_table(x, [f"{party}_{i}" for i in range(width)])
        spread = math.hypot(*_WEIGHTS.values())
        ones = score > spread * NormalDist().inv_cdf(1 - self.positive_rate)
        ones ^= rng.random((n, many)) < self.flips
        return Source(
            name="several_gaussian", parties=tables, active="active", y=np.zeros(n, dtype=np.int64),
            class_names=(" and ".join(self.labels),), values=ones.astype(np.float64),
            labels=tuple(self.labels), split=np.repeat(list(sizes), list(sizes.values())),
            digest=world_digest("several_gaussian", self),
        )  # fmt: skip
