"""Residuals: the gradient of a squared error is the error itself, and so reveals a quantity.

Behind a squared error row i receives  g_i = (2/b) (a_i - y_i) da_i/dz_i,  with a_i the answer.
The direction da/dz is one for all rows behind a linear top, and close to a few behind another, so
the projections rho_i of b g_i on the leading singular directions of the first epoch's gradients
are the residuals. While a_i is nearly constant they are the value up to sign and scale; later a_i
can be told in part from the own embedding z_i:  y_i = a(z_i) - rho_i / 2|da/dz|, exactly so if the
attacker holds all columns, when three known rows give a, its intercept and the scale.
    first:  ridge regression of known values on rho_i of the first epoch
    both:   on rho_i and the embedding that was sent in the same message, projected likewise
    mean:   on rho_i of the first epoch, of the mean over epochs, and z_i
The variant and its penalty are chosen by cross-validation on the known rows, the first where they
tie.

Attacker: any passive party that receives per-row gradients and knows a few values. Known rows are
never scored. Does not apply to classes (direction and norm do).
Known failure cases: noise with more energy than the gradients; clipping, which leaves the sign of
the residual; an active party whose own columns make the first answers far from constant.

Source: Xie, Yang, Wang et al., arXiv:2301.07284 (2023), label inference for regression by matching
gradients; the closed form is this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vflsec.inference.ridge_regression import fit_ridge
from vflsec.nn.rows import widen
from vflsec.plugin import Attack, Facts, Guess, Table, View, check, registry

FAMILY = "single_gradients"

ALIASES = ("regression_gradient",)
VARIANTS = ("first", "both", "mean")


@registry.attack
@dataclass(frozen=True)
class Residual(Attack):
    """Hyper-parameters.

    Attributes:
        directions: how many singular directions gradients are projected on, at most.
        variants: which of ``first``, ``both`` and ``mean`` compete in cross-validation.
    """

    directions: check.Count = 2
    variants: Annotated[tuple[str, ...], check.some_of(VARIANTS)] = VARIANTS
    needs = frozenset({"gradient:first", "gradient:mean", "sent.embedding:first", "known_rows"})
    quantities: ClassVar[bool] = True
    reads_others = True
    world = {"batch_size": 32}

    def applicable(self, facts: Facts) -> str:
        if not facts.label.numeric:
            return self.explain_need("a quantity", "Take direction.")
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        first, mean = view.received("gradient", "first"), view.received("gradient", "mean")
        sent = view.sent("embedding", "first")
        known = view.require_known()
        there = known.rows[torch.isin(known.rows, first.rows)]
        rows = first.rows[~torch.isin(first.rows, known.rows)]
        values = known.labels[torch.isin(known.rows, first.rows)].double().unsqueeze(1)
        u = _directions(first.tensor.flatten(1).double(), self.directions)  # (d, k)
        whole = _undivided(first, view)

        def columns(variant: str, at: Tensor) -> Tensor:
            found = [whole.of_rows(at).flatten(1).double() @ u]
            if variant == "both":
                found.append(_along(sent.of_rows(at).flatten(1).double(), u))
            elif variant == "mean":
                found.append(mean.of_rows(at).flatten(1).double() @ u)
                found.append(sent.of_rows(at).flatten(1).double())
            return torch.cat(found, dim=1)

        fits = [fit_ridge(k, columns(k, there), values, columns(k, rows)) for k in self.variants]
        best = max(fits, key=lambda f: f.cv)
        notes = {"variant": best.variant, "cv": {f.variant: round(f.cv, 4) for f in fits}}
        return Guess(self.target, rows, best.values.squeeze(1), notes=notes)


def _directions(g: Tensor, most: int) -> Tensor:
    """Leading right singular directions of gradients (n, d), (d, k) with k <= `most`."""
    return torch.linalg.eigh(g.T @ g).eigenvectors[:, -most:].flip(1)


def _along(z: Tensor, u: Tensor) -> Tensor:
    """Embeddings (n, d) along directions (d, k) of their gradients.

    Where several gradients come for an embedding, `u` is as many times as high, each part of one.
    """
    parts = u.split(z.shape[1]) if len(u) % z.shape[1] == 0 else ()
    return torch.cat([z @ part for part in parts] or [z[:, :0]], dim=1)


def _undivided(table: Table, view: View) -> Table:
    """Gradients times the rows of their batch, where the loss was a mean over them."""
    if view.facts.reduction != "mean":
        return table
    _, batch, count = table.step.unique(return_inverse=True, return_counts=True)
    wide = widen(count[batch].to(table.tensor), table.tensor)
    return Table(table.tensor * wide, table.rows, table.epoch, table.step)
