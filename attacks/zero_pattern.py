"""Zeros, signs and visits: what gradients reveal before any number is read.

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
    visits   how often the row came, if ever; sampling that balances classes draws the rare class
             more often. A party is asked for its embedding too, whatever becomes of the gradient
    epochs   how often it came in each epoch; rows of one class may come once more, or once less
    order    mean place of the row's batch in its epoch; batches may be sorted by label
    place    mean place of the row within its batch; one class may come first
    company  how often the row came in a batch with each known row; batches may be of one class
A count that is the same everywhere, or varies only as random batches without replacement let it, is
no information and not used. Order, place and company of a single epoch always vary; that epoch is
tried in which the known rows go with them most, if that is rarer than 1 in 100 by an exact
permutation test over all epochs. With known rows of both classes each count is tried alone, and all
that vary together, in cross-validated logistic regressions; without, the first in this order
answers, in the orientation given here (epochs, order, place and company have none). Where nothing
can be read it declines. Of a quantity it is asked whether a value is far from the median, or in the
largest or smallest tenth, and known rows have to say what a count means.

Attacker: any passive party that receives per-row gradients, or sends embeddings of rows (`kind`)
where gradients are encrypted. Needs no labelled row and no class
shares, but uses both if granted; several classes behind summed logits, or with known rows.
Does not work: where messages are dense, of a fixed size, with noise on zero rows too, and every row
comes once an epoch in random order: then it declines, and says so. Batches of one class are seen
if pairs meet more unevenly than by chance, in all epochs or in one. Of ten epochs one in order is
seen from 16 known rows on: the labels of 14 have only 3,432 orders. Of order, place and company
only what ids do not foretell is read.

Source: Politis, "Privacy failure in split-LLM training, the returned gradient nullifies the
decoys", arXiv:2609.04382 (2026), for zero rows; the other counts are this package's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vflsec.inference import batch_order
from vflsec.inference.batch_order import drop_foretold
from vflsec.inference.completion import SHRINKAGE, logistic_cv
from vflsec.plugin import Attack, Guess, Known, Table, View, registry
from vflsec.specs import QUESTIONS

ALIASES = ("metadata", "exact_zeros")
FAMILY = "counts"


@dataclass(frozen=True)
class Count:
    """A count that varies: `value` (n, k) by row, `scores` (n, C) by theory or None."""

    name: str
    value: Tensor
    scores: Tensor | None

    @property
    def kind(self) -> str:
        """What is counted, in whichever epochs."""
        return self.name.split(" ")[0]


@registry.attack
@dataclass(frozen=True)
class ZeroPattern(Attack):
    """Hyper-parameters.

    Attributes:
        kind: of the messages that are counted: ``gradient``, or ``embedding`` for the own ones that
            were asked for, of which visits and all that follow are read and no number.
    """

    kind: Literal["gradient", "embedding"] = "gradient"
    other_kinds = ({"kind": "embedding"},)
    absent: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    questions: ClassVar[tuple[str, ...]] = tuple(QUESTIONS)
    world = {
        "top": (), "linear_top": False, "aggregation": "sum", "lr": 0.05, "patience": 0,
    }  # fmt: skip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"gradient:all" if self.kind == "gradient" else "sent.embedding:all"})

    def _table(self, view: View) -> Table:
        """Messages of all epochs; of own ones, which tell own columns, without their numbers."""
        if self.kind == "gradient":
            return view.received("gradient", "all", view.party)
        sent = view.sent("embedding", "all", view.party)
        return replace(sent, tensor=torch.ones(len(sent), 1, device=sent.tensor.device))

    def declines(self, view: View) -> str:
        """Why every row looks alike, or why nothing says which class a count means; or ''."""
        _rows, _scores, name, varies = _read(view, self._table(view))
        if name:
            return ""
        if not varies:
            return f"no zeros, signs or visits to read{_find_alternation(self._table(view))}."
        verb = "vary" if len(varies) > 1 else "varies"
        return f"{' and '.join(varies)} {verb}, but no known rows say which class that means."

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        rows, scores, name, varies = _read(view, self._table(view))
        if view.facts.classes == 2:
            scores = scores[:, 1] - scores[:, 0]
        notes = {"reading": name or "nothing", "varies": varies}
        keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if view.known is not None:
            keep = ~torch.isin(rows, view.known.rows)
        return Guess(self.target, rows[keep], scores.to(rows.device)[keep], notes=notes)


def _find_alternation(table: Table) -> str:
    """That the order of rows is not random although mean places are, in words; or ''."""
    rows, place = table.by_row
    if not batch_order.is_alternating(table, place, len(rows)):
        return ""
    return "; `dictionary` reads odd and even places"


def _read(view: View, table: Table) -> tuple[Tensor, Tensor, str, list[str]]:
    """Rows (n,), their scores (n, C), the reading they are of or '', and what varies at all."""
    rows, place = table.by_row
    found = counts(view, table, place, len(rows))
    known, single = view.known, list[Count]()
    if known is not None:
        known = known.among(rows)
        single = [Count(name, of, None) for name, of in batch_order.single_epochs(table, known)]
    never = view.targets["train"][~torch.isin(view.targets["train"], rows)]
    if len(never):
        rows, found, single, known = _with_never(view, rows, place, never, found, single)
    scores, name = torch.zeros(len(rows), view.facts.classes, dtype=torch.float64), ""
    if found + single and known is not None and len(known.labels.unique()) > 1:
        scores, name = _by_known(found, single, rows, known, view.facts.classes)
    elif told := [c for c in found if c.scores is not None]:
        assert told[0].scores is not None
        scores, name = told[0].scores, told[0].name
    return rows, scores, name, list(dict.fromkeys(c.kind for c in found + single))


def _with_never(
    view: View, rows: Tensor, place: Tensor, never: Tensor, found: list[Count], single: list[Count]
) -> tuple[Tensor, list[Count], list[Count], Known | None]:
    """Rows that came and rows that are guessed and never did, with visits and all other counts.

    Of what never came only its visits are known, which are none; other counts get their mean.
    """
    known = view.known
    if known is not None:
        never = torch.cat([never, known.rows[~torch.isin(known.rows, rows)]]).unique()
    visits = torch.bincount(place, minlength=len(rows)).double().unsqueeze(1)
    order = torch.argsort(torch.cat([rows, never]))

    def filled(value: Tensor, rest: Tensor) -> Tensor:
        return torch.cat([value, rest.expand(len(never), -1)])[order]

    def whole(c: Count) -> Count:
        scores = None if c.scores is None else filled(c.scores, c.scores.mean(0))
        return Count(c.name, filled(c.value, c.value.mean(0)), scores)

    came = filled(visits, visits.new_zeros(1))
    rare = _rare(view)
    made = [*(whole(c) for c in found if c.name != "visits"),
            Count("visits", came, _as_class(came, rare))]  # fmt: skip
    return torch.cat([rows, never])[order], made, [whole(c) for c in single], known


def _rare(view: View) -> bool | None:
    """Whether class 1 is the rare one of two; None if that is not known or there is no such."""
    if view.prior is None or view.facts.classes != 2 or "question" in view.facts.extra:
        return None
    return float(view.prior[1]) <= 0.5


def counts(view: View, table: Table, place: Tensor, n: int) -> list[Count]:
    """The counts of `n` rows that carry information, those with the firmest theory first.

    Args:
        view: of the attacker.
        table: messages of all epochs.
        place: for each of its rows which of the `n` it is.
    """
    g = table.tensor.flatten(1)
    parts = list(zip(place.split(batch_order.PART), g.split(batch_order.PART), strict=True))
    visits = torch.bincount(place, minlength=n).double()
    classes = view.facts.classes
    value = "question" in view.facts.extra
    one = not value and "of_label" not in view.facts.extra  # else columns are of other labels
    logits = one and not view.facts.top and g.shape[1] == classes

    rare = _rare(view)
    made: list[tuple[str, Tensor, Tensor | None]] = []
    for name, of in _zeros(parts, visits):
        scores = of if logits else None
        if name == "rows":
            scores = _as_class(of, True) if classes == 2 and not value else None
        elif name == "sizes":
            scores = _as_class(of, rare)
        made.append((name, of, scores))
    if float(visits.var()) > float(visits.mean()) / 2:  # permutations: far below; draws: the mean
        made.append(("visits", visits.unsqueeze(1), _as_class(visits.unsqueeze(1), rare)))
    by_epoch = batch_order.by_epoch(table, place, n)
    if batch_order.is_chosen(by_epoch, table):
        made.append(("epochs", by_epoch, None))
    made += [(k, of, None) for k, of in _arranged(view, table, place, n)]
    return [Count(k, v, s) for k, v, s in made if bool((v.amax(0) > v.amin(0)).any())]


def _arranged(view: View, table: Table, place: Tensor, n: int) -> Iterator[tuple[str, Tensor]]:
    """Order, place and company of `n` rows where these are no chance and not those of their ids."""
    (of_epoch, rows), (of_batch, inner) = (
        (table, place) if bool(here.all()) else (table.take(here), place[here])
        for here in batch_order.is_drawn(table)[table.by_epoch[1]].T
    )
    if len(of_epoch):
        of = batch_order.mean_of(batch_order.find_order(of_epoch), rows, n)
        steps = len(of_epoch.by_step[1]) / len(of_epoch.by_epoch[0])
        if batch_order.is_uneven(of, len(of_epoch) / n, steps):
            yield "order", drop_foretold(of)
    if len(of_batch):
        of = batch_order.mean_of(batch_order.find_place(of_batch), inner, n)
        if batch_order.is_uneven(of, len(of_batch) / n, float(of_batch.by_step[1].median())):
            yield "place", drop_foretold(of)
    if view.known is None or len(of_epoch.by_row[0]) < n:
        return
    met = batch_order.count_meetings(of_epoch, view.known.rows)
    if met is not None and batch_order.is_clustered(beyond := drop_foretold(met), met):
        yield "company", beyond


def _zeros(parts: Sequence[tuple[Tensor, Tensor]], visits: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Shares (n, k) of a row's messages with zeros below 0, zeros in some entries, nothing but
    zeros, and the mean number of entries that are not 0; without those of which none varies.

    Args:
        parts: rows (b,) and messages (b, d) of some of them.
        visits: of the n rows.
    """

    def share(mask: Callable[[Tensor], Tensor]) -> Tensor:
        width = mask(parts[0][1][:1]).shape[1]
        total = torch.zeros(len(visits), width, dtype=torch.float64, device=visits.device)
        for at, x in parts:  # whole numbers: in any order
            total.index_add_(0, at, mask(x).double())
        return total / visits.unsqueeze(1)

    if any(bool((torch.signbit(x) & (x == 0)).any()) for _, x in parts):
        yield "signs", share(torch.signbit)
    if any(bool((x == 0).any()) for _, x in parts):
        yield "entries", share(lambda x: (x == 0) & ~(x == 0).all(dim=1, keepdim=True))
        yield "rows", share(lambda x: (x == 0).all(dim=1, keepdim=True))
        yield "sizes", share(lambda x: x != 0).sum(1, keepdim=True)


def _as_class(value: Tensor, positive: bool | None) -> Tensor | None:
    """Scores (n, 2) of a count (n, 1) that marks class 1, or class 0; None if it is not known."""
    if positive is None:
        return None
    none = torch.zeros_like(value)
    return torch.cat([none, value] if positive else [value, none], dim=1)


def _by_known(
    found: list[Count], single: list[Count], rows: Tensor, known: Known, classes: int
) -> tuple[Tensor, str]:
    """Scores (n, C) of the count, or of all of `found` together, that tells known rows best."""
    at = torch.searchsorted(rows, known.rows)
    candidates = {c.name: c.value for c in found}
    if len(found) > 1:
        candidates["all"] = torch.cat([c.value for c in found], dim=1)
    candidates |= {c.name: c.value for c in single}
    fits = []
    for name, value in candidates.items():
        sd = value.std(0, correction=0)
        x = ((value - value.mean(0)) / sd.clamp_min(1e-9))[:, sd > 0].cpu().numpy()
        grid = SHRINKAGE if x.shape[1] > 1 else (1.0,)
        fits.append(logistic_cv(x[at.cpu().numpy()], known, x, classes, name, grid))
    best = max(fits, key=lambda f: f.cv)
    return torch.from_numpy(np.asarray(best.scores)), best.variant
