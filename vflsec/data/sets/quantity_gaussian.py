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
from vflsec.core.rng import numpy_generator
from vflsec.data.sets._parts import numeric_table, world_digest
from vflsec.data.source import Source
from vflsec.plugins import registry

_WEIGHTS = {"active": 0.7, "passive": 1.5}


@registry.dataset
@dataclass(frozen=True)
class QuantityGaussian:
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

    def __post_init__(self) -> None:
        check.fields(self)

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng = numpy_generator(seed, "world", "quantity_gaussian")
        sizes = {"train": self.rows, "validation": self.validation_rows, "test": self.test_rows}
        n = sum(sizes.values())
        value = self.noise * rng.standard_normal(n)
        tables = {}
        for party, width in (("active", self.d_active), ("passive", self.d_passive)):
            x = rng.standard_normal((n, width))
            w = rng.standard_normal(width)
            value += _WEIGHTS[party] * (x @ (w / np.linalg.norm(w)))
            tables[party] = numeric_table(x, [f"{party}_{i}" for i in range(width)])
        return Source(
            name="quantity_gaussian", parties=tables, active="active",
            y=np.zeros(n, dtype=np.int64), class_names=("value",), values=value,
            split=np.repeat(list(sizes), list(sizes.values())),
            digest=world_digest("quantity_gaussian", self),
        )  # fmt: skip
