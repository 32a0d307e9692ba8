"""ID-LMID: passive parties learn only row sets whose class shares are close to those of all rows.

A row set, of class shares p_in inside and p_out outside, may be shown if

    max( KL(p_in || prior), KL(p_out || prior) ) <= xi,    xi = 1 / strength

in natural logarithms. It is asked of both sides of every split that a passive party would own, and
of both children of every node: passive parties may help to split them if both obey, since each
follows from the other. What may not be shown is split by the active party's columns alone.

Hook: shows. Owner: the active party.
Guarantee: none; a limit on each row set is none on many of them together. Holds in the profiles
``paper`` and ``secretflow``: every row set that follows from one tree obeys the limit, if it is
grown on all rows (a union of sets that obey does, for divergence is convex). Holds not
in ``fate-2`` and ``xgboost-open``, which show every party the node of every row whoever split it.
Does not stop: attacks that add up many row sets, each within the limit.

Source: Takahashi, Liu, Liu, "Eliminating label leakage in tree-based vertical federated learning",
arXiv:2307.10318 (2023), and its code (github.com/Koukyosyumei/ID2Graph, secureboost/node.h), which
asks about the same sets; the rows of GOSS: this package's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.plugin import Guarantee, Own, Policy, RowSets, RunFacts, registry

ALIASES = ("lmid", "mutual_information_limit")


@registry.defense
@dataclass(frozen=True)
class IdLmid(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = "1 / largest divergence of a row set"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"xi": lambda xi: 1.0 / xi}
    trial: ClassVar[tuple[float, float, float]] = (0.0, 10.0, 200.0)
    world: ClassVar[dict[str, Any]] = {"algorithm": "secureboost", "profile": "paper"}

    def shows(self, sets: RowSets, own: Own) -> NDArray[np.bool_]:
        xi = 1.0 / float(own.strength[own.context["replica"]])
        prior = sets.total / sets.total.sum()
        inside = measure_divergence(sets.counts, prior)
        outside = measure_divergence(sets.total - sets.counts, prior)
        found: NDArray[np.bool_] = np.maximum(inside, outside) <= xi + 1e-12
        return found

    def acts_in(self, profile: str) -> frozenset[str]:
        return find_hidden(self.acts_on, profile)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(reason=describe_view(facts))


def measure_divergence(counts: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[Any]:
    """KL divergence of class shares (..., C) from the prior (C,), (...); 0 of no rows."""
    size = counts.sum(axis=-1, keepdims=True)
    share = counts.clip(0) / np.maximum(size, 1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(share > 0, share * np.log(share / prior), 0.0)
    found: NDArray[Any] = np.where(size[..., 0] > 0, terms.sum(axis=-1), 0.0)
    return found


OPEN = ("fate-2", "xgboost-open")
"""Profiles that show every party the node of every row, whoever split it."""


def find_hidden(kinds: frozenset[str], profile: str) -> frozenset[str]:
    """What a policy of row sets acts on, without row sets where a profile shows them anyway."""
    return kinds - {"partition"} if profile in OPEN else kinds


def find_open_nodes(facts: RunFacts) -> str:
    """That a profile hides no node, in words; or ''."""
    if facts.profile not in OPEN:
        return ""
    return f"the profile {facts.profile} shows every party the node of every row"


def describe_view(facts: RunFacts) -> str:
    """Why nothing is claimed of a policy of row sets, with the view in which it holds, in words."""
    return find_open_nodes(facts) or (
        "it holds for the row sets that passive parties help to split, and row sets add up over "
        "trees"
    )
