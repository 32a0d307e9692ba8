"""Gradient norm: the rare class has the larger cut-layer gradient.

Score of row i: r_i = ||g_i||_2 of its received gradient. For cross entropy g_i is proportional to
p_i - y_i, so with few positives (p small) a positive's gradient is long and a negative's short. By
that theory the scores are signed by which class is rare, a granted public fact; known rows, where
there are any, turn the sign if they contradict it (labels may have been swapped by a defense).

Attacker: any passive party that receives per-row gradients; two classes. Needs no labelled row, but
turns by those it was granted.
By default the gradients of one row are averaged over epochs first, because fresh noise averages
out; ``accumulate = false`` uses one epoch, and compares rows within their batch only.
Does not work: on balanced classes (AUC about 0.5 by design), late in training when the norm marks
hard rows, under class-weighted losses. Without known rows it cannot tell a leak from its mirror
image.

Source: Li et al., "Label leakage and protection in two-party split learning", ICLR 2022,
arXiv:2102.08504, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec.core.attack import OTHER_FORMS, ReadsGradients
from vflsec.inference.score_orientation import find_orientation, within_groups
from vflsec.plugin import Guess, View, registry

ALIASES = ("ns", "norm_score")
FAMILY = "single_gradients"


@registry.attack
@dataclass(frozen=True)
class Norm(ReadsGradients):
    """Hyper-parameters: those of an attack on gradients."""

    binary_only: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    any_scale = {"accumulate": "scaled"}
    tries = OTHER_FORMS

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"gradient:{self.recorded_form}", "prior"})

    @property
    def reads_others(self) -> bool:
        return not self.accumulate

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        g = view.received("gradient", self.recorded_form)
        score = torch.linalg.vector_norm(g.tensor.flatten(1).double(), dim=1)  # (n,)
        rare = 1.0 if float(view.require_prior()[1]) <= 0.5 else -1.0
        score = rare * score
        value = score if self.accumulate else within_groups(score, g.step)
        sign = find_orientation(value, g.rows, view.known, theory=1.0)
        group = None if self.accumulate else g.step.cpu().numpy()
        notes = {"rare_class": int(rare > 0), "as_theory": sign > 0}
        return Guess(self.target, g.rows, sign * score, group, notes=notes)
