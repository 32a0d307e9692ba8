"""First trees local: the active party grows the first trees from its own columns alone.

Trees 0 to k - 1, k the strength, are grown without the passive parties: no gradient pair, no sum
and no row set of them crosses. Several classes have one tree each a round, and k counts trees. It
is ``complete_secure = k`` of FATE and ``first_tree_with_label_holder_feature`` of SecretFlow
(k = 1), both off by default.

Hook: shows. Owner: the active party.
Guarantee: none; whoever is shown no tree learns nothing from trees, so k equal to all trees is
training alone. Does not stop: votes in the leaves of the later trees, which are shown as ever.

Source: Cheng et al., "SecureBoost", arXiv:1901.08755 (2019), on the first tree's leakage; Kang et
al., arXiv:2404.04490 (2024), local trees as a countermeasure; FATE 2.x, hetero SecureBoost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.plugin import Facts, Guarantee, Own, Policy, RowSets, RunFacts, registry

ALIASES = ("complete_secure", "completely_secureboost")


@registry.defense
@dataclass(frozen=True)
class LocalTrees(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = "trees grown alone"
    whole: ClassVar[bool] = True
    trial: ClassVar[tuple[float, float, float]] = (0.0, 1.0, 3.0)
    quantities: ClassVar[bool] = True
    world: ClassVar[dict[str, Any]] = {"algorithm": "secureboost"}

    @classmethod
    def find_largest(cls, facts: Facts) -> float:
        """All trees; beyond them there is nothing left to grow alone."""
        trees = float(facts.extra.get("trees", cls.largest))
        return trees * float(facts.extra.get("trees_a_round", 1))

    def shows(self, sets: RowSets, own: Own) -> NDArray[np.bool_]:
        alone = float(own.strength[own.context["replica"]])
        return np.full(sets.counts.shape[:-1], sets.tree >= alone)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(reason="it hides the first trees alone")
