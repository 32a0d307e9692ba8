"""Leaky toy world: small and easy, with rare positives, so that every label attack must find it.

The label is the sign of w_A . x_A + 0.3 w_B . x_B less a threshold, without noise, where the
passive party holds x_A. A share `positive_rate` is positive: the gradient of a rare class is much
larger, so norm and direction give training labels away; the passive party's trained model points
along w_A, so its embeddings give labels away too; and its many columns make a few known labels
nearly worthless without the federation.

What a sound audit finds: after training, every label attack on received gradients or on the own
trained model has an AUC far above 0.5 and above its control. With a 32-8 bottom model and 15
epochs: gradient norm 0.93 on training rows; logistic regression on the embedding with ten labels a
class 0.96 on test rows against 0.77 without the federation. An attack that fails here is broken.

Source: this package's own test bed.
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
class Leaky(DataSet):
    """A fresh world for each seed.

    Args:
        rows: rows in all; the split is by seed.
        positive_rate: share of positives.
        d_passive, d_active: columns of the parties.
    """

    rows: Annotated[int, check.at_least(100)] = 1000
    positive_rate: check.OpenUnit = 0.2
    d_passive: check.Count = 40
    d_active: check.Count = 5

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        return half_space(self, seed, active=0.3, passive=1.0)
