"""Attribute inference: one sensitive column of another party, read from its embeddings.

On auxiliary rows whose attribute a_i is known (a category, or whether a number lies above its
mean; on request whether it is far from the median or in a tenth, as the auxiliary rows tell what
that is, or one category against the others), logistic regression is fitted to
    embedding:  standardised z_i = f(x_i) as received
    both:       z_i beside the attacker's own columns, and the label party's own labels
    entry:      the one number of z_i that tells the classes apart best
    value:      of a question, what it makes of the column by ridge regression on either
of z_i as it is read in all the ways of ``embedding_inversion``. It answers for all other
rows; the variant is chosen by cross-validation on the auxiliary rows.

Attacker: the party that receives embeddings (the active party), honest but curious. Needs
``aux_rows`` auxiliary rows; black box otherwise. Its controls are the same as those of a label
attack, on its own columns and beside its own labels, with the attribute in the label's place.
Known failure cases: an attribute that the task does not need may not be in the embedding; an
attribute that own columns predict anyway is no leak of the federation. One column of one party is
looked at: `column`, and `victim` of the scenario where there are several. A tenth of 60 auxiliary
rows is six, and of a rare category there may be none.

Source: Song and Shmatikov, "Overlearning reveals sensitive attributes", ICLR 2020,
arXiv:1905.11742, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec import check, registry
from vflsec.attack import Attack, asked_of
from vflsec.cell import QUESTIONS
from vflsec.guess import Guess
from vflsec.nn.columns import standardised
from vflsec.nn.completion import Fit, logistic_by_one, logistic_cv
from vflsec.nn.embedded import TIMES, Products, multiplied, readings
from vflsec.nn.regression import ridge
from vflsec.questions import figure
from vflsec.view import Known, View

ALIASES = ("attribute_inference", "aia")
FAMILY = "Attributes that were not shared"


@registry.attack
@dataclass(frozen=True)
class Attribute(Attack):
    """Hyper-parameters.

    Attributes:
        column: name of the victim's column; empty means its first categorical one, or the first.
        ask: of a number: ``""`` whether it is above its mean, or ``far from the median``, ``largest
            tenth``, ``smallest tenth``.
        category: of a category: this code against all others; 0 asks which one.
    """

    column: str = ""
    ask: str = ""
    category: int = 0
    needs = frozenset({*(f"embedding:{form}+" for form in TIMES), "aux_rows"})
    target: ClassVar[str] = "attribute"
    of_data: ClassVar[tuple[str, ...]] = ("column", "category")
    seconds: ClassVar[float] = 0.2

    def __post_init__(self) -> None:
        check.one_of("attribute.ask", self.ask, ("", *QUESTIONS))
        check.integer("attribute.category", self.category, low=0)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        seen, rows, told = embedded(view, self)
        known, classes = seen.require_known(), seen.facts.classes
        own, fits = seen.own(rows), []
        for when, z in told.items():
            for variant, x in (("embedding", z), ("both", torch.cat([z, own], dim=1))):
                mine, asked = standardised(x, len(known))
                fits.append(logistic_cv(mine, known, asked, classes, variant + when))
                if known.values is not None:
                    fits.append(by_value(x, known, self.ask, variant + when))
            mine, asked = standardised(z, len(known))
            fits.append(logistic_by_one(mine, known, asked, classes, f"entry{when}"))
        for name, of in multiplied(view, "embedding", rows).items():
            fits.append(by_product(of, known, classes, f"entry, {name}"))
        best = max(fits, key=lambda f: f.cv)
        notes = {
            "variant": best.variant,
            "victim": view.victims[0],
            "cv": {f.variant: round(f.cv, 4) for f in fits},
        }
        return Guess(self.target, rows[len(known) :], best.scores, notes=notes)


def by_value(x: Tensor, known: Known, ask: str, name: str) -> Fit:
    """What the question makes of values by ridge regression; the known rows of `x` come first."""
    assert known.values is not None
    q, middle = len(known), known.values.median()
    told = ridge("value", x[:q], known.values.unsqueeze(1), x[q:])
    held = told.values.new_zeros(q, 1) if told.held is None else told.held
    sure = torch.cat([figure(ask, v, middle) for v in (held, told.values)])
    mine, asked = standardised(sure, q)
    return logistic_cv(mine, known, asked, 2, f"value, {name}")


def by_product(of: Products, known: Known, classes: int, name: str) -> Fit:
    """Logistic regression on the one product that tells known rows apart best; they come first."""
    x = of.numbers(slice(len(known)))
    sd, mean = torch.std_mean(x, dim=0, correction=0)
    scale = sd.clamp_min(1e-6)

    def asked(at: Sequence[int]) -> NDArray[np.float64]:
        k = torch.tensor(at, device=x.device)
        told = (of.numbers(slice(len(known), None), k) - mean[k]) / scale[k]
        return told.cpu().numpy()  # type: ignore[no-any-return]

    return logistic_by_one(((x - mean) / scale).cpu().numpy(), known, asked, classes, name)


def embedded(view: View, attack: Attack) -> tuple[View, Tensor, dict[str, Tensor]]:
    """What tells an attribute: the view in which it is the label, row ids, their embeddings (m, d).

    The auxiliary rows come first, and then the training rows that are asked about. Embeddings are
    the last (''), and those that ``embedding_inversion`` reads beside them (', mean' and so on).
    """
    seen = view.for_attribute(*asked_of(attack))
    rows = torch.cat([seen.require_known().rows, view.targets["train"]])
    tables = readings(view, "embedding", TIMES)
    return seen, rows, {
        "" if form == TIMES[0] else f", {form}": table.of_rows(rows).flatten(1)
        for form, table in tables.items()
    }  # fmt: skip
