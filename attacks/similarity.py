"""Similarity to labelled rows: a row has the label of the one its vector lies nearest to.

Vectors e_i are received gradients or own embeddings; e_j with label y_j those of the known rows.
    nearest:  s_ic = max over known j of class c of sim(e_i, e_j)
    centre:   s_ic = sim(e_i, mean of the known e_j of class c)
    seeded:   s_ic = sim(e_i, centre c of a k-means over all rows that starts at the class centres)
with sim the cosine, or minus the Euclidean distance of standardised vectors. Which of the six is
used is decided by stratified cross-validation on the known rows; of more than 20,000 rows its
k-means is over evenly spaced ones.

Attacker: any passive party that received gradients (rows in training), or holds its trained model
(any row), and knows at least one row of each class; any number of classes. Known rows are not
scored.
Known failure cases: one known row a class leaves nothing to choose by, so the first variant is
used; classes that overlap in the observed space.

Source: Liu, Lyu, Cui, Tao, "Similarity-based label inference attack against training and inference
of split learning", arXiv:2203.05222 (2022), sections on Euclidean and cosine distance to one known
sample a class and on seeded k-means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vflsec.core.attack import OTHER_FORMS, ReadsGradients
from vflsec.inference.clustering_points import Points, k_means, make_points
from vflsec.inference.completion import assign_folds, cv_score
from vflsec.plugin import (
    Guess,
    View,
    check,
    registry,
)

ALIASES = ("sim_lia", "similarity_lia")
FAMILY = "clusters"
VARIANTS = (
    "nearest_cosine", "centre_cosine", "seeded_cosine",
    "nearest_euclid", "centre_euclid", "seeded_euclid",
)  # fmt: skip
ENOUGH = 20_000
"""Rows by which a variant is chosen."""


@registry.attack
@dataclass(frozen=True)
class Similarity(ReadsGradients):
    """Hyper-parameters beside those of an attack on gradients.

    Attributes:
        on: ``gradient`` (received) or ``embedding`` (own, after training).
        variants: which compete in cross-validation; ties go to the earlier one.
    """

    on: Literal["gradient", "embedding"] = "gradient"
    variants: Annotated[tuple[str, ...], check.some_of(VARIANTS)] = VARIANTS
    labelwise: ClassVar[bool] = True
    tries = (*OTHER_FORMS, {"on": "embedding"})
    seconds: ClassVar[float] = 0.1

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        observed = "model" if self.on == "embedding" else f"gradient:{self.recorded_form}"
        return frozenset({observed, "known_rows"})

    @property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("train", "test") if self.on == "embedding" else ("train",)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, classes = view.require_known(), view.facts.classes
        missing = sorted(set(range(classes)) - set(known.labels.tolist()))
        if missing:
            raise self.lacks_class(f"none of {missing}")
        found = make_points(view, self.on, self.recorded_form)
        spaces = {how: space(found, how) for how in {v.partition("_")[2] for v in self.variants}}
        fold = assign_folds(known.labels)
        best, best_cv = self.variants[0], -1.0
        cv: dict[str, float] = {}
        if int(fold.max()) >= 1:
            for variant in self.variants:
                held = torch.zeros(len(known), classes, dtype=torch.float64)
                for f in range(int(fold.max()) + 1):
                    use = fold != f
                    out = similarities(
                        spaces, known.rows[use], known.labels[use], classes, variant,
                        known.rows[~use],
                    )  # fmt: skip
                    held[(~use).cpu()] = out.cpu()
                cv[variant] = cv_score(held.numpy(), known.labels.cpu().numpy())
                if cv[variant] > best_cv + 1e-12:
                    best, best_cv = variant, cv[variant]
        scores = similarities(spaces, known.rows, known.labels, classes, best)
        rest = Points(found.rows, scores).without(known.rows)
        notes = {"variant": best, "cv": {k: round(v, 4) for k, v in cv.items()}}
        return Guess(self.target, rest.rows, np.asarray(rest.x.cpu()), notes=notes)


def space(found: Points, measure: str) -> Points:
    """The points among which the Euclidean distance means `measure`: ``cosine`` or ``euclid``."""
    if measure == "cosine":
        return Points(found.rows, nn.functional.normalize(found.x, dim=1))
    return found.standardised()


def similarities(
    spaces: Mapping[str, Points], rows: Tensor, labels: Tensor, classes: int, variant: str,
    of: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Similarity (n, C) of points to each class, given the labels of some rows.

    Args:
        spaces: by measure, see :func:`space`.
        rows, labels: given.
        classes: their number C.
        variant: one of :data:`VARIANTS`.
        of: sample ids (n,) whose similarity is asked; all by default.
    """
    how, _, measure = variant.partition("_")
    found = spaces[measure]
    known = found.of(rows)
    asked = found.x if of is None else found.of(of)
    if how == "nearest":
        s = -torch.cdist(asked, known)  # (n, q)
        by_class = [s[:, labels == c].amax(1) for c in range(classes)]
        return torch.stack(by_class, dim=1)
    centres = torch.stack([known[labels == c].mean(0) for c in range(classes)])
    if how == "seeded":
        step = 1 if of is None else -(-len(found.x) // ENOUGH)
        centres = k_means(found.x[::step], classes, start=centres).centres
    return -torch.cdist(asked, centres)
