"""k-anonymous leaves and bins: whatever leaves of a row set or of a sum is over k rows.

The active party shows row sets of at least k rows alone, k the strength. A passive party merges
neighbouring bins of a node and column, the lower one into the next, until each sum is over k rows:

    a bin of 0 < n < k rows is added to the bin above it; what is left at the upper end, missing
    values of fewer than k rows with it, to the last bin that had enough

so that a cut between merged bins has the sums of the cut below them, and is never taken.

Hook: shows, sums. Owner: all, the active party for leaves and the passive ones for bins.
Guarantee: none. Holds for each sum of bins in the profiles ``paper``, ``fate-2`` and
``secretflow``: none is over fewer rows than k, or than the node has. Holds for row sets in
``paper`` and ``secretflow``. Does not stop: row sets in ``fate-2`` and ``xgboost-open``, which show
the active party's own splits too; votes in leaves of k rows and more; differences of sums of a node
and its children, whose bins were merged elsewhere; marks in the place of gradients (bin_sums).

Source: Sweeney, "k-anonymity: a model for protecting privacy", International Journal of
Uncertainty, Fuzziness and Knowledge-Based Systems 10 (2002); for bins and leaves: this package's
own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.defenses.id_lmid import describe_view, find_hidden
from vflsec.plugin import Guarantee, Own, Policy, RowSets, RunFacts, registry

ALIASES = ("k_anonymity", "min_rows_shown")


@registry.defense
@dataclass(frozen=True)
class KAnonymous(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = "least rows of a set or sum"
    trial: ClassVar[tuple[float, float, float]] = (0.0, 5.0, 40.0)
    owner: ClassVar[str] = "all"  # type: ignore[misc]
    quantities: ClassVar[bool] = True
    world: ClassVar[dict[str, Any]] = {"algorithm": "secureboost", "profile": "paper"}

    def shows(self, sets: RowSets, own: Own) -> NDArray[np.bool_]:
        k = float(own.strength[own.context["replica"]])
        found: NDArray[np.bool_] = (sets.sizes >= k) | (sets.sizes == 0)
        return found

    def sums(
        self, values: NDArray[np.float64], rng: np.random.Generator, own: Own
    ) -> NDArray[np.float64]:
        return merge_bins(values, float(own.strength[own.context["replica"]]))

    def acts_in(self, profile: str) -> frozenset[str]:
        return find_hidden(self.acts_on, profile)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(reason=describe_view(facts))


def merge_bins(sums: NDArray[np.float64], k: float) -> NDArray[np.float64]:
    """Sums (S, d, B + 1, 3) of which none is over fewer rows than k, or than there are."""
    out, held = np.zeros_like(sums), np.zeros_like(sums[:, :, 0])
    last = np.full(held.shape[:2], sums.shape[2] - 2)  # the bin of the last group that closed
    missing = sums[:, :, -1]
    few = (missing[..., 2] < k)[..., None]
    out[:, :, -1] = np.where(few, 0.0, missing)
    for b in range(sums.shape[2] - 1):
        held = held + sums[:, :, b]
        closes = held[..., 2] >= k
        out[:, :, b] = np.where(closes[..., None], held, 0.0)
        last = np.where(closes, b, last)
        held = np.where(closes[..., None], 0.0, held)
    rest = held + np.where(few, missing, 0.0)
    s, d = np.indices(last.shape)
    moved = out[s, d, last] * (rest[..., 2:] > 0)
    out[s, d, last] -= moved
    out[:, :, -2] += moved + rest
    return out
