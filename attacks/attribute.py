"""Attribute inference: one sensitive column of another party, read from its embeddings.

On auxiliary rows whose attribute a_i is known (a category, or whether a number lies above its
mean), logistic regression is fitted to
    embedding:  standardised z_i = f(x_i) as received
    both:       z_i beside the attacker's own columns
and answers for all other rows; the variant is chosen by cross-validation on the auxiliary rows.

Attacker: the party that receives embeddings (the active party), honest but curious. Needs
``aux_rows`` auxiliary rows; black box otherwise. Its controls are the same as those of a label
attack, on its own columns, with the attribute in the label's place.
Known failure cases: an attribute that the task does not need may not be in the embedding; an
attribute that own columns predict anyway is no leak of the federation.

Source: Song and Shmatikov, "Overlearning reveals sensitive attributes", ICLR 2020,
arXiv:1905.11742, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec import registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.nn.completion import logistic_cv
from vflsec.view import View

ALIASES = ("attribute_inference", "aia")
FAMILY = "Attributes that were not shared"


@registry.attack
@dataclass(frozen=True)
class Attribute(Attack):
    """Hyper-parameters.

    Attributes:
        column: name of the victim's column; empty means its first categorical one, or the first.
    """

    column: str = ""
    needs = frozenset({"embedding:last+", "aux_rows"})
    target: ClassVar[str] = "attribute"
    seconds: ClassVar[float] = 0.07

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        seen, rows, z = embedded(view, self.column)
        known = seen.require_known()
        fits = []
        for variant, x in (("embedding", z), ("both", torch.cat([z, view.design(rows)], dim=1))):
            mine, asked = standardised(x, len(known))
            fits.append(logistic_cv(mine, known, asked, seen.facts.classes, variant))
        best = max(fits, key=lambda f: f.cv)
        notes = {
            "variant": best.variant,
            "victim": view.victims[0],
            "cv": {f.variant: round(f.cv, 4) for f in fits},
        }
        return Guess(self.target, rows[len(known) :], best.scores, notes=notes)


def embedded(view: View, column: str) -> tuple[View, Tensor, Tensor]:
    """What tells an attribute: the view in which it is the label, row ids, their embeddings (m, d).

    The auxiliary rows come first, and then the training rows that are asked about.
    """
    seen = view.for_attribute(column)
    rows = torch.cat([seen.require_known().rows, view.targets["train"]])
    return seen, rows, view.received("embedding", "last+").of_rows(rows).flatten(1)


def standardised(x: Tensor, q: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first `q` rows of x (m, d) and the others, columns standardised over all."""
    sd, mean = torch.std_mean(x, dim=0, correction=0)
    scaled = ((x - mean) / sd.clamp_min(1e-6)).double().cpu().numpy()
    return scaled[:q], scaled[q:]
