"""First principal direction: what varies most in an own table of vectors is often the label.

With rows e_i (own embeddings z_i, or received gradients g_i), their mean m, and v the first right
singular vector of the centred table, a_i = <e_i - m, v>. Score: the signed projection a_i, or its
square (an outlier score) with ``score = "squared"``. The sign of v is fixed in one of two ways: by
the known rows (``orient = "known"``), or without any label by an exact 2-means split of the a_i
whose smaller cluster is called the rare class (``orient = "size"``, the published attack).

Attacker: any passive party; two classes. Needs its own trained model (``on = "embedding"``, also
for rows it never trained on) or received gradients; known rows, or the class shares.
Known failure cases: on balanced classes the smaller cluster names nothing, so its sign is a coin
flip; embeddings without an outer activation may stretch the common class, and the size rule then
names the wrong end although the direction is right (the toy world ``leaky`` does so); the direction
of largest variance need not be the label's.

Source: Sun, Yang, Yao, Wang, "Label leakage and protection from forward embedding in vertical
federated learning", arXiv:2203.01451 (2022), section 3; the outlier score: Tran, Li, Madry,
"Spectral signatures in backdoor attacks", NeurIPS 2018, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.nn.points import Points, first_direction, lower_cluster, points
from vflsec.view import View

ALIASES = ("pca", "spectral_attack")


@registry.attack
@dataclass(frozen=True)
class Spectral(Attack):
    """Hyper-parameters.

    Attributes:
        on: ``embedding`` (own, after training) or ``gradient`` (received).
        score: ``signed`` projection, or ``squared``.
        orient: ``known`` (by known rows) or ``size`` (the smaller cluster is the rare class).
        accumulate: gradients only: average each row's gradients over epochs first.
        epoch: gradients only: which epoch is used if not: ``first`` or ``last``.
    """

    on: Literal["embedding", "gradient"] = "embedding"
    score: Literal["signed", "squared"] = "signed"
    orient: Literal["known", "size"] = "known"
    accumulate: bool = True
    epoch: Literal["first", "last"] = "first"
    binary_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.one_of("spectral.on", self.on, ("embedding", "gradient"))
        check.one_of("spectral.score", self.score, ("signed", "squared"))
        check.one_of("spectral.orient", self.orient, ("known", "size"))
        check.one_of("spectral.epoch", self.epoch, ("first", "last"))

    @property
    def form(self) -> str:
        """In which form the messages are recorded, see :class:`vflsec.view.Need`."""
        return "mean" if self.accumulate else self.epoch

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        observed = "model" if self.on == "embedding" else f"gradient:{self.form}"
        return frozenset({observed, "prior" if self.orient == "size" else "known_rows"})

    @property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("train", "test") if self.on == "embedding" else ("train",)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        found = points(view, self.on, self.form)
        x = found.x - found.x.mean(0)
        a = x @ first_direction(x)  # (n,)
        up = self._oriented(view, found, a)
        score = a if up else -a
        if self.score == "squared":
            score = a**2 if self.orient == "known" or self._rare(view) else -(a**2)
        return Guess(self.target, found.rows, score, notes={"share_of_variance": _share(x, a)})

    @staticmethod
    def _rare(view: View) -> bool:
        """True if class 1 is the rare one."""
        return float(view.require_prior()[1]) <= 0.5

    def _oriented(self, view: View, found: Points, a: Tensor) -> bool:
        """True if larger projections mean class 1."""
        if self.orient == "known":
            known = view.require_known()
            value = Points(found.rows, a).of(known.rows)
            ones = known.labels == 1
            if not bool(ones.any()) or bool(ones.all()):
                return True
            return bool(value[ones].mean() >= value[~ones].mean())
        low = lower_cluster(a)
        high_is_small = int((~low).sum()) <= int(low.sum())
        return high_is_small == self._rare(view)


def _share(x: Tensor, a: Tensor) -> float:
    return round(float(a.square().sum() / x.square().sum().clamp_min(1e-300)), 4)
