"""Positive control of self-supervised learning: two bent views of what decides the label.

    u = m_y + 0.8 e,   m_c = 1.3 e_c,   x_k = tanh(u A_k + 2 n_k B_k) + 0.2 e_k,

eight classes alike often, u in 6 dimensions, a nuisance n_k of 12 dimensions that each party has to
itself, 60 columns a party; A_k (6, 60) and B_k (12, 60) of entries N(0, 1/6) and N(0, 1/12), all
drawn for each seed. What both views share is u; within one view it is drowned in n_k. So pairing
views without labels (FedCSSL, FedHSSL) tells which part matters, and 100 labels then suffice, while
a network trained on the 100 labels alone has to find it among 60 columns. 3,000 rows train, 100
validate and 3,000 test; set ``aligned = 0.4`` and ``labelled = 100`` in ``[data]``.

What a sound audit finds: an accuracy of 0.71 for split training on 100 labels, 0.67 after local
self-supervision alone, 0.76 and 0.75 after FedCSSL and FedHSSL with small encoders and 15 global
iterations; chance is 0.125.

Source: this package's own design, for the claims of He, Kang et al., "A hybrid self-supervised
learning framework for vertical federated learning", arXiv:2208.08934 (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from vflsec.core import check
from vflsec.data.names import party_names
from vflsec.data.sets._parts import DataSet
from vflsec.data.sets._worlds import begin_world, make_world, name_columns
from vflsec.data.source import Source
from vflsec.plugins import registry

SHARED, PRIVATE = 6, 12


@registry.dataset
@dataclass(frozen=True)
class TwoViews(DataSet):
    """A fresh world for each seed.

    Args:
        rows: training rows.
        validation_rows, test_rows: rows on top.
        parties: number of views.
        columns: of each party.
        classes: number of classes.
        nuisance: weight of what each party has to itself; 0 leaves nothing to tell apart.
    """

    rows: Annotated[int, check.at_least(50)] = 3000
    validation_rows: Annotated[int, check.at_least(50)] = 100
    test_rows: Annotated[int, check.at_least(50)] = 3000
    parties: Annotated[int, check.at_least(2)] = 2
    columns: check.Count = 60
    classes: Annotated[int, check.at_least(2)] = 8
    nuisance: check.NonNegative = 2.0

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng, sides, _ = begin_world(self, seed, "two_views")
        y = np.concatenate([rng.permutation(np.arange(n) % self.classes) for n in sides.values()])
        means = 1.3 * rng.standard_normal((self.classes, SHARED))
        u = means[y] + 0.8 * rng.standard_normal((len(y), SHARED))
        parties = {}
        for party in party_names(self.parties):
            a = rng.standard_normal((SHARED, self.columns)) / np.sqrt(SHARED)
            b = rng.standard_normal((PRIVATE, self.columns)) / np.sqrt(PRIVATE)
            own = rng.standard_normal((len(y), PRIVATE))
            x = np.tanh(u @ a + self.nuisance * own @ b)
            x += 0.2 * rng.standard_normal(x.shape)
            parties[party] = name_columns(party, x)
        names = tuple(str(c) for c in range(self.classes))
        return make_world(self, parties, y.astype(np.int64), names, sides)
