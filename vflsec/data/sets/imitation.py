"""Positive control of privileged learning: the partner's columns are a function of one's own.

    x_A ~ N(0, I_6),   x_B = sin(2 x_A W) + 0.05 e,   y ~ Bernoulli(sigmoid(2 x_B . w)),

with W (6, 8) of columns N(0, I/6) and w ~ N(0, I_8) drawn for each seed. Everything there is to
know about y stands in x_A, but bent: a model of x_A alone has to find eight waves from one label a
row, while a teacher that sees x_B finds a plane. So a student of x_A who imitates that teacher, or
its representation of x_B, beats one that has the labels only. 1,440 rows train, 360 validate and
7,200 test; ``aligned = 1200`` in ``[data]`` leaves the active party 240 labelled rows of its own.

What a sound audit finds: an AUC of 0.94 for split training and of 0.90 for the active party alone
with all its labels; students in between, FPD at 0.91 with beta = N_n / N_o and at 0.89, below the
active party alone, with beta = 1. Logistic regression has about 0.95 on x_B and 0.73 on x_A.

Source: this package's own design, for the claims of Li, Yao, Liu, "Vertical semi-federated learning
for efficient online advertising", arXiv:2209.15635 (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._worlds import begin_world, make_world, name_columns
from vflsec.data.source import Source
from vflsec.plugins import registry


@registry.dataset
@dataclass(frozen=True)
class Imitation(DataSet):
    """A fresh world for each seed.

    Args:
        rows: training rows.
        validation_rows, test_rows: rows on top.
        d_active, d_passive: columns of the parties.
        noise: standard deviation of what x_B has beyond the function of x_A.
    """

    rows: Annotated[int, check.at_least(50)] = 1440
    validation_rows: Annotated[int, check.at_least(50)] = 360
    test_rows: Annotated[int, check.at_least(50)] = 7200
    d_active: check.Count = 6
    d_passive: check.Count = 8
    noise: check.NonNegative = 0.05

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng, sides, n = begin_world(self, seed, "imitation")
        mix = rng.standard_normal((self.d_active, self.d_passive)) / np.sqrt(self.d_active)
        weights = rng.standard_normal(self.d_passive)
        x_a = rng.standard_normal((n, self.d_active))
        x_b = np.sin(2 * x_a @ mix) + self.noise * rng.standard_normal((n, self.d_passive))
        positive = rng.random(n) < 1 / (1 + np.exp(-2 * x_b @ weights))
        parties = {p: name_columns(p, x) for p, x in (("active", x_a), ("passive", x_b))}
        names = ("negative", "positive")
        return make_world(self, parties, positive.astype(np.int64), names, sides)
