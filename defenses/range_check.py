"""Range check: passive parties take gradient pairs alone that are proven to lie on a coarse grid.

The active party proves of each cipher, without showing it, that it holds a whole multiple of s, the
strength, of g in [-1, 1] and of h in [0, 1], and rounds to it:

    g <- s round( g / s ),    h <- s round( h / s )

So a sum of g has as many bits as the grid and the number of rows give it, and no room for others:
of marks 2^-i, one for each row, 1 + log2(1 / s) are on the grid. A range alone, without the grid,
stops nothing: marks fit in any range. Proofs are emulated: values off the grid are rounded to it.

Hook: pairs. Owner: every passive party.
Guarantee: none. Holds against marks on more than 1 + log2(1 / s) rows a tree (bin_sums with
``marks``). Does not stop: marks on that many rows in each of many trees; sums over single rows of
an honest party; the sides of rows at own splits, which cross in plain; labels.

Source: Weng et al., "Privacy leakage of real-world vertical federated learning", arXiv:2011.09290
(2020), for the attack; proofs of a range: Bunz et al., "Bulletproofs", IEEE S&P 2018; the grid:
this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.plugin import Guarantee, Own, Policy, RunFacts, registry

ALIASES = ("gradient_range_proof",)


@registry.defense
@dataclass(frozen=True)
class RangeCheck(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = "s, the step of the grid of gradients"
    largest: ClassVar[float] = 1.0
    trial: ClassVar[tuple[float, float, float]] = (0.0, 2.0**-20, 2.0**-4)
    owner: ClassVar[str] = "passive"  # type: ignore[misc]
    world = {"algorithm": "secureboost"}

    def pairs(self, values: NDArray[np.float64], own: Own) -> NDArray[np.float64]:
        step = float(own.strength[own.context["replica"]])
        out = values.copy()
        out[:, :2] = (np.round(values[:, :2] / step) * step).clip([-1.0, 0.0], 1.0)
        return out

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(reason="a grid bounds how many rows a sum can name, and does not end it")
