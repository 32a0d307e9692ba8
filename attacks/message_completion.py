"""Message completion: all messages of a row in figures that a mean hides, and a few known labels.

Of the messages g_1 .. g_v that were received for a row, in the order in which they came:
    change:  g_v - g_1. What is the same every time (noise that is drawn once for a row and then
             remembered) is gone; what the label adds in some epochs only is left
    steps:   mean of |g_t - g_t-1|
    first, last
    spread:  standard deviation over the visits
    sizes:   mean of |g_t|, and of its length
    odd:     share of visits that are not finite, by entry
Each is tried whole, standardised, in a logistic regression of the known labels, and by the one
entry whose class means differ most, in standard deviations within classes. Cross-validation on the
known rows chooses among all of these; the first of equals is taken. Figures that are the same for
all rows are left out.

Attacker: any passive party that receives messages of rows and knows labels of both classes; any
number of classes. Its own columns are not used.
Needs: known rows of every class.
Known failure cases: with few known rows and wide messages another figure may look as good by
chance; a label in the relation of two entries (`similarity` finds some), or in the last bits of
numbers, is not seen; a row that came once has no change and no spread.

Source: this package's own; that noise which is drawn once is undone by differences is the usual
objection to memoised noise, see Erlingsson, Pihur, Korolova, "RAPPOR", CCS 2014, arXiv:1407.6981,
section 3, where it is used for values that do not change only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.nn.completion import SHRINKAGE, Fit, cv_score, folds_of, logistic, logistic_cv
from vflsec.view import Known, Table, View

ALIASES = ("messages",)
FAMILY = "Labels read off single gradients"


@registry.attack
@dataclass(frozen=True)
class MessageCompletion(Attack):
    """Hyper-parameters.

    Attributes:
        kind: of the messages that are read: ``gradient``, or ``embedding`` or ``state`` where the
            algorithm sends such to the attacker.
    """

    kind: Literal["gradient", "embedding", "state"] = "gradient"
    labelwise: ClassVar[bool] = True
    seconds: ClassVar[float] = 0.2

    def __post_init__(self) -> None:
        check.one_of("message_completion.kind", self.kind, ("gradient", "embedding", "state"))

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"{self.kind}:all", "known_rows"})

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, classes = view.require_known(), view.facts.classes
        table = view.received(self.kind, "all")
        there = torch.isin(known.rows, table.rows)
        grant = Known(known.rows[there], known.labels[there])
        if len(grant.labels.unique()) < 2:
            raise ThreatModelError(
                "message_completion needs known rows of two classes among those whose messages "
                f"were received, was granted {len(grant.labels.unique())}. Raise known_rows."
            )
        rows, found = figures(table)
        at = torch.searchsorted(rows, grant.rows).cpu().numpy()
        fits = []
        for name, value in found.items():
            x = value.cpu().numpy()
            fits.append(logistic_cv(x[at], grant, x, classes, name, SHRINKAGE))
            if x.shape[1] > 1:
                fits.append(_by_one(x, at, grant, classes, f"{name}, one entry"))
        if not fits:
            raise ThreatModelError("message_completion: all rows got the same messages.")
        best = max(fits, key=lambda f: f.cv)
        scores = torch.from_numpy(np.asarray(best.scores))
        if classes == 2:
            scores = scores[:, 1] - scores[:, 0]
        keep = ~torch.isin(rows, known.rows)
        notes = {"figure": best.variant, "cv": round(best.cv, 4)}
        return Guess(self.target, rows[keep], scores[keep.cpu()], notes=notes)


def figures(table: Table) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows (n,), and by name figures (n, k) that differ between them, standardised.

    Args:
        table: messages of all epochs; what is of no row is left out.
    """
    mine = (table.rows >= 0).nonzero().squeeze(1)
    mine = mine[torch.argsort(table.step[mine], stable=True)]
    mine = mine[torch.argsort(table.rows[mine], stable=True)]  # by row, and then by time
    rows, place, visits = table.rows[mine].unique(return_inverse=True, return_counts=True)
    raw = table.tensor[mine].flatten(1).double()
    finite = torch.isfinite(raw)
    g = raw.where(finite, torch.zeros_like(raw))
    last = visits.cumsum(0) - 1
    first, many = last + 1 - visits, visits.double().unsqueeze(1)

    def mean(x: Tensor, at: Tensor, count: Tensor) -> Tensor:
        total = torch.zeros(len(rows), x.shape[1], dtype=x.dtype, device=x.device)
        return total.index_add_(0, at, x) / count

    again = place[1:] == place[:-1]
    steps = (g[1:] - g[:-1])[again].abs()
    made = {
        "change": g[last] - g[first],
        "steps": mean(steps, place[1:][again], (many - 1).clamp_min(1)),
        "first": g[first],
        "last": g[last],
        "spread": mean((g - mean(g, place, many)[place]) ** 2, place, many).sqrt(),
        "sizes": mean(torch.cat([g.abs(), g.norm(dim=1, keepdim=True)], 1), place, many),
        "odd": mean((~finite).double(), place, many),
    }
    out = {}
    for name, value in made.items():
        sd, centre = torch.std_mean(value, 0, correction=0)
        told = sd > 1e-9 * value.abs().amax(0).clamp_min(1e-300)
        if bool(told.any()):
            out[name] = ((value - centre) / sd.clamp_min(1e-300))[:, told]
    return rows, out


def _by_one(
    x: NDArray[np.float64], at: NDArray[np.int64], known: Known, classes: int, name: str
) -> Fit:
    """The entry that tells the known rows apart best, its cross-validated score, its answer."""
    y, fold = known.labels.cpu().numpy(), folds_of(known.labels).cpu().numpy()
    held = np.zeros((len(y), classes))
    for k in range(int(fold.max()) + 1):
        fit = fold != k
        j = _entry(x[at[fit]], y[fit])
        held[~fit] = logistic(x[at[fit]][:, j], y[fit], x[at[~fit]][:, j], classes)
    cv = cv_score(held, y) if fold.max() > 0 else 0.0
    j = _entry(x[at], y)
    return Fit(name, cv, logistic(x[at][:, j], y, x[:, j], classes))


def _entry(x: NDArray[np.float64], y: NDArray[np.int64]) -> list[int]:
    """Which entry of x (q, p) has class means that differ most from those of chance."""
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    within = sum(((x[y == c] - m) ** 2).sum(0) for c, m in zip(np.unique(y), means, strict=True))
    return [int((means.var(0) / np.maximum(within, 1e-12)).argmax())]
