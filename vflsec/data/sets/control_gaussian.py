"""Positive control: 100 passive and 20 active normal columns, label = noisy sign of both.

    y = 1[1.5 w_A . x_A + 0.7 w_B . x_B > t], then a share `flips` of the labels flipped,

with unit vectors w_A (passive, 100 columns) and w_B (active, 20 columns) drawn for each seed, and
t = 0 for balanced classes (shifted for another `positive_rate`). 2,000 rows train, 1,000 test, and
500 more validate.

What a sound audit finds: with ten known labels a class, 100 columns are far too many for the
passive party alone (control about 0.58 accuracy on test rows), while its own trained bottom model
points along w_A: logistic regression on its embedding reaches about 0.8 and the task itself about
0.9, an advantage of 0.20 or more. Heavy gradient noise (ratio 25) leaves hardly any of it. An
attack on the trained model that finds nothing here is not alive; gradient norms alone say nothing
while the classes are balanced (AUC 0.5), and much at ``positive_rate = 0.1`` (above 0.97).

Source: this package's own design, in the manner of the synthetic controls of A. Sun et al. (2022),
"Label Leakage and Protection from Forward Embedding in Vertical Federated Learning",
arXiv:2203.01451.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vflsec.core import check
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._worlds import half_space
from vflsec.data.source import Source
from vflsec.plugins import registry


@registry.dataset
@dataclass(frozen=True)
class ControlGaussian(DataSet):
    """A fresh world for each seed.

    Args:
        rows: training rows.
        test_rows, validation_rows: rows on top.
        flips: share of labels flipped.
        positive_rate: share of positives before flips.
        d_passive, d_active: columns of the parties.
    """

    rows: Annotated[int, check.at_least(50)] = 2000
    test_rows: Annotated[int, check.at_least(50)] = 1000
    validation_rows: Annotated[int, check.at_least(50)] = 500
    flips: check.BelowOne = 0.03
    positive_rate: check.OpenUnit = 0.5
    d_passive: check.Count = 100
    d_active: check.Count = 20

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        return half_space(self, seed, active=0.7, passive=1.5)
