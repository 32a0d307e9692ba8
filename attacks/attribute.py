"""Attribute inference: one sensitive column of another party, read from its embeddings.

On auxiliary rows whose attribute a_i is known (a category, or whether a number lies above its
mean; on request whether it is far from the median or in a tenth, as the auxiliary rows tell what
that is, or one category against the others), logistic regression is fitted to
    embedding:  standardised z_i = f(x_i) as received
    both:       z_i beside the attacker's own columns, and the label party's own labels
    entry:      the one number of z_i that tells the classes apart best
    value:      of a question, what it makes of the column by ridge regression on either
of z_i as it is read in all the ways of ``embedding_inversion``. It answers for all other
rows; the variant is chosen by cross-validation on the auxiliary rows. With ``column = "*"`` these
rows first choose the question too, among all with a yes and a no about any column: the side of a
mean, far from a median, in a tenth, one category. Taken is the one on which embeddings surely add
most to own columns; answer and controls are then those of that question.

Attacker: the party that receives embeddings (the active party), honest but curious. Needs
``aux_rows`` auxiliary rows; black box otherwise. Its controls are the same as those of a label
attack, on its own columns and beside its own labels, with the attribute in the label's place.
Known failure cases: an attribute that the task does not need may not be in the embedding; an
attribute that own columns predict anyway is no leak of the federation. One party is looked at
(`victim` of the scenario where there are several), and one column. A tenth of 60 auxiliary rows is
six, and of a rare category there may be none; of many columns, ``*`` takes one that looks good by
chance where a leak is small.

Source: Song and Shmatikov, "Overlearning reveals sensitive attributes", ICLR 2020,
arXiv:1905.11742, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from vflsec.core.attack import describe_scoring
from vflsec.core.quantity_questions import compute_figure
from vflsec.inference.completion import Fit, choose_fit, logistic_by_one, logistic_cv
from vflsec.inference.embedding_readout import (
    TIMES,
    by_product,
    list_readings,
    multiply_readings,
    pair_columns,
)
from vflsec.inference.ridge_regression import Regression, by_entry, fit_ridge, fit_ridges
from vflsec.nn.rows import scale_columns
from vflsec.plugin import Attack, Guess, Known, Table, ThreatModelError, View, check, registry
from vflsec.specs import QUESTIONS, WHICHEVER, format_question

ALIASES = ("attribute_inference", "aia")
FAMILY = "attributes"
LEAST = 3
"""Auxiliary rows with each answer from which on a question is looked at."""
SURE = 3.0
"""Standard errors that the one question that is chosen has to be told better than by chance."""


@registry.attack
@dataclass(frozen=True)
class Attribute(Attack):
    """Hyper-parameters.

    Attributes:
        column: name of the victim's column; empty means its first categorical one, or the first;
            ``*`` whichever yes/no question about any column is told best.
        ask: of a number: ``""`` whether it is above its mean, or ``far from the median``, ``largest
            tenth``, ``smallest tenth``.
        category: of a category: the one of this number in their order against all others; 0 asks
            which one.
    """

    column: str = ""
    ask: Annotated[str, check.among("", *QUESTIONS)] = ""
    category: check.Whole = 0
    needs = frozenset({*(f"embedding:{form}+" for form in TIMES), "aux_rows"})
    target: ClassVar[str] = "attribute"
    of_data: ClassVar[tuple[str, ...]] = ("column", "category")
    seconds: ClassVar[float] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column == WHICHEVER and (self.ask or self.category):
            rule = "a column's name beside ask or category"
            raise check.fail("attribute.column", rule, self.column)

    def resolved(self, guess: Guess) -> Attribute:
        if self.column != WHICHEVER:
            return self
        question: Any = guess.notes["question"]
        column, ask, category = question
        return replace(self, column=str(column), ask=str(ask), category=int(category))

    def declines(self, view: View) -> str:
        """That the victim has images, or ''."""
        return no_columns(view, self.name)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        tables = list_readings(view, "embedding", TIMES)
        if self.column != WHICHEVER:
            return self._answer(view, tables)
        best = choose_question(view, tables)
        guess = replace(self, column=best[0], ask=best[1], category=best[2])._answer(view, tables)
        said = {"question": list(best), "asked": in_words(*best)}
        return replace(guess, notes={**guess.notes, **said})

    def _answer(self, view: View, tables: Mapping[str, Table]) -> Guess:
        """The answer to the one question, from readings of embeddings."""
        seen, rows = asked_about(view, self)
        known, classes = seen.require_known(), seen.facts.classes
        own, cv = seen.own(rows), dict[str, float]()

        def fits() -> Iterator[Fit]:  # one at a time, for each may hold all rows
            for when, read in embedded(tables, rows):
                yield from self._of_reading(read(), own, known, classes, when)
            for name, products in multiply_readings(view, "embedding", rows).items():
                yield by_product(products, known, classes, f"entry, {name}")

        fit = choose_fit(fits(), cv)
        assert fit is not None
        told_of = {name: round(of, 4) for name, of in cv.items()}
        notes = {"variant": fit.variant, "victim": view.victims[0], "cv": told_of}
        return Guess(self.target, rows[len(known) :], fit.scores, notes=notes)

    def _of_reading(
        self, z: Tensor, own: Tensor, known: Known, classes: int, when: str
    ) -> Iterator[Fit]:
        """The fits of one reading (m, d), alone and beside own columns; known rows come first."""
        q, alone = len(known), scale_columns(z)
        for variant in ("embedding", "both"):
            x = torch.cat([z, own], dim=1) if variant == "both" else z
            of = alone if x is z else scale_columns(x)
            asked = partial(of.pieces, q)
            yield logistic_cv(of.take(slice(q)), known, asked, classes, variant + when)
            if known.values is not None:
                yield by_value(x, known, self.ask, variant + when)
        one = partial(alone.take, slice(q, None))
        yield logistic_by_one(alone.take(slice(q)), known, one, classes, f"entry{when}")


def no_columns(view: View, name: str) -> str:
    """That there is no column to ask about, in words, or ''."""
    for p in view.victims[:1]:
        if not view.schema[p].cardinalities:
            return f"{name} needs a table; {p} has images."
    return ""


def choose_question(view: View, tables: Mapping[str, Table]) -> tuple[str, str, int]:
    """The yes/no question about a column on which embeddings surely add most to own columns.

    By areas under ROC curves on the auxiliary rows, each held out in turn, of ridge regressions and
    of single numbers: the largest less that of own columns (of products of two of them, where these
    surely tell more), or of guessing, and :data:`SURE` standard errors under guessing, for of many
    questions one looks good by chance.
    """
    aux, _ = view.require_aux()
    assert view.aux is not None
    party, (_, x) = next(iter(view.aux.items()))
    schema = view.schema[party]
    every = schema.questions()
    found = [schema.attribute(x, *of)[0] for of in every]
    kept = [i for i, y in enumerate(found) if LEAST <= int(y.sum()) <= len(aux) - LEAST]
    if not kept:
        what, rule = f"attribute: a question about {party}", f"have {LEAST} rows of each answer"
        got = f"none among {len(aux)} auxiliary rows"
        raise ThreatModelError.must(what, rule, got, "Raise aux_rows.")
    y, q = torch.stack([found[i] for i in kept], dim=1).double(), len(aux)
    yes = y.sum(0)
    sure = SURE * ((q + 1) / (12 * yes * (q - yes))).sqrt()
    own = view.own(aux).double()
    least, fits = torch.full_like(y[0], 0.5), []
    if own.shape[1]:
        least = find_largest_area([fit_ridge("own", own, y, own[:0])], y).clamp_min(0.5)
        z = pair_columns(own).numbers(slice(None))
        told = find_largest_area([by_entry("own", z, y, z[:0])], y)
        least = torch.where(told > least + sure, told, least)
    for table in tables.values():
        z = table.of_rows(aux).flatten(1).double()
        both = torch.cat([z, own], dim=1)
        fits += [*fit_ridges("both", both, y, both[:0]), by_entry("entry", z, y, z[:0])]
    for of in multiply_readings(view, "embedding", aux).values():
        z = of.numbers(slice(None))
        fits.append(by_entry("product", z, y, z[:0]))
    return every[kept[int((find_largest_area(fits, y) - least - sure).argmax())]]


def find_largest_area(fits: Sequence[Regression], y: Tensor) -> Tensor:
    """The largest area (k,) of what any fit answers for known rows, for answers (q, k)."""
    return torch.stack([areas(f.held, y) for f in fits if f.held is not None]).amax(0)


def areas(scores: Tensor, y: Tensor) -> Tensor:
    """Areas under the ROC curves (k,) of scores (q, k) for answers of 0 and 1 (q, k)."""
    ordered, order = scores.T.contiguous().sort(dim=1)
    q, differs = len(y), ordered[:, 1:] != ordered[:, :-1]
    place = torch.arange(q, device=y.device)
    begins, ends = (torch.nn.functional.pad(differs, at, value=True) for at in ((1, 0), (0, 1)))
    first = place.where(begins, 0).cummax(1).values  # of equal scores
    last = place.where(ends, q).flip(1).cummin(1).values.flip(1)
    rank = (first + last + 2).double() / 2
    yes = y.sum(0)
    mine = (rank * y.T.gather(1, order)).sum(1)
    return (mine - yes * (yes + 1) / 2) / (yes * (q - yes))


def in_words(column: str, ask: str, category: int) -> str:
    """What is asked, such as ``age in the largest tenth``."""
    if ask:
        return f"{column} {format_question(ask)}"
    return f"{column} in its category {category}" if category else f"{column} above its mean"


def by_value(x: Tensor, known: Known, ask: str, name: str) -> Fit:
    """What the question makes of values by ridge regression; the known rows of `x` come first."""
    assert known.values is not None
    q, middle = len(known), known.values.median()
    told = fit_ridge("value", x[:q], known.values.unsqueeze(1), x[q:])
    held = told.values.new_zeros(q, 1) if told.held is None else told.held
    sure = torch.cat([compute_figure(ask, v, middle) for v in (held, told.values)])
    of = scale_columns(sure)
    return logistic_cv(of.take(slice(q)), known, partial(of.pieces, q), 2, f"value, {name}")


def asked_about(view: View, attack: Attack) -> tuple[View, Tensor]:
    """The view in which an attribute is the label, and row ids (m,): the auxiliary rows, and then
    the training rows that are asked about.
    """
    seen = view.for_attribute(*describe_scoring(attack))
    return seen, torch.cat([seen.require_known().rows, view.targets["train"]])


def embedded(
    tables: Mapping[str, Table], rows: Tensor
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """What makes embeddings (m, d) of these rows, the last (''), and those that
    ``embedding_inversion`` reads beside them (', mean' and so on).
    """
    for form in tables:
        yield "" if form == TIMES[0] else f", {form}", partial(_read, tables, form, rows)


def _read(tables: Mapping[str, Table], form: str, rows: Tensor) -> Tensor:
    return tables[form].of_rows(rows).flatten(1)
