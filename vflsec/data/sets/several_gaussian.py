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
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._worlds import add_parties, begin_world, make_world
from vflsec.data.source import Source
from vflsec.plugins import registry

_WEIGHTS = {"active": 0.7, "passive": 1.5}


@registry.dataset
@dataclass(frozen=True)
class SeveralGaussian(DataSet):
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
        super().__post_init__()
        if len(set(self.labels)) != len(self.labels) or len(self.labels) < 2:
            rule = "at least two different names"
            raise check.fail("several_gaussian.labels", rule, self.labels)

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng, sides, n = begin_world(self, seed, "several_gaussian")
        score = np.zeros((n, len(self.labels)))
        parties = add_parties(self, rng, score, _WEIGHTS)
        spread = math.hypot(*_WEIGHTS.values())
        ones = score > spread * NormalDist().inv_cdf(1 - self.positive_rate)
        ones ^= rng.random(score.shape) < self.flips
        return make_world(
            self, parties, np.zeros(len(score), dtype=np.int64), (" and ".join(self.labels),),
            sides, values=ones.astype(np.float64), labels=tuple(self.labels),
        )  # fmt: skip
