"""Gradient direction: rows whose gradient points like a known positive's are positive.

The references are known positives j, with sign s_j = 1, and known negatives, with s_j = -1. Score
of row i: the mean of s_j <g_i, g_j>, or of s_j cos(g_i, g_j) weighted by the references' lengths
|g_j|, which say what they are worth under noise. For cross entropy g_i = (p_i - y_i) ds_i/dz_i, so
behind a top model whose Jacobian keeps to a half-space the sign of the cosine is the label; behind
a linear top the score is exactly +1 or -1.

Attacker: any passive party that receives per-row gradients and knows the label of at least one
positive row; two classes. The reference rows are never scored. By default gradients of one row are
averaged over epochs first; ``accumulate = false`` uses one epoch.
Does not work: when per-row Jacobians differ in sign, and under noise that has more energy than the
gradients in every direction.

Source: Li et al., "Label leakage and protection in two-party split learning", ICLR 2022,
arXiv:2102.08504, section 3 (cosine) and appendix (inner product, several hints).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from vflsec.core.attack import OTHER_FORMS, ReadsGradients
from vflsec.plugin import (
    Guess,
    ThreatModelError,
    View,
    check,
    registry,
)

ALIASES = ("ds", "cosine")
FAMILY = "single_gradients"


@registry.attack
@dataclass(frozen=True)
class Direction(ReadsGradients):
    """Hyper-parameters beside those of an attack on gradients.

    Attributes:
        measure: ``cosine`` or ``inner`` (inner product, which keeps the length).
        positives: how many known positives serve as references, in grant order.
        negatives: use as many known negatives as well, as far as there are any.
    """

    measure: Literal["cosine", "inner"] = "cosine"
    positives: check.Count = 1
    negatives: bool = True
    binary_only: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    tries = (
        *OTHER_FORMS, {"positives": 5}, {"positives": 5, "accumulate": "scaled"},
        {"measure": "inner"},
    )  # fmt: skip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"gradient:{self.recorded_form}", "known_rows"})

    def explain_grant(self, view: View) -> str:
        """That too few positives are known, or ''."""
        return self.explain_positives(view, self.positives)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        hints = view.require_known().of_class(1)[: self.positives]
        if why := self.explain_grant(view):
            raise ThreatModelError(why)
        table = view.received("gradient", self.recorded_form)
        known = view.require_known().of_class(0)
        known = known[torch.isin(known, table.rows)]
        against = known[: self.positives if self.negatives else 0]
        g = table.tensor.flatten(1).double()  # (n, d), whose squares float32 may not hold
        signed = [table.of_rows(hints).flatten(1).double()]  # (q, d)
        if len(against):
            signed.append(-table.of_rows(against).flatten(1).double())
        total = torch.cat(signed)
        if self.measure == "cosine":
            g = nn.functional.normalize(g, dim=1, eps=1e-300)
            weight = torch.linalg.vector_norm(total, dim=1).sum().clamp_min(1e-300)
        else:
            weight = torch.tensor(float(len(total)))
        score = g @ total.sum(0) / weight
        keep = ~torch.isin(table.rows, torch.cat([hints, against]))
        return Guess(self.target, table.rows[keep], score[keep])
