"""Zeros, signs and visits: what gradients tell before any number is read.

Counted for each row over all its visits, from bit patterns and row ids alone:
    signs    share of visits with the sign bit set, by column, where -0.0 occurs at all: a mask that
             multiplies turns a dropped -3 into -0.0. Behind summed logits it marks the label
    entries  share of visits whose entry is exactly 0 while another is not, by column. Behind summed
             logits the label's entry p - 1 is 0 from a margin of 24 ln 2 = 16.6 (float32), the
             others only from 104: a zero names the class
    rows     share of visits that are 0 throughout. A logit's gradient is 0 for a positive from
             16.6, for a negative below -88.7; loss weights of 0 and met margins do the same
    sizes    mean number of entries that are not 0, so bytes after sparse coding; large rows are
             kept, and the rare class has them
    visits   how often the row came; sampling that balances classes draws the rare class more often
    epochs   how often it came in each epoch; rows of one class may come once more, or once less
    order    mean place of the row's batch in its epoch; batches may be sorted by label
    place    mean place of the row within its batch; one class may come first
    company  how often the row came in a batch with each known row; batches may be of one class
A count that is the same everywhere, or varies only as random batches without replacement let it, is
no information and not used. With known rows of both classes each count is tried alone, and all
together, in cross-validated logistic regressions; without, the first in this order answers, in the
orientation given here (epochs, order, place and company have none). Where nothing can be read it
declines.

Attacker: any passive party that receives per-row gradients. Needs no labelled row and no class
shares, but uses both if granted; several classes behind summed logits, or with known rows.
Does not work: where messages are dense, of a fixed size, with noise on zero rows too, and every row
comes once an epoch in random order: then it declines, and says so. Batches of one class are seen
from some epochs on: pairs have to meet more unevenly than by chance.

Source: Politis, "Privacy failure in split-LLM training, the returned gradient nullifies the
decoys", arXiv:2609.04382 (2026), for zero rows; the other counts are this package's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vflsec import registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.nn.completion import SHRINKAGE, logistic_cv
from vflsec.view import Known, Table, View

ALIASES = ("metadata", "exact_zeros")
FAMILY = "Labels from zeros, signs, sizes and visits"
_PART = 1 << 16  # rows that are looked at together, so that long recordings fit into memory


@dataclass(frozen=True)
class Count:
    """A count that varies: `value` (n, k) by row, `scores` (n, C) by theory or None."""

    name: str
    value: Tensor
    scores: Tensor | None


@registry.attack
@dataclass(frozen=True)
class ZeroPattern(Attack):
    """No hyper-parameters."""

    needs = frozenset({"gradient:all"})
    labelwise: ClassVar[bool] = True
    world: ClassVar[dict[str, Any]] = {
        "top": (), "linear_top": False, "aggregation": "sum", "lr": 0.05, "patience": 0,
    }  # fmt: skip

    def declines(self, view: View) -> str:
        """Why every row looks alike, or why nothing says which class a count means; or ''."""
        _rows, _scores, name, varies = _read(view)
        if name:
            return ""
        if not varies:
            return (
                "every row is dense, of one size, and comes once an epoch in random order: there "
                "are no zeros, signs or visits to read."
            )
        return (
            f"{' and '.join(varies)} {'varies' if len(varies) == 1 else 'vary'}, but nothing says "
            "which class that means; known rows of both classes would."
        )

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        rows, scores, name, varies = _read(view)
        if view.facts.classes == 2:
            scores = scores[:, 1] - scores[:, 0]
        notes = {"reading": name or "nothing", "varies": varies}
        keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if view.known is not None:
            keep = ~torch.isin(rows, view.known.rows)
        return Guess(self.target, rows[keep], scores.to(rows.device)[keep], notes=notes)


def _read(view: View) -> tuple[Tensor, Tensor, str, list[str]]:
    """Rows (n,), their scores (n, C), the reading they are of or '', and what varies at all."""
    table = view.received("gradient", "all", view.party)
    rows, place = table.rows.unique(return_inverse=True)
    found = counts(view, table, place, len(rows))
    known = view.known
    if known is not None:
        known = Known(*(t[torch.isin(known.rows, rows)] for t in (known.rows, known.labels)))
    scores, name = torch.zeros(len(rows), view.facts.classes, dtype=torch.float64), ""
    if found and known is not None and len(known.labels.unique()) > 1:
        scores, name = _by_known(found, rows, known, view.facts.classes)
    elif told := [c for c in found if c.scores is not None]:
        assert told[0].scores is not None
        scores, name = told[0].scores, told[0].name
    return rows, scores, name, [c.name for c in found]


def counts(view: View, table: Table, place: Tensor, n: int) -> list[Count]:
    """The counts of `n` rows that carry information, those with the firmest theory first.

    Args:
        view: of the attacker.
        table: gradients of all epochs.
        place: for each of its rows which of the `n` it is.
    """
    g = table.tensor.flatten(1)
    parts = list(zip(place.split(_PART), g.split(_PART), strict=True))
    visits = torch.bincount(place, minlength=n).double()
    classes = view.facts.classes
    one = "of_label" not in view.facts.extra  # of several labels the columns are theirs
    logits = one and not view.facts.top and g.shape[1] == classes

    def share(mask: Callable[[Tensor], Tensor]) -> Tensor:
        width = mask(g[:1]).shape[1]
        total = torch.zeros(n, width, dtype=torch.float64, device=g.device)
        for at, x in parts:  # whole numbers: in any order
            total.index_add_(0, at, mask(x).double())
        return total / visits.unsqueeze(1)

    rare = None if view.prior is None or classes != 2 else float(view.prior[1]) <= 0.5
    made: list[tuple[str, Tensor, Tensor | None]] = []
    if any(bool((torch.signbit(x) & (x == 0)).any()) for _, x in parts):
        of = share(torch.signbit)
        made.append(("signs", of, of if logits else None))
    of = share(lambda x: (x == 0) & ~(x == 0).all(dim=1, keepdim=True))
    made.append(("entries", of, of if logits else None))
    of = share(lambda x: (x == 0).all(dim=1, keepdim=True))
    made.append(("rows", of, _as_class(of, True) if classes == 2 else None))
    of = share(lambda x: x != 0).sum(1, keepdim=True)
    made.append(("sizes", of, _as_class(of, rare)))
    if float(visits.var()) > float(visits.mean()) / 2:  # permutations: far below; draws: the mean
        made.append(("visits", visits.unsqueeze(1), _as_class(visits.unsqueeze(1), rare)))
    by_epoch = _by_epoch(table, place, n)
    if _chosen(by_epoch, table):
        made.append(("epochs", by_epoch, None))
    order = _order(table)
    of = torch.zeros(n, dtype=torch.float64, device=g.device).index_add_(0, place, order) / visits
    _, batch, many = table.step.unique(return_inverse=True, return_counts=True)
    steps = len(many) / len(table.epoch.unique())
    if float(of.var()) * float(visits.mean()) > _uneven(steps):
        made.append(("order", of.unsqueeze(1), None))
    within = _within(batch, many)
    of = torch.zeros(n, dtype=torch.float64, device=g.device).index_add_(0, place, within) / visits
    if float(of.var()) * float(visits.mean()) > _uneven(float(many.median())):
        made.append(("place", of.unsqueeze(1), None))
    met = _company(view, table, place, batch, n)
    if met is not None and _clustered(met):
        made.append(("company", met, None))
    return [Count(k, v, s) for k, v, s in made if bool((v.amax(0) > v.amin(0)).any())]


def _by_epoch(table: Table, place: Tensor, n: int) -> Tensor:
    """How often each row (n, E) came in each epoch."""
    epochs, at = table.epoch.unique(return_inverse=True)
    cells = torch.bincount(place * len(epochs) + at, minlength=n * len(epochs))
    return cells.reshape(n, len(epochs)).double()


def _chosen(visits: Tensor, table: Table) -> bool:
    """Whether rows (n, E) were chosen for an epoch, as no pass in random order chooses them.

    A pass that leaves its last batch out lacks as many rows in every epoch, fewer than a batch.
    """
    most = visits.amax(0)
    short = (visits < most).sum(0)
    largest = int(table.step.unique(return_counts=True)[1].max())
    return bool((short >= largest * most).any()) or int(short.max()) > int(short.min())


def _order(table: Table) -> Tensor:
    """Where in its epoch each message passed, from 0 to 1."""
    out = torch.zeros(len(table), dtype=torch.float64, device=table.rows.device)
    for epoch in table.epoch.unique():
        of = table.epoch == epoch
        step = table.step[of].double()
        out[of] = (step - step.min()) / (step.max() - step.min()).clamp_min(1)
    return out


def _uneven(places: float) -> float:
    """Beyond which variance a row's mean place, times its visits, is no chance.

    Random places from 0 to 1 have (k + 1) / 12 (k - 1) where there are k of them.
    """
    return max(3.0, 1.5 * (places + 1) / max(places - 1, 1e-9)) / 12


def _within(batch: Tensor, many: Tensor) -> Tensor:
    """Where in its batch each message (m,) stood, from 0 to 1."""
    order = torch.argsort(batch, stable=True)
    start = many.cumsum(0) - many
    turn = torch.empty_like(batch)
    turn[order] = torch.arange(len(batch), device=batch.device) - start[batch[order]]
    return turn.double() / (many[batch] - 1).clamp_min(1)


def _company(view: View, table: Table, place: Tensor, batch: Tensor, n: int) -> Tensor | None:
    """How often each row (n, q) met each known row in a batch, or None without known rows.

    A known row's own entry is the mean of the others', so that it does not tell itself.
    """
    if view.known is None:
        return None
    known = view.known.rows[torch.isin(view.known.rows, table.rows)]
    if not len(known):
        return None
    there = torch.zeros(int(batch.max()) + 1, len(known), dtype=torch.float64, device=batch.device)
    met = torch.zeros(n, len(known), dtype=torch.float64, device=batch.device)
    for j, row in enumerate(known):
        there[batch[table.rows == row], j] = 1
    for at, b in zip(place.split(_PART), batch.split(_PART), strict=True):
        met.index_add_(0, at, there[b])
    own = torch.searchsorted(table.rows.unique(), known)
    column = torch.arange(len(known), device=own.device)
    met[own, column] = (met.sum(0) - met[own, column]) / max(n - 1, 1)
    return met


def _clustered(met: Tensor) -> bool:
    """Whether pairs met (n, q) more unevenly than by chance, whose variance is at most the mean."""
    mean = max(float(met.mean()), 1e-9)
    error = ((2 + 1 / mean) / met.numel()) ** 0.5  # of the ratio, for Poisson counts
    return float(met.var(0).mean()) / mean > 1 + 6 * error


def _as_class(value: Tensor, positive: bool | None) -> Tensor | None:
    """Scores (n, 2) of a count (n, 1) that marks class 1, or class 0; None if it is not known."""
    if positive is None:
        return None
    none = torch.zeros_like(value)
    return torch.cat([none, value] if positive else [value, none], dim=1)


def _by_known(found: list[Count], rows: Tensor, known: Known, classes: int) -> tuple[Tensor, str]:
    """Scores (n, C) of the count, or of all together, that predicts the known rows best."""
    at = torch.searchsorted(rows, known.rows)
    candidates = {c.name: c.value for c in found}
    if len(found) > 1:
        candidates["all"] = torch.cat([c.value for c in found], dim=1)
    fits = []
    for name, value in candidates.items():
        sd = value.std(0, correction=0)
        x = ((value - value.mean(0)) / sd.clamp_min(1e-9))[:, sd > 0].cpu().numpy()
        grid = SHRINKAGE if x.shape[1] > 1 else (1.0,)
        fits.append(logistic_cv(x[at.cpu().numpy()], known, x, classes, name, grid))
    best = max(fits, key=lambda f: f.cv)
    return torch.from_numpy(np.asarray(best.scores)), best.variant
