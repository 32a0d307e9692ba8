"""Clusters without labels: gradients (or embeddings) of one class lie together.

The vectors of all rows are split into as many clusters as there are classes by k-means (best of
several k-means++ starts). Clusters get class names in one of two ways: by size, the largest cluster
being the class with the largest granted share; or by the known rows, as the assignment of clusters
to classes that agrees with most of them. Score of class c: minus the squared distance to the centre
of its cluster.

Attacker: any passive party that received gradients, in every epoch or in a single download, or
holds its trained model. Needs the class shares (``names = "size"``) or known rows (``names =
"known"``); any number of classes.
Known failure cases: with equal class shares sizes name nothing, and the answer is right up to a
permutation only; gradients of rows that are already fitted shrink to zero and mix.

Source: Liu, Lyu, Cui, Tao, "Similarity-based label inference attack against training and inference
of split learning", arXiv:2203.05222 (2022); for one download: Sun et al., "Communication-efficient
vertical federated learning with limited overlapping samples", ICCV 2023 (whose parties cluster
gradients themselves); k-means++: Arthur and Vassilvitskii, SODA 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from vflsec.core.attack import OTHER_FORMS, ReadsGradients
from vflsec.inference.clustering_points import Points, assign, k_means, make_points
from vflsec.plugin import Guess, View, check, registry

ALIASES = ("grad_cluster", "gradient_clustering")
FAMILY = "clusters"


@registry.attack
@dataclass(frozen=True)
class Cluster(ReadsGradients):
    """Hyper-parameters beside those of an attack on gradients.

    Attributes:
        on: ``gradient`` (received) or ``embedding`` (own, after training).
        names: how clusters become classes: ``size`` or ``known``.
        metric: ``euclid``, or ``cosine`` (vectors are given length 1 first).
        restarts: starts of k-means.
    """

    on: Literal["gradient", "embedding"] = "gradient"
    names: Literal["size", "known"] = "size"
    metric: Literal["euclid", "cosine"] = "euclid"
    restarts: check.Count = 8
    any_scale = {"accumulate": "scaled"}
    tries = (
        *OTHER_FORMS, {"names": "known"}, {"names": "known", "accumulate": "scaled"},
        {"metric": "cosine"}, {"metric": "cosine", "names": "known"},
        {"on": "embedding"}, {"on": "embedding", "names": "known"},
    )  # fmt: skip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        observed = "model" if self.on == "embedding" else f"gradient:{self.recorded_form}"
        return frozenset({observed, "prior" if self.names == "size" else "known_rows"})

    @property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("train", "test") if self.on == "embedding" else ("train",)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        found, classes = make_points(view, self.on, self.recorded_form), view.facts.classes
        x = found.x
        if self.metric == "cosine":
            x = nn.functional.normalize(x, dim=1)
        elif self.on == "embedding":
            x = found.standardised().x
        made = k_means(x, classes, rng, restarts=self.restarts)
        of_class = self._names(view, found.rows, made.member, classes)
        scores = -made.distances(x)[:, of_class]  # (n, C)
        rest = Points(found.rows, scores)
        if view.known is not None:
            rest = rest.without(view.known.rows)
        notes = {"cluster_sizes": torch.bincount(made.member, minlength=classes).tolist()}
        return Guess(self.target, rest.rows, rest.x, notes=notes)

    def _names(self, view: View, rows: Tensor, member: Tensor, classes: int) -> list[int]:
        """The cluster of each class."""
        if self.names == "size":
            sizes = np.bincount(member.cpu().numpy(), minlength=classes)
            shares = view.require_prior().cpu().numpy()
            return assign(sizes[:, None] * shares[None, :])  # largest where both are in one order
        known = view.require_known()
        at = member[torch.searchsorted(rows, known.rows)]
        votes = np.zeros((classes, classes))
        np.add.at(votes, (at.cpu().numpy(), known.labels.cpu().numpy()), 1)
        share = votes / votes.sum(0).clip(1)  # of each class's known rows
        return assign(share)
