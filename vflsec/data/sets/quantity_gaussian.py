"""Positive control of regression: 100 passive and 20 active normal columns, a quantity from both.

    y = 1.5 w_A . x_A + 0.7 w_B . x_B + noise e,    e ~ N(0, 1),

with unit vectors w_A (passive) and w_B (active) drawn for each seed. 2,000 rows train, 500 validate
and 1,000 test.

What a sound audit finds: behind a squared error the gradient of a row is its residual, so a passive
party ranks the values of training rows rightly (concordance above 0.9, own columns with ten known
values below 0.65), and its trained bottom points along w_A. Under heavy gradient noise (ratio 25)
neither is left.

Source: this package's own design; the regression form of control_gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._worlds import add_parties, begin_world, make_world
from vflsec.data.source import Source
from vflsec.plugins import registry


@registry.dataset
@dataclass(frozen=True)
class QuantityGaussian(DataSet):
    """A fresh world for each seed.

    Args:
        rows: training rows.
        test_rows, validation_rows: rows on top.
        noise: standard deviation of what no column tells.
        d_passive, d_active: columns of the parties.
    """

    rows: Annotated[int, check.at_least(50)] = 2000
    test_rows: Annotated[int, check.at_least(50)] = 1000
    validation_rows: Annotated[int, check.at_least(50)] = 500
    noise: check.NonNegative = 0.3
    d_passive: check.Count = 100
    d_active: check.Count = 20

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng, sides, n = begin_world(self, seed, "quantity_gaussian")
        value = self.noise * rng.standard_normal(n)
        parties = add_parties(self, rng, value, {"active": 0.7, "passive": 1.5})
        y = np.zeros(len(value), dtype=np.int64)
        return make_world(self, parties, y, ("value",), sides, values=value)
