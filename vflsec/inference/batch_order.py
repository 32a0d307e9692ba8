"""How recorded messages were arranged: order, places and company of rows, over epochs or in one.

Over all epochs a row's mean place, and how often it met another row in a batch, have a known
scatter if batches are drawn at random; beyond it they are information. In a single epoch every
order of rows is as likely as any, so whether one goes with the labels of known rows is tested:
among all ways to deal the known labels out to the known rows, how many go with it as much
(an exact permutation test, Pitman, Supplement to the JRSS 1937), corrected for having looked at
every epoch, at every kind and at every class.

Ids hold without a message, and a table may be sorted by its labels. So nothing is read of rows that
come by their ids, and of others only what ids do not foretell: where neighbours by id are alike,
values of rows are taken less the mean of their neighbours, and labels are dealt out anew among
known rows with neighbouring ids (a stratified permutation test, van Elteren, Bulletin de
l'Institut International de Statistique 1960).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import lgamma

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Known, Table
from vflsec.nn.rows import sums

PART = 1 << 16
"""Messages that are looked at together, so that long recordings fit into memory."""
RARE = 0.01
"""How often an epoch in random order may pass for one that is not, over all that are looked at."""
_ALTERNATES = 1.5 / 4
"""Beyond which variance a row's share of odd places, times its visits, is no chance."""
TESTED, STRATUM = 60, 10
"""Known rows that the exact test counts over, a grant alternates its classes; and the most with
neighbouring ids among which it deals labels out anew."""
NEAR = 8
"""Ids before and after, which foretell a value."""

Ints = NDArray[np.int64]


def by_epoch(table: Table, place: Tensor, n: int) -> Tensor:
    """How often each row (n, E) came in each epoch."""
    epochs, at = table.by_epoch
    cells = torch.bincount(place * len(epochs) + at, minlength=n * len(epochs))
    return cells.reshape(n, len(epochs)).double()


def is_chosen(visits: Tensor, table: Table) -> bool:
    """Whether rows (n, E) were chosen for an epoch, as no pass in random order chooses them.

    A pass that leaves its last batch out lacks as many rows in every epoch, fewer than a batch.
    """
    most = visits.amax(0)
    short = (visits < most).sum(0)
    largest = int(table.by_step[1].max())
    return bool((short >= largest * most).any()) or int(short.max()) > int(short.min())


def is_drawn(table: Table) -> Tensor:
    """Of which epochs rows came otherwise than by their ids, up or down, which hold without a
    message: (E, 2), in the epoch as a whole, and in one of its batches.
    """
    epochs, at = table.by_epoch
    turned = torch.zeros((2, len(epochs), 2), dtype=torch.bool, device=at.device)
    for k, within in enumerate((at, table.by_step[0])):
        for way, of in enumerate((table.rows.diff() < 0, table.rows.diff() > 0)):
            turned[way, at[1:][of & (within.diff() == 0)], k] = True
    return turned.all(0)


def sum_near(value: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of values (n, k), in the order of ids, over the rows of the nearest ids, and how many
    these are, (n, 1).
    """
    at = torch.arange(len(value), device=value.device)
    low, high = (at - NEAR).clamp_min(0), (at + NEAR + 1).clamp_max(len(at))
    total = torch.cat([torch.zeros_like(value[:1]), value.cumsum(0)])
    return total[high] - total[low] - value, (high - low - 1).clamp_min(1).unsqueeze(1)


def is_foretold(value: Tensor, *, together: bool = False) -> bool:
    """Whether values (n, k) of rows with neighbouring ids are alike, more than by chance by two
    standard errors: near, or if `together` equal. Labels play no part.
    """
    if together:
        base = (value.unique(return_counts=True)[1].double() / len(value)).square().sum()
        alike = (value.diff(dim=0) == 0).double() - base
    else:
        base, off = value.var(0), value - value.mean(0)
        alike = off[1:] * off[:-1] / base.clamp_min(1e-18).sqrt()
    return float(alike.sum()) > 2 * float(base.sum() * len(value)) ** 0.5


def drop_foretold(value: Tensor) -> Tensor:
    """Of values (n, k) of rows in the order of their ids, what these do not foretell, (n, k): each
    less the mean of its neighbours, with the variance that random values have.
    """
    if not is_foretold(value):
        return value
    near, many = sum_near(value)
    return (value - near / many) * (many / (many + 1)).sqrt()


def find_order(table: Table) -> Tensor:
    """Where in its epoch each message (m,) passed, from 0 to 1."""
    epochs, at = table.by_epoch
    none = table.step.new_zeros(len(epochs))
    ends = (none.scatter_reduce(0, at, table.step, k, include_self=False) for k in ("amin", "amax"))
    first, last = (of.double() for of in ends)
    return (table.step.double() - first[at]) / (last - first).clamp_min(1)[at]


def find_place(table: Table) -> Tensor:
    """Where in its batch each message (m,) stood, from 0 to 1."""
    batch, many = table.by_step
    by_batch = torch.argsort(batch, stable=True)
    start = many.cumsum(0) - many
    turn = torch.empty_like(batch)
    turn[by_batch] = torch.arange(len(batch), device=batch.device) - start[batch[by_batch]]
    return turn.double() / (many[batch] - 1).clamp_min(1)


def mean_of(value: Tensor, place: Tensor, n: int) -> Tensor:
    """Mean over the messages (m,) of each row, (n, 1); the mean of the rows where one has none."""
    visits = torch.bincount(place, minlength=n)
    of = sums(value, place, n) / visits.clamp_min(1)
    return torch.where(visits > 0, of, of[visits > 0].mean()).unsqueeze(1)


def is_uneven(of: Tensor, visits: float, places: float) -> bool:
    """Whether the mean places (n, 1) of rows vary as by no chance, and beyond what ids foretell.

    Random places from 0 to 1 vary by (k + 1) / 12 (k - 1) where there are k of them.
    """
    limit = max(3.0, 1.5 * (places + 1) / max(places - 1, 1e-9)) / 12
    all_, beyond = (float(x.var()) * visits for x in (of, drop_foretold(of)))
    return all_ > limit and beyond > limit / 2


def is_alternating(table: Table, place: Tensor, n: int) -> bool:
    """Whether rows keep to odd or to even places of their batches, or to odd or even batches.

    The share of a row's visits at odd places, times its visits, varies by 1 / 4 in random order; of
    a single epoch it tells nothing.

    Args:
        table: messages of all epochs.
        place: for each of its rows which of the `n` it is.
    """
    visits = torch.bincount(place, minlength=n).double()
    batch, many = table.by_step
    largest = (many[batch] - 1).clamp_min(1)
    of_batch = (find_place(table) * largest).round() % 2
    return any(
        float(mean_of(odd.double(), place, n).var()) * float(visits.mean()) > _ALTERNATES
        for odd in (of_batch, batch % 2)
    )


def count_meetings(table: Table, known: Tensor, epoch: int | None = None) -> Tensor | None:
    """How often each row (n, q) met each known row in a batch; None if none of those came.

    A known row's own entry is the mean of the others', so that it does not tell itself.

    Args:
        table: messages of n rows.
        known: sample ids.
        epoch: the one that is looked at, None for all.
    """
    (rows, place), batch = table.by_row, table.by_step[0]
    known, n = known[torch.isin(known, rows)], len(rows)
    if not len(known):
        return None
    there = torch.zeros(int(batch.max()) + 1, len(known), dtype=torch.float64, device=batch.device)
    met = torch.zeros(n, len(known), dtype=torch.float64, device=batch.device)
    mine, of = _of_known(rows, place, known)
    if epoch is not None:
        asked = table.epoch[mine] == epoch
        mine, of = mine[asked], of[asked]
    there[batch[mine], of] = 1
    for at, b in zip(place.split(PART), batch.split(PART), strict=True):
        met.index_add_(0, at, there[b])
    own = torch.searchsorted(rows, known)
    column = torch.arange(len(known), device=own.device)
    met[own, column] = 0.0
    met[own, column] = met.sum(0) / max(n - 1, 1)
    return met


def _of_known(rows: Tensor, place: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Messages (k,) of known rows, which are among `rows` (n,), and which of them each is of."""
    of = torch.full_like(rows, -1)
    of[torch.searchsorted(rows, known)] = torch.arange(len(known), device=rows.device)
    of = of[place]
    mine = (of >= 0).nonzero().squeeze(1)
    return mine, of[mine]


def is_clustered(beyond: Tensor, met: Tensor) -> bool:
    """Whether pairs met (n, q) more unevenly than by chance, whose variance is at most the mean.

    Args:
        beyond: what ids do not foretell of it.
    """
    mean = max(float(met.mean()), 1e-9)
    error = ((2 + 1 / mean) / met.numel()) ** 0.5  # of the ratio, for Poisson counts
    return float(beyond.var(0).mean()) / mean > 1 + 6 * error


def single_epochs(table: Table, known: Known) -> Iterator[tuple[str, Tensor]]:
    """Order, place and company of the epoch in which they go with the known labels most surely.

    Only where that is rarer than :data:`RARE` by chance, with every epoch that was looked at.

    Args:
        table: messages of all epochs, of n rows.
        known: among those rows.

    Yields:
        a name that holds the epoch, counted from 1, and the value by row, (n, 1) or (n, q).
    """
    epochs = table.by_epoch[0].tolist()
    labels = known.labels[:TESTED].cpu().numpy()
    classes = np.unique(labels)
    if len(classes) < 2:
        return
    asked = classes[1:] if len(classes) == 2 else classes
    limit = RARE / (3 * len(epochs) * len(asked))
    values = {
        "order": find_order(table),
        "place": find_place(table),
        "company": table.by_step[0].double(),
    }
    of_epoch, of_batch = is_drawn(table).T.tolist()
    drawn = {"order": of_epoch, "place": of_batch, "company": of_epoch}
    rows, place = table.by_row
    mine, of_row = _of_known(rows, place, known.rows[:TESTED])
    when, ids = table.epoch[mine], known.rows[:TESTED].cpu().numpy()
    for kind, value in values.items():
        chances, held, way = [], value[mine], kind == "company"
        for epoch in epochs:
            of, all_of = when == epoch, table.epoch == epoch
            here = (torch.bincount(of_row[of], minlength=len(labels)) > 0).cpu().numpy()
            first = mean_of(held[of], of_row[of], len(labels)).squeeze(1).cpu().numpy()[here]
            by_id = mean_of(value[all_of], place[all_of], len(rows))
            near = ids[here] if is_foretold(by_id, together=way) else None
            told = [labels[here] == c for c in asked]
            chances.append(min(compute_chance(first, t, near, together=way) for t in told))
        chances = [p if of else 1.0 for p, of in zip(chances, drawn[kind], strict=True)]
        best = int(np.argmin(chances))
        if chances[best] > limit:
            continue
        of, name = table.epoch == epochs[best], f"{kind} of epoch {best + 1}"
        if kind != "company":
            yield name, drop_foretold(mean_of(value[of], place[of], len(rows)))
        elif (met := count_meetings(table, known.rows, epochs[best])) is not None:
            yield name, drop_foretold(met)


def compute_chance(
    value: NDArray[np.float64], told: NDArray[np.bool_], ids: Ints | None = None, *, together: bool
) -> float:
    """How likely labels dealt out anew go with the values as much, exactly.

    Args:
        value: of q rows.
        told: (q,) which of them are of the class.
        ids: (q,) of the rows, where labels are dealt out among those with neighbouring ones.
        together: whether rows of one value are of one class (how many pairs of equal rows are),
            rather than whether values are larger in one (the sum of ranks, either way).
    """
    many, seen = np.ones(1), 0
    order = np.arange(len(told)) if ids is None else np.argsort(ids, kind="stable")
    parts = 1 if ids is None else -(-len(ids) // STRATUM) or 1
    for at in np.array_split(order, parts):
        ways, here = _count_ways(value[at], told[at], together=together)
        many, seen = np.convolve(many, ways), seen + here
    figure = np.arange(len(many))
    middle = 0.0 if together else float(figure @ many / many.sum())
    as_much = np.abs(figure - middle) >= abs(seen - middle) - 1e-6
    return float(many[as_much].sum() / many.sum())


def _count_ways(
    value: NDArray[np.float64], told: NDArray[np.bool_], *, together: bool
) -> tuple[NDArray[np.float64], int]:
    """In how many ways labels can be dealt out, by the figure that they come to, and that seen."""
    groups, at, sizes = np.unique(value, return_inverse=True, return_counts=True)
    ones = np.bincount(at, weights=told, minlength=len(groups)).astype(np.int64)
    rank = 2 * sizes.cumsum() - sizes + 1  # twice the mean rank of a group
    most = int((sizes * (sizes - 1) // 2).sum()) if together else int((sizes * rank).sum())
    ways = np.zeros((int(ones.sum()) + 1, most + 1))
    ways[0, 0] = 1.0  # by how many were dealt to the class, and by the figure
    seen = 0
    for m, r, k in zip(sizes.tolist(), rank.tolist(), ones.tolist(), strict=True):
        fresh, choose = np.zeros_like(ways), 1.0
        for j in range(min(m, len(ways) - 1) + 1):
            worth = (j * (j - 1) + (m - j) * (m - j - 1)) // 2 if together else j * r
            fresh[j:, worth:] += choose * ways[: len(ways) - j, : most + 1 - worth]
            seen += worth if j == k else 0
            choose = choose * (m - j) / (j + 1)
        ways = fresh
    return ways[-1], seen


@lru_cache(maxsize=1 << 16)
def compute_gap_chance(gap: float, n1: int, n0: int, share: float) -> float:
    """P(|A / n1 - B / n0| >= gap) of independent A and B, Binomial(n1, s) and Binomial(n0, s).

    The share s is rounded to a hundredth towards one half.

    Source: Barnard, "Significance tests for 2 x 2 tables", Biometrika 1947, with a given share.
    """
    share = 0.5 + float(np.copysign(np.floor(100 * abs(share - 0.5) + 1e-9), share - 0.5)) / 100
    b = _binomial(n0, share)
    a = np.arange(n1 + 1) / n1
    below = np.concatenate([[0.0], b.cumsum()])  # P(B < k)
    above = np.concatenate([b[::-1].cumsum()[::-1], [0.0]])  # P(B >= k)
    low = np.clip(np.floor(n0 * (a - gap) + 1e-9).astype(int) + 1, 0, n0 + 1)
    high = np.clip(np.ceil(n0 * (a + gap) - 1e-9).astype(int), 0, n0 + 1)
    return float(min(1.0, _binomial(n1, share) @ (below[low] + above[high])))


@lru_cache(maxsize=1 << 12)
def _binomial(n: int, share: float) -> NDArray[np.float64]:
    """Chances of 0 to `n` among `n`."""
    k = np.arange(n + 1)
    if share in (0.0, 1.0):
        return (k == n * share).astype(np.float64)
    ways = np.array([lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) for i in range(n + 1)])
    of: NDArray[np.float64] = np.exp(ways + k * np.log(share) + (n - k) * np.log1p(-share))
    return of
