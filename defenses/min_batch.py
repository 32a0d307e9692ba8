"""Minimum batch: a gradient that another party reads is over many rows for each of its columns.

A party with p columns that reads g = X^T d / b solves it for the derivative d of every row where
b <= p. So batches have at least

    b >= strength x p,    p of the passive party that has most columns

rows; the last batch takes in what would be fewer.

Hook: least_rows. Owner: the active party.
Guarantee: none. At more rows than columns the equations have many solutions, and the party does not
know which. Does not stop: the least-squares fit among them (glm_gradient), which is a classifier of
the party's own columns that was fitted to all labels; where these say much of the label it names
nearly every row, however large the batch is.

Source: this package's own, by counting equations and unknowns of the protocol of Hardy et al.,
arXiv:1711.10677 (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from vflsec.plugin import Guarantee, Own, Policy, RunFacts, registry

ALIASES = ("minimum_batch",)


@registry.defense
@dataclass(frozen=True)
class MinBatch(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = "rows of a batch / widest passive columns"
    trial: ClassVar[tuple[float, float, float]] = (0.0, 0.5, 4.0)
    quantities: ClassVar[bool] = True
    world: ClassVar[dict[str, Any]] = {"algorithm": "vertical_glm", "batch_size": 4}

    def least_rows(self, columns: int, own: Own) -> int:
        return math.ceil(float(own.strength[own.context["replica"]]) * columns)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(reason="many solutions are left, and none is hidden")
