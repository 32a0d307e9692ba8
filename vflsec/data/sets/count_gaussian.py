"""Positive control of counts: the columns of quantity_gaussian, and a count from both parties.

    y ~ Poisson(exp(q / 2)),    q the quantity of quantity_gaussian,

so that the mean is 1.4 and a third of the counts are 0.

What a sound audit finds: behind a Poisson loss the gradient of a row is its mean less its count, so
a passive party ranks the counts of training rows rightly (concordance above 0.9).

Source: this package's own design; the form of quantity_gaussian for counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vflsec.core.rng import numpy_generator
from vflsec.data.sets.quantity_gaussian import QuantityGaussian
from vflsec.data.source import Source
from vflsec.plugins import registry


@registry.dataset
@dataclass(frozen=True)
class CountGaussian(QuantityGaussian):
    """A fresh world for each seed; parameters are those of quantity_gaussian."""

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        base = super().load(seed)
        assert base.values is not None
        counts = numpy_generator(seed, "world", "count_gaussian").poisson(np.exp(base.values / 2))
        return replace(base, values=counts.astype(float), class_names=("count",), task="counts")
