"""Model completion for a quantity: an own trained bottom, ridge regression, a few known values.

After training, the passive party regresses the values it knows on its own embedding z = f(x), alone
or beside its own columns, and so tells the value of any row it holds, past or future:
    embedding:  ridge regression on standardised z
    both:       on z and own columns
The penalty is chosen by cross-validation on the known rows, and so is the variant, the first one
where they tie.

Attacker: any passive party or coalition, after training; it does not deviate from the protocol.
Needs its own bottom and columns, and known_rows rows whose value it knows.
Does not apply to classes (model_completion does). Known failure cases: as few known rows as columns
of the embedding; columns that predict the value by themselves, for which own columns are a control.

Source: Fu, Zhang, Ji, Chen, Wu, Guo, Zhou, Liu, Wang, "Label inference attacks against vertical
federated learning", USENIX Security 2022, section 5.1 (completion); Xie, Yang, Wang et al.,
arXiv:2301.07284 (2023), for regression labels. The ridge head is this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from vflsec.inference.ridge_regression import fit_ridge
from vflsec.plugin import Attack, Facts, Guess, View, check, registry

FAMILY = "model_completion"

ALIASES = ("regression_completion",)
VARIANTS = ("embedding", "both")


@registry.attack
@dataclass(frozen=True)
class ValueCompletion(Attack):
    """Hyper-parameters.

    Attributes:
        variants: which of ``embedding`` and ``both`` compete in cross-validation.
    """

    variants: Annotated[tuple[str, ...], check.some_of(VARIANTS)] = VARIANTS
    needs = frozenset({"model", "known_rows"})
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    quantities: ClassVar[bool] = True
    seconds: ClassVar[float] = 0.05

    def applicable(self, facts: Facts) -> str:
        if not facts.label.numeric:
            return self.explain_need("a quantity", "Take model_completion.")
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, rows = view.require_known(), view.target_rows
        values = known.labels.double().unsqueeze(1)
        fits = []
        for variant in self.variants:
            x, t = (view.embed(r).flatten(1).double() for r in (known.rows, rows))
            if variant == "both":
                x = torch.cat([x, view.design(known.rows).double()], dim=1)
                t = torch.cat([t, view.design(rows).double()], dim=1)
            fits.append(fit_ridge(variant, x, values, t))
        best = max(fits, key=lambda f: f.cv)
        notes = {"variant": best.variant, "cv": {f.variant: round(f.cv, 4) for f in fits}}
        return Guess(self.target, rows, best.values.squeeze(1), notes=notes)
