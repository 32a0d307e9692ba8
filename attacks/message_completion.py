"""Message completion: all messages of a row in figures that a mean hides, and a few known labels.

Of the messages g_1 .. g_v that were received for a row, in the order in which they came:
    change:  g_v - g_1. What is the same every time (noise that is drawn once for a row and then
             remembered) is gone; what the label adds in some epochs only is left
    steps:   mean of |g_t - g_t-1|
    first, last
    spread:  standard deviation over the visits
    sizes:   mean of |g_t|, and of its length
    sums:    mean of g_1 + .. + g_t, each over the rows of its batch, as a mean loss sends it: what
             came is the difference to the message before, where a codec sends such
    odd:     share of visits that are not finite, by entry
    centred: mean of what g_t do not share with the other messages of their batch, or with those at
             their place in batches, where they share most of what they are (noise that is drawn
             once for a batch, or begins anew with each)
    batchwise: four leading eigenvectors of how rows of one batch stand to each other, added over
             batches: what is left under a sign, a factor or a rotation that is drawn for a batch
             (`vflsec.inference.batch_relations`)
Each is tried whole, standardised, in a logistic regression of the known labels, and by the one
entry whose class means differ most, in standard deviations within classes. Cross-validation on the
known rows chooses among all of these; the first of equals is taken. Figures that are the same for
all rows are left out.
A quantity is told by ridge regressions instead, and by the one entry that goes with it most; they
read the mean of the messages too, of which `residual` takes the leading directions alone. Whether
a value is far from the median, or in the largest or smallest tenth, is asked beside its order, as
labels of two classes, with one grant of known rows for all three.

Attacker: any passive party that receives messages of rows and knows labels of both classes; any
number of classes, or values of a quantity. Its own columns are not used.
Needs: known rows of every class.
Known failure cases: with few known rows and wide messages another figure may look as good by
chance; a label in the relation of two entries (`similarity` finds some), or in the last bits of
numbers, is not seen; a row that came once has no change and no spread.

Source: this package's own; that noise which is drawn once is undone by differences is the usual
objection to memoised noise, see Erlingsson, Pihur, Korolova, "RAPPOR", CCS 2014, arXiv:1407.6981,
section 3, where it is used for values that do not change only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.batch_centring import FIRST, is_shared
from vflsec.inference.batch_relations import find_leading
from vflsec.inference.completion import SHRINKAGE, Fit, logistic_by_one, logistic_cv
from vflsec.inference.ridge_regression import Regression, by_entry, fit_ridge
from vflsec.nn.rows import spread, sums
from vflsec.plugin import Attack, Guess, Known, Table, ThreatModelError, View, registry
from vflsec.specs import QUESTIONS

ALIASES = ("messages",)
FAMILY = "single_gradients"
TWO_CLASSES = "known rows of two classes with messages"


@dataclass(frozen=True)
class ReadsMessages(Attack):
    """Hyper-parameters of an attack on every message of a kind.

    Attributes:
        kind: of the messages that are read: ``gradient``, or ``embedding`` or ``state`` where the
            algorithm sends such to the attacker.
    """

    kind: Literal["gradient", "embedding", "state"] = "gradient"
    other_kinds = ({"kind": "embedding"}, {"kind": "state"})
    labelwise: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"{self.kind}:all+", "known_rows"})

    def declines(self, view: View) -> str:
        """That no message of a row came, or ''."""
        any_row = bool((view.received(self.kind, "all+").rows >= 0).any())
        return "" if any_row else f"no {self.kind} message is of a row."


@registry.attack
@dataclass(frozen=True)
class MessageCompletion(ReadsMessages):
    """Hyper-parameters: those of an attack on every message of a kind."""

    quantities: ClassVar[bool] = True
    questions: ClassVar[tuple[str, ...]] = tuple(QUESTIONS)
    seconds: ClassVar[float] = 0.2

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, classes = view.require_known(), view.facts.classes
        number = view.facts.label.numeric
        table = view.received(self.kind, "all+")
        grant = known.among(table.rows)
        if len(grant.labels.unique()) < 2:
            raise self.lacks(TWO_CLASSES, len(grant.labels.unique()))
        rows, found = figures(table, mean=number or "question" in view.facts.extra)
        if not found:
            raise ThreatModelError("message_completion: all messages are equal.")
        at = torch.searchsorted(rows, grant.rows)
        best: Fit | Regression
        if number:
            best, scores = _of_values(found, at, grant.labels.double())
        else:
            best, scores = _of_classes(found, at.cpu().numpy(), grant, classes)
        keep = ~torch.isin(rows, known.rows)
        notes = {"figure": best.variant, "cv": round(best.cv, 4)}
        return Guess(self.target, rows[keep], scores[keep.to(scores.device)], notes=notes)


def _of_classes(
    found: Mapping[str, Tensor], at: NDArray[np.int64], grant: Known, classes: int
) -> tuple[Fit, Tensor]:
    """The fit of figures (n, k) that tells the known rows best, and its scores (n,) or (n, C)."""
    fits = []
    for name, value in found.items():
        x = value.cpu().numpy()
        fits.append(logistic_cv(x[at], grant, x, classes, name, SHRINKAGE))
        if x.shape[1] > 1:
            fits.append(logistic_by_one(x[at], grant, x, classes, f"{name}, one entry"))
    best = max(fits, key=lambda f: f.cv)
    scores = torch.from_numpy(np.asarray(best.scores))
    return best, scores[:, 1] - scores[:, 0] if classes == 2 else scores


def _of_values(
    found: Mapping[str, Tensor], at: Tensor, values: Tensor
) -> tuple[Regression, Tensor]:
    """The fit of figures (n, k) that tells the known values (q,) best, and its answer (n,)."""
    y, fits = values.unsqueeze(1), []
    for name, x in found.items():
        fits.append(fit_ridge(name, x[at], y, x))
        if x.shape[1] > 1:
            fits.append(by_entry(f"{name}, one entry", x[at], y, x))
    best = max(fits, key=lambda f: f.cv)
    return best, best.values.squeeze(1)


def figures(
    table: Table, *, mean: bool = False, turned: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows (n,), and by name figures (n, k) that differ between them, standardised.

    Args:
        table: messages of all epochs; what is of no row is left out.
        mean: whether the mean of a row's messages is one of the figures.
        turned: whether ``batchwise`` is.
    """
    table = table.of_samples()
    mine = torch.argsort(table.step, stable=True)
    mine = mine[torch.argsort(table.rows[mine], stable=True)]  # by row, and then by time
    rows, place, visits = table.rows[mine].unique_consecutive(
        return_inverse=True, return_counts=True
    )
    raw = table.tensor.index_select(0, mine).flatten(1).double()
    finite = None if bool(raw.sum().isfinite()) else torch.isfinite(raw)
    g = raw if finite is None else raw.where(finite, torch.zeros_like(raw))
    last = visits.cumsum(0) - 1
    first, many = last + 1 - visits, visits.double().unsqueeze(1)

    def average(x: Tensor, at: Tensor = place, count: Tensor = many) -> Tensor:
        return sums(x, at, len(rows) + 1)[:-1] / count

    middle = average(g)
    size = table.by_step[1][table.by_step[0][mine]]
    later = (last[place] + 1 - torch.arange(len(g), device=g.device)) / size
    same = torch.where(place[1:] == place[:-1], place[1:], len(rows))  # beyond: of two rows
    made = {"mean": middle} if mean else {}
    made |= {
        "change": g[last] - g[first],
        "steps": average((g[1:] - g[:-1]).abs_(), same, (many - 1).clamp_min(1)),
        "first": g[first],
        "last": g[last],
        "spread": average((g - middle.index_select(0, place)).square_()).sqrt(),
        "sizes": average(torch.cat([g.abs(), g.norm(dim=1, keepdim=True)], 1)),
        "sums": average(g * later.unsqueeze(1)),
    }
    if finite is not None:
        made["odd"] = average((~finite).double())
    if _finite(table.begin(FIRST)).freed() is not None:
        centred = _finite(table).folded("centred")  # in the order of places
        if is_shared(middle, centred.tensor):
            made["centred"] = centred.tensor
    beside = find_leading(g, place, table.epoch[mine], table.step[mine]) if turned else None
    if beside is not None:
        made["batchwise"] = beside
    out = {}
    for name, value in made.items():
        sd, centre = spread(value)
        told = sd > 1e-9 * value.abs().amax(0).clamp_min(1e-300)
        if bool(told.any()):
            found = (value - centre) / sd.clamp_min(1e-300)
            out[name] = found if bool(told.all()) else found[:, told]
    return rows, out


def _finite(table: Table) -> Table:
    """The table with flat finite numbers."""
    return replace(table, tensor=table.tensor.flatten(1).double().nan_to_num(0, 0, 0))
