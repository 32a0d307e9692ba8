"""A few hints: rows whose gradient lies near, or projects far onto, that of known positives.

With the gradients h_1 .. h_k of k known positives, and l_1 .. l_k of as many known negatives where
there are any, the score of row i is one of
    distance:    min_j ||g_i - l_j||_2 - min_j ||g_i - h_j||_2
    projection:  <g_i, h> / ||h||_2  with h the longest of the h_j and -l_j
Without negatives these are the published ones.

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

from vflsec.core.attack import OTHER_FORMS, ReadsGradients
from vflsec.inference.clustering_points import make_points
from vflsec.plugin import (
    Guess,
    ThreatModelError,
    View,
    check,
    registry,
)

ALIASES = ("k_hints", "hint")
FAMILY = "single_gradients"


@registry.attack
@dataclass(frozen=True)
class Hints(ReadsGradients):
    """Hyper-parameters beside those of an attack on gradients.

    Attributes:
        measure: ``projection`` or ``distance``.
        hints: k, how many known positives are used, in grant order.
        negatives: use as many known negatives as well, as far as there are any.
    """

    measure: Literal["projection", "distance"] = "projection"
    hints: check.Count = 5
    negatives: bool = True
    binary_only: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    tries = (
        *OTHER_FORMS, {"measure": "distance"}, {"measure": "distance", "accumulate": "scaled"},
    )  # fmt: skip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"gradient:{self.recorded_form}", "known_rows"})

    def explain_grant(self, view: View) -> str:
        """That too few positives are known, or ''."""
        return self.explain_positives(view, self.hints)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        hints = view.require_known().of_class(1)[: self.hints]
        if why := self.explain_grant(view):
            raise ThreatModelError(why)
        found = make_points(view, "gradient", self.recorded_form)
        against = view.require_known().of_class(0)
        against = against[torch.isin(against, found.rows)][: self.hints if self.negatives else 0]
        h, away = found.of(hints), found.of(against)  # (k, d), (k or fewer, d)
        rest = found.without(torch.cat([hints, against]))  # (n, d)
        if self.measure == "distance":
            score = -torch.cdist(rest.x, h).amin(1)
            if len(away):
                score = score + torch.cdist(rest.x, away).amin(1)
        else:
            signed = torch.cat([h, -away])
            length = torch.linalg.vector_norm(signed, dim=1)
            longest = int(length.argmax())
            score = rest.x @ signed[longest] / length[longest].clamp_min(1e-300)
        return Guess(self.target, rest.rows, score)
