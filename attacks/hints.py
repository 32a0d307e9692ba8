"""A few hints: rows whose gradient lies near, or projects far onto, that of known positives.

With the gradients h_1 .. h_k of k known positives, the score of row i is one of
    distance:    -min_j ||g_i - h_j||_2
    projection:  <g_i, h> / ||h||_2  with h the longest of the h_j.

Attacker: any passive party that receives per-row gradients and knows k positives; two classes. The
hints are never scored. By default each row's gradients are averaged over epochs first.
Known failure cases: distance confuses a hard positive with an easy negative when gradients are
short; both fail where per-row Jacobians differ in sign, and under noise stronger than the
gradients.

Source: Li et al., "Label leakage and protection in two-party split learning", ICLR 2022,
arXiv:2102.08504, appendix (k-hint attacks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.nn.points import points
from vflsec.view import View

ALIASES = ("k_hints", "hint")


@registry.attack
@dataclass(frozen=True)
class Hints(Attack):
    """Hyper-parameters.

    Attributes:
        measure: ``projection`` or ``distance``.
        hints: k, how many known positives are used, in grant order.
        accumulate: average each row's gradients over epochs first.
        epoch: which epoch is used if not: ``first`` or ``last``.
    """

    measure: Literal["projection", "distance"] = "projection"
    hints: int = 5
    accumulate: bool = True
    epoch: Literal["first", "last"] = "first"
    binary_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.one_of("hints.measure", self.measure, ("projection", "distance"))
        check.one_of("hints.epoch", self.epoch, ("first", "last"))
        check.integer("hints.hints", self.hints)

    @property
    def form(self) -> str:
        """In which form the messages are recorded, see :class:`vflsec.view.Need`."""
        return "mean" if self.accumulate else self.epoch

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"gradient:{self.form}", "known_rows"})

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        hints = view.require_known().of_class(1)[: self.hints]
        if len(hints) < self.hints:
            raise ThreatModelError(
                f"hints needs {self.hints} known positives, was granted {len(hints)}. "
                "Raise known_rows or lower hints."
            )
        found = points(view, "gradient", self.form)
        h, rest = found.of(hints), found.without(hints)  # (k, d), (n, d)
        if self.measure == "distance":
            score = -torch.cdist(rest.x, h).amin(1)
        else:
            length = torch.linalg.vector_norm(h, dim=1)
            longest = int(length.argmax())
            score = rest.x @ h[longest] / length[longest].clamp_min(1e-300)
        return Guess(self.target, rest.rows, score)
