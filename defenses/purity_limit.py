"""Purity limit: passive parties learn only row sets in which no class is too frequent.

A row set may be shown if its largest class share is at most the limit

    max_c p_c <= 1 - strength * (1 - max_c prior_c)

so that strength 1 shows sets no purer than all rows are, and strength 0 any. It is asked of the
same sets as ``id_lmid``. With ``rows`` a set must have so many rows, too.

Hook: shows. Owner: the active party.
Guarantee: none. Holds in the profiles ``paper`` and ``secretflow``: no row set that follows from
one tree is purer, if it is grown on all rows. Does not stop: attacks that add up many row sets,
none of them pure; anything in ``fate-2`` and ``xgboost-open``, which show every party the node of
every row whoever split it.

Source: Kang, Ren, Fan, Yang, Tong, Yang, "Hyperparameter optimization for SecureBoost via
constrained multi-objective federated learning", arXiv:2404.04490 (2024), which has a purity
threshold among its countermeasures; the scale of the strength: this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.defenses.id_lmid import describe_view, find_hidden
from vflsec.plugin import Guarantee, Own, Policy, RowSets, RunFacts, check, registry

ALIASES = ("purity_threshold",)


@registry.defense
@dataclass(frozen=True)
class PurityLimit(Policy):
    """Hyper-parameters.

    Attributes:
        rows: how many rows a set must have at least.
    """

    rows: check.Count = 1
    strengths: ClassVar[str] = "kept share of the prior's impurity"
    largest: ClassVar[float] = 1.0
    trial: ClassVar[tuple[float, float, float]] = (0.0, 0.5, 1.0)
    world: ClassVar[dict[str, Any]] = {"algorithm": "secureboost", "profile": "paper"}

    def shows(self, sets: RowSets, own: Own) -> NDArray[np.bool_]:
        strength = float(own.strength[own.context["replica"]])
        most = 1 - strength * (1 - (sets.total / sets.total.sum()).max())
        purity = sets.counts.max(axis=-1) / np.maximum(sets.sizes, 1e-300)
        found: NDArray[np.bool_] = (purity <= most + 1e-12) & (sets.sizes >= self.rows)
        return found

    def acts_in(self, profile: str) -> frozenset[str]:
        return find_hidden(self.acts_on, profile)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(reason=describe_view(facts))
