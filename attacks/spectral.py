"""First principal direction: what varies most in an own table of vectors is often the label.

With rows e_i (own embeddings z_i, or received gradients g_i), their mean m, and v the first right
singular vector of the centred table, a_i = <e_i - m, v>. Score: the signed projection a_i, or its
square (an outlier score) with ``score = "squared"``. The sign of v is fixed in one of two ways: by
the known rows (``orient = "known"``), or by an exact 2-means split of the a_i whose smaller cluster
is called the rare class (``orient = "size"``, the published attack, which needs no label). Squares
mark the rare class (class 1, where the shares were not granted). Either of these rules gives way to
known rows that contradict it, where any were granted.

Attacker: any passive party; two classes. Needs its own trained model (``on = "embedding"``, also
for rows it never trained on) or received gradients; known rows, or the class shares.
Known failure cases: on balanced classes the smaller cluster names nothing, so its sign is a coin
flip; embeddings without an outer activation may stretch the common class, and the size rule then
names the wrong end although the direction is right (the toy world ``leaky`` does so); the direction
of largest variance need not be the label's. Without known rows a leak and its mirror image look
the same.

Source: Sun, Yang, Yao, Wang, "Label leakage and protection from forward embedding in vertical
federated learning", arXiv:2203.01451 (2022), section 3; the outlier score: Tran, Li, Madry,
"Spectral signatures in backdoor attacks", NeurIPS 2018, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.core.attack import ReadsGradients
from vflsec.inference.clustering_points import first_direction, lower_cluster, make_points
from vflsec.inference.score_orientation import find_orientation
from vflsec.plugin import Guess, View, registry

ALIASES = ("pca", "spectral_attack")
FAMILY = "clusters"


@registry.attack
@dataclass(frozen=True)
class Spectral(ReadsGradients):
    """Hyper-parameters beside those of an attack on gradients.

    Attributes:
        on: ``embedding`` (own, after training) or ``gradient`` (received).
        score: ``signed`` projection, or ``squared``.
        orient: ``known`` (by known rows) or ``size`` (the smaller cluster is the rare class).
    """

    on: Literal["embedding", "gradient"] = "embedding"
    score: Literal["signed", "squared"] = "signed"
    orient: Literal["known", "size"] = "known"
    binary_only: ClassVar[bool] = True
    tries = (
        {"score": "squared"}, {"orient": "size"}, {"on": "gradient"},
        {"on": "gradient", "accumulate": "scaled"}, {"on": "gradient", "score": "squared"},
        {"on": "gradient", "accumulate": False},
    )  # fmt: skip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        observed = "model" if self.on == "embedding" else f"gradient:{self.recorded_form}"
        return frozenset({observed, "prior" if self.orient == "size" else "known_rows"})

    @property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("train", "test") if self.on == "embedding" else ("train",)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        found = make_points(view, self.on, self.recorded_form)
        x = found.x - found.x.mean(0)
        a = x @ first_direction(x)  # (n,)
        score = a
        if self.score == "squared":
            score = a**2 if self._rare(view) else -(a**2)
        elif self.orient == "size":
            score = self._by_size(view, a)
        theory = 0.0 if self.score == "signed" and self.orient == "known" else 1.0
        known = view.require_known() if self.orient == "known" else view.known
        score = find_orientation(score, found.rows, known, theory) * score
        share = float(a.square().sum() / x.square().sum().clamp_min(1e-300))
        return Guess(self.target, found.rows, score, notes={"share_of_variance": round(share, 4)})

    def _rare(self, view: View) -> bool:
        """True if class 1 is the rare one."""
        if view.prior is None and self.orient == "known":
            return True
        return float(view.require_prior()[1]) <= 0.5

    def _by_size(self, view: View, a: Tensor) -> Tensor:
        """The projections, turned so that the smaller cluster is the rare class."""
        low = lower_cluster(a)
        high_is_small = int((~low).sum()) <= int(low.sum())
        return a if high_is_small == self._rare(view) else -a
