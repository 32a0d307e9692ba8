"""Property: the share of rows at another party that have an attribute, from its embeddings.

On q auxiliary rows whose attribute a_i is known, logistic regression is fitted to standardised
embeddings z_i = f(x_i), as they are read in ``embedding_inversion`` (the last, their mean over
epochs, the first, and others), alone or beside own columns and own labels, as cross-validation
says. With its shares p_i for all n other rows, and shares h_i for the auxiliary rows from folds
that left them out,
    estimate = lambda mean(p) + mean(a - lambda h),
    lambda = cov(a, h) / (var(h) (1 + q / n)), cut to [0, 1].
The second mean takes out what the regression gets wrong on average; lambda near 0 leaves the share
among the auxiliary rows. The figure is the error of the share, |estimate - its value|; smaller is a
leak.

Attacker: the party that receives embeddings (the active party), honest but curious. Needs
``aux_rows``, drawn like the rows it asks about. Its controls are the share among them
alone, and the same estimate from own columns, with own labels and without.
Known failure cases: with many auxiliary rows there is nothing left to learn; an attribute that
the embedding does not hold; auxiliary rows from another population (the estimate follows them).

Source: property inference: Ganju, Wang, Yang, Gunter, Borisov, CCS 2018; the estimator:
Angelopoulos, Duchi, Zrnic, "PPI++: efficient prediction-powered inference", arXiv:2311.01453
(2023), sections 2 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vflsec.attacks.attribute import Attribute, asked_about, embedded, no_columns
from vflsec.inference.attribute_share import estimate_share
from vflsec.inference.embedding_readout import TIMES, list_readings
from vflsec.plugin import Attack, Guess, View, check, registry
from vflsec.specs import WHICHEVER

ALIASES = ("property_inference",)
FAMILY = "attribute_shares"


@registry.attack
@dataclass(frozen=True)
class Property(Attack):
    """Hyper-parameters.

    Attributes:
        column: name of the victim's column, as in ``attribute``.
        value: which class of it: a category's code, or 1 for numbers above their mean.
    """

    column: str = ""
    value: check.Whole = 1
    needs = Attribute.needs
    target: ClassVar[str] = "property"
    of_data: ClassVar[tuple[str, ...]] = ("column", "value")
    seconds: ClassVar[float] = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column == WHICHEVER:
            raise check.fail("property.column", "a column's name", self.column)

    def declines(self, view: View) -> str:
        """That the victim has images, or ''."""
        return no_columns(view, self.name)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        tables = list_readings(view, "embedding", TIMES)
        seen, rows = asked_about(view, self)
        known = seen.require_known()
        target = rows[len(known) :]

        def inputs() -> Iterator[Callable[[], Tensor]]:
            yield from (read for _, read in embedded(tables, rows))
            if all(p in view.columns for p in view.adversary):
                own = seen.own(rows)
                yield from (partial(_beside, read, own) for _, read in embedded(tables, rows))

        found = estimate_share(known, inputs(), seen.facts.classes, self.value)
        notes = {"lambda": round(found.weight, 4), "victim": view.victims[0]}
        return Guess(self.target, target, np.full(len(target), found.share), notes=notes)


def _beside(read: Callable[[], Tensor], own: Tensor) -> Tensor:
    z = read()
    return torch.cat([z, own.to(z)], dim=1)
