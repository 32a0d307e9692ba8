"""Simple functions of the messages of a row, each with the values 1, 0 and -1 (not defined).

Some look at one visit, at the mean of a row's messages, or at the mean of their sizes; others at
the place of a message in its batch, or at how often its row came. Which numbers they hold (cuts,
outliers, steps of a grid) is read off messages alone, never off labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Table
from vflsec.inference.batch_order import compute_gap_chance, is_drawn, sum_near

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Signs = NDArray[np.int8]
Index = NDArray[Any]

MEAN, SIZE, VISITS, EACH = -1, -2, -3, -4
"""Versions beside single epochs: of the mean message, of the mean sizes, of how often a row came,
and the value that most visits have."""

FOLDED = 20
"""Epochs over which most visits decide: of more, so many, evenly spread."""
ENTRIES, PAIRED, TRIPLED, NEAR = 64, 32, 16, 16
"""Entries that are looked at alone, in pairs, in threes and beside their neighbours: those of the
largest mean square."""
CUTS = (0.05, 0.25, 0.5, 0.75, 0.95)
OUTLYING, RARE = 8.0, 0.2
"""A mark is as many robust standard deviations off the median, in fewer than this share of rows."""
BITS, ID_BITS = 8, 16
"""Lowest bits of a number that vary, and bits of a row id, that are looked at."""
MODULI = range(2, 13)
READ = 4096
"""Messages from which the grid and the varying bits of an entry are read."""


@dataclass(frozen=True)
class Wire:
    """What all messages of a recording have in common.

    Attributes:
        entries: of a payload, the largest mean square first.
        shifts: positions of the lowest bits that vary.
        grid: step of the grid on which an entry lies, by entry; 0 where there is none.
        ids: bits that the largest row id has.
        batch: rows of the largest batch.
        epochs: in the order in which they passed.
        by_id: whether rows came in the order of their ids (E, 2): in the epoch, in each batch.
    """

    entries: Ints
    shifts: Ints
    grid: Floats
    ids: int
    batch: int
    epochs: int
    by_id: NDArray[np.bool_]


@dataclass(frozen=True)
class Visit:
    """What some rows (r,) have in one version.

    Attributes:
        version: an epoch from 0, or one of the above.
        x: messages (r, d) of the rows; NaN where there is none.
        ids: (r,) row ids.
        turns: (r, 6) int64 place in the batch, its size, its number in the epoch, how many there
            were, ids before and after; -1 where there is none.
        came: (r, E) how often each row came in each epoch.
        messages: (m, d) all of them, and `slots` (r, 3) which are of the rows, before and after; -1
            where there is none.
    """

    wire: Wire
    version: int
    x: Floats
    ids: Ints
    turns: Ints
    came: Ints
    messages: NDArray[np.floating]
    slots: Ints

    @cached_property
    def bits(self) -> Ints:
        """Bit patterns (r, d) of the numbers, 0 of what did not come."""
        slot = self.slots[:, 0]
        return np.where((slot >= 0)[:, None], _bits(self.messages[slot]), 0)

    @cached_property
    def beside(self) -> tuple[Floats, Floats]:
        """Messages (r, d) before and after each in its batch; NaN where there is none."""
        before, after = self.slots[:, 1:].T
        return _numbers_at(self.messages, before), _numbers_at(self.messages, after)

    @cached_property
    def sign(self) -> Signs:
        """Signs (r, d), 0 of a zero and of what is no number."""
        return compute_signs(self.x)

    @cached_property
    def public(self) -> Signs:
        """Bits of the id, and parity of the place, from the end too, and of the batch: -1, 0, 1."""
        place, size, step = self.turns[:, 0], self.turns[:, 1], self.turns[:, 2]
        of_id = (self.ids[:, None] >> np.arange(self.wire.ids)) & 1
        rest = np.stack([place & 1, (size - 1 - place) & 1, step & 1], axis=1)
        out = 2 * np.concatenate([of_id, rest], axis=1) - 1
        out[place < 0, self.wire.ids :] = 0
        return out.astype(np.int8)

    @cached_property
    def reals(self) -> Floats:
        """Entries, their sizes, and of a message length, sum, largest size and number of zeros.

        Of visits: how often a row came in each epoch and in all, and first.
        """
        if self.version == VISITS:
            first = (self.came > 0).argmax(1)
            return np.column_stack([self.came, self.came.sum(1), first]).astype(np.float64)
        x = self.x[:, self.wire.entries]
        size = np.abs(x) if self.version != SIZE else x[:, :0]
        zeros = np.where(np.isnan(self.x).all(1), np.nan, (self.x == 0).sum(1))
        length, most = np.sqrt((x * x).sum(1)), np.abs(x).max(1)
        return np.column_stack([x, size, length, x.sum(1), most, zeros])

    @cached_property
    def arranged(self) -> Signs:
        """Where the messages stood in batch and epoch, in yes/no questions."""
        place, size, step, steps, before, after = self.turns.T
        there = place >= 0
        asked = [(place >> b) & 1 for b in range(4)] + [(step >> b) & 1 for b in range(3)]
        asked += [place % m == k for m in (3, 5, 10) for k in range(m)]
        asked += [place == 0, place == size - 1, size < self.wire.batch]
        asked += [place >= c * size for c in CUTS[1:4]] + [step >= c * steps for c in CUTS[1:4]]
        out = np.stack(asked, axis=1).astype(np.int8)
        out[~there] = -1
        sides = [_asked(side >= 0, side & 1) for side in (before, after)]
        return np.concatenate([out, np.stack(sides, axis=1)], axis=1)


def compute_signs(x: Floats) -> Signs:
    """-1, 0 or 1 of each number; 0 of what is none."""
    return (x > 0).astype(np.int8) - (x < 0).astype(np.int8)


def _of_sign(x: NDArray[np.number]) -> Signs:
    """1, 0 and -1 for numbers above, below and at 0."""
    return (x > 0).view(np.int8) - (x == 0).view(np.int8)


def _asked(there: NDArray[np.bool_], yes: NDArray[np.generic]) -> Signs:
    return np.where(there, yes != 0, -1).astype(np.int8)


class Messages:
    """Messages of one kind by row and epoch, and what they have in common.

    Args:
        table: messages of all epochs; what is of no row is left out. Of several in one epoch the
            first is the row's visit.
    """

    def __init__(self, table: Table) -> None:
        if not bool((table.rows >= 0).all()) or not bool((table.step.diff() >= 0).all()):
            mine = (table.rows >= 0).nonzero().squeeze(1)
            table = table.take(mine[torch.argsort(table.step[mine], stable=True)])
        self._g = _numbers(table.tensor.flatten(1))
        ids, step = _numpy(table.rows), _numpy(table.step)
        self.rows, self._row = np.unique(ids, return_inverse=True)
        epochs, epoch = np.unique(_numpy(table.epoch), return_inverse=True)
        n, m = len(self.rows), len(ids)
        self._came = np.bincount(self._row * len(epochs) + epoch, minlength=n * len(epochs))
        self._came = self._came.reshape(n, len(epochs))
        self._slot = np.full((len(epochs), n), -1)
        self._slot[epoch[::-1], self._row[::-1]] = np.arange(m)[::-1]  # the first stays
        batch = np.cumsum(np.diff(step, prepend=step[:1]) != 0)
        first = np.searchsorted(batch, np.arange(batch[-1] + 1 if m else 0))
        size = np.bincount(batch)
        place = np.arange(m) - first[batch]
        start = np.full(len(epochs), m).astype(np.int64)
        np.minimum.at(start, epoch, batch)
        steps = np.zeros(len(epochs), np.int64)
        np.maximum.at(steps, epoch, batch - start[epoch] + 1)
        before = np.where(place > 0, np.arange(m) - 1, -1)
        after = np.where(place < size[batch] - 1, np.arange(m) + 1, -1)
        self._beside = np.stack([before, after], axis=1)
        self._turns = np.stack(
            [place, size[batch], batch - start[epoch], steps[epoch], _at(ids, before),
             _at(ids, after)], axis=1,
        )  # fmt: skip
        self.wire = self._read(~is_drawn(table).cpu().numpy())

    def _read(self, by_id: NDArray[np.bool_]) -> Wire:
        some = self._g[:: max(1, len(self._g) // READ)]
        x = np.nan_to_num(some.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        entries = np.argsort(-(x * x).mean(0), kind="stable")[:ENTRIES]
        bits = _bits(some)
        varying = np.bitwise_or.reduce((bits ^ bits[:1]).ravel()) if len(bits) else 0
        shifts = np.flatnonzero([(int(varying) >> b) & 1 for b in range(63)])[:BITS]
        grid = np.array([_grid(x[:, j]) for j in range(x.shape[1])])
        most = int(self.rows.max(initial=0))
        largest = int(self._turns[:, 1].max(initial=0))
        ids = min(ID_BITS, most.bit_length())
        return Wire(entries, shifts, grid, ids, largest, len(by_id), by_id)

    @property
    def folded(self) -> list[int]:
        """The epochs over which most visits decide."""
        return spread_evenly(self.wire.epochs, FOLDED)

    def visit(self, at: Ints, version: int) -> Visit:
        """What the rows at these places of :attr:`rows` have in a version, never :data:`EACH`."""
        came, ids = self._came[at], self.rows[at]
        if version >= 0:
            slot = self._slot[version, at]
            turns, slots = _at(self._turns, slot, 6), np.column_stack([slot, self._beside[slot]])
            slots[slot < 0] = -1
            x = _numbers_at(self._g, slot)
            return Visit(self.wire, version, x, ids, turns, came, self._g, slots)
        r, d = len(at), self._g.shape[1]
        total, count = np.zeros((r, d)), np.zeros((r, 1))
        for e in range(self.wire.epochs if version != VISITS else 0):
            slot = self._slot[e, at]
            x = _numbers_at(self._g, slot)
            x = np.abs(x) if version == SIZE else x
            there = np.isfinite(x)
            np.add(total, x, out=total, where=there)
            count = count + there
        with np.errstate(invalid="ignore", divide="ignore"):
            x = total / count
        none = np.full((r, 6), -1)
        return Visit(self.wire, version, x, ids, none, came, self._g, none[:, :3])


def spread_evenly(many: int, most: int) -> list[int]:
    """At most `most` of the numbers 0 to `many` - 1, evenly spread, the last one first."""
    if most < 1:
        return []
    chosen = np.linspace(many - 1, 0, min(many, most)).round().astype(int)
    return list(dict.fromkeys(chosen.tolist()))


def _numpy(x: Tensor) -> Ints:
    return x.detach().cpu().numpy().astype(np.int64)


def _numbers(x: Tensor) -> NDArray[np.floating]:
    """As numpy, in float32 where nothing is lost by it."""
    if not x.is_floating_point():
        return x.detach().cpu().double().numpy()
    if x.element_size() < 4:
        x = x.float()
    g: NDArray[np.floating] = x.detach().cpu().numpy()
    if g.dtype == np.float64:
        with np.errstate(over="ignore"):
            short = g.astype(np.float32)
        if np.array_equal(short.astype(np.float64), g, equal_nan=True):
            return short
    return g


def _bits(g: NDArray[np.floating]) -> Ints:
    kind = np.int32 if g.dtype == np.float32 else np.int64
    return np.ascontiguousarray(g).view(kind).astype(np.int64)


def _at(value: Ints, slot: Ints, width: int = 0) -> Ints:
    """The rows of `value` at `slot`, -1 where that is."""
    if not len(value):
        return np.full((len(slot), width) if width else len(slot), -1)
    there = slot >= 0
    return np.where(there[:, None] if width else there, value[slot], -1)


def _numbers_at(g: NDArray[np.floating], slot: Ints) -> Floats:
    if len(slot) and slot.min() >= 0:
        return g[slot].astype(np.float64)
    return np.where((slot >= 0)[:, None], g[slot], np.nan).astype(np.float64)


def _grid(x: Floats) -> float:
    """The step of the grid on which the numbers lie, 0 if there is none or they are too few."""
    values = np.unique(x)
    if len(values) < 4:
        return 0.0
    step = 1.0 if np.array_equal(values, values.round()) else float(np.diff(values).min())
    steps = values / step
    close = np.abs(steps - steps.round()).max() < 1e-3
    return step if close and np.abs(steps).max() < 2**31 else 0.0


def _say_nothing(v: Visit, k: Index, values: Signs) -> Signs:
    """Nothing of any row: 0 (r, k)."""
    return np.zeros_like(values)


@dataclass(frozen=True)
class Family:
    """Functions of one form.

    Attributes:
        name: what they look at.
        index: of the rows looked at, which functions there are, (K, w): entries, bits, cuts.
        of: the values (r, k) int8 of some functions (k, w) of rows: 1, 0 or -1.
        on: the versions it is asked for beside single epochs.
        single: whether it is asked for single epochs.
        voted: whether, then, it is asked for what most visits say.
        value: of functions that cut a real value, that value (r,).
        id_part: of functions and their values the part that ids say without a message, (r, k) int8:
            above 0 for 1, below for 0, the surer the larger; 0 of nothing.
    """

    name: str
    index: Callable[[Visit], Index]
    of: Callable[[Visit, Index], Signs]
    on: tuple[int, ...] = ()
    single: bool = True
    voted: bool = True
    value: Callable[[Visit, Index], Floats] | None = None
    id_part: Callable[[Visit, Index, Signs], Signs] = _say_nothing


def _sets(size: int, most: int) -> Callable[[Visit], Index]:
    """Sets of so many of the first `most` entries."""

    def index(v: Visit) -> Index:
        entries = v.wire.entries[:most]
        return entries[_chosen(len(entries), size)]

    return index


@lru_cache(maxsize=16)
def _chosen(many: int, size: int) -> Ints:
    """Every `size` of so many places."""
    return np.array(list(combinations(range(many), size)), np.int64).reshape(-1, size)


def _with(more: Callable[[Visit], int], most: int = ENTRIES) -> Callable[[Visit], Index]:
    """Each of the first `most` entries with each of the numbers from 0 to `more`."""

    def index(v: Visit) -> Index:
        entry, of = np.meshgrid(v.wire.entries[:most], np.arange(more(v)), indexing="ij")
        return np.stack([entry.ravel(), of.ravel()], axis=1)

    return index


def _products(v: Visit, k: Ints) -> Signs:
    """Of a product of signs."""
    out = v.sign[:, k[:, 0]]
    for column in k.T[1:]:
        out = out * v.sign[:, column]
    return _of_sign(out)


def _place(v: Visit, k: Ints) -> Signs:
    return v.arranged[:, k[:, 0]]


_OF_PLACE = np.repeat([1, 0, 1, 0, 1, 0], [4, 3, 20, 1, 3, 5])
"""Which of :attr:`Visit.arranged` are of the place in the batch."""


def _foretell_place(v: Visit, k: Ints, values: Signs) -> Signs:
    """Places of rows that came in the order of their ids; of others those of the nearest ids."""
    said, order = encode_votes(values), np.argsort(v.ids, kind="stable")
    near = np.empty_like(said)
    near[order] = sum_near(torch.from_numpy(said[order]).int())[0].numpy()
    return np.where(v.wire.by_id[v.version][_OF_PLACE[k[:, 0]]], said, near)


def _largest(v: Visit, k: Ints) -> Signs:
    """Whether an entry is the largest, the smallest, or the largest or smallest in size."""
    x = np.nan_to_num(v.x, nan=0.0)
    size = np.abs(x)
    ends = np.stack([x.argmax(1), x.argmin(1), size.argmax(1), size.argmin(1)], axis=1)
    came = ~np.isnan(v.x[:, :1]) | (v.turns[:, :1] >= 0)
    return _asked(came, ends[:, k[:, 1]] == k[:, 0])


def _low_bits(v: Visit, k: Ints) -> Signs:
    bit = (v.bits[:, k[:, 0]] >> v.wire.shifts[k[:, 1]]) & 1
    return _asked(~np.isnan(v.x[:, k[:, 0]]), bit)


def _residues(v: Visit) -> Index:
    on = [j for j in v.wire.entries if v.wire.grid[j] > 0]
    of = [(j, m, r) for j in on for m in MODULI for r in range(m)]
    return np.array(of, np.int64).reshape(-1, 3)


def _residue(v: Visit, k: Ints) -> Signs:
    """Whether a number, in steps of its grid, has a remainder."""
    x = v.x[:, k[:, 0]] / v.wire.grid[k[:, 0]]
    there = np.isfinite(x)
    steps = np.where(there, x, 0).round().astype(np.int64)
    return _asked(there, steps % k[:, 1] == k[:, 2])


def _each(k: Ints, rows: int, of: Sequence[Callable[[Ints], Signs]]) -> Signs:
    """Values (r, k) of functions that name an entry and which of these is asked of it."""
    out = np.empty((rows, len(k)), np.int8)
    for i, asked in enumerate(of):
        at = k[:, 1] == i
        out[:, at] = asked(k[at, 0])
    return out


def _zeros(v: Visit, k: Ints) -> Signs:
    """Whether an entry is 0, whether a 0 has its sign bit set, and whether it is no number."""
    x, came = v.x, v.turns[:, :1] >= 0
    return _each(k, len(x), (
        lambda j: _asked(came, x[:, j] == 0),
        lambda j: _asked(x[:, j] == 0, v.bits[:, j] < 0),
        lambda j: _asked(came, ~np.isfinite(x[:, j])),
    ))  # fmt: skip


def _neighbours(v: Visit, k: Ints) -> Signs:
    """Signs of the entry before and after, of their products with the own, and which is larger."""
    x, (b, a) = v.x, v.beside

    def read(of: Callable[[Floats, Floats], Any], beside: Floats) -> Callable[[Ints], Signs]:
        return lambda j: _of_sign(compute_signs(of(beside[:, j], x[:, j])))

    ways = (lambda y, _: y, lambda y, z: compute_signs(y) * compute_signs(z), lambda y, z: z - y)
    return _each(k, len(x), [read(of, beside) for of in ways for beside in (b, a)])


def _cuts(v: Visit) -> Index:
    """Each real value, cut at quantiles over the rows looked at."""
    x = np.where(np.isfinite(v.reals), v.reals, np.nan)
    ordered, many = np.sort(x, axis=0), np.isfinite(x).sum(0)  # what is missing comes last
    out = []
    for j in np.flatnonzero(many):
        at = [int(c * (many[j] - 1)) for c in CUTS]
        out += [(j, c) for c in dict.fromkeys(ordered[at, j].tolist())]
    return np.array(out, np.float64).reshape(-1, 2)


def _cut(v: Visit, k: Index) -> Signs:
    x = v.reals[:, k[:, 0].astype(int)]
    return _asked(~np.isnan(x), x > k[:, 1])


def _marks(v: Visit) -> Index:
    """Real values some of whose rows stand apart: place, median and how far off a mark is."""
    out = []
    for j, column in enumerate(v.reals.T):
        x = column[np.isfinite(column)]
        if not len(x):
            continue
        middle = np.median(x)
        far = OUTLYING * 1.4826 * np.median(np.abs(x - middle))
        if 0 < (np.abs(x - middle) > far).mean() < RARE:
            out += [(j, middle, far, 0), (j, middle, far, 1)]
    return np.array(out, np.float64).reshape(-1, 4)


def _mark(v: Visit, k: Index) -> Signs:
    """Whether a row is marked, and the sign of its mark, which other rows do not have."""
    off = v.reals[:, k[:, 0].astype(int)] - k[:, 1]
    there, marked = ~np.isnan(off), np.abs(off) > k[:, 2]
    return np.where(k[:, 3] > 0, _asked(marked, off > 0), _asked(there, marked)).astype(np.int8)


FAMILIES = (
    Family("outlying value", _marks, _mark, (MEAN, SIZE), single=False),
    Family("sign", _sets(1, ENTRIES), _products, (MEAN,)),
    Family("value above", _cuts, _cut, (MEAN, SIZE), voted=False,
           value=lambda v, k: v.reals[:, int(k[0])]),
    Family("place", lambda v: np.arange(v.arranged.shape[1]).reshape(-1, 1),
           _place, id_part=_foretell_place),
    Family("visits", _cuts, _cut, (VISITS,), single=False,
           value=lambda v, k: v.reals[:, int(k[0])]),
    Family("zero", _with(lambda v: 3), _zeros),
    Family("product of two signs", _sets(2, PAIRED), _products, (MEAN,)),
    Family("larger of two", _sets(2, PAIRED),
           lambda v, k: _of_sign(compute_signs(v.x[:, k[:, 0]] - v.x[:, k[:, 1]])), (MEAN, SIZE)),
    Family("largest of all", _with(lambda v: 4), _largest, (MEAN, SIZE)),
    Family("sign xor public bit", _with(lambda v: v.public.shape[1]),
           lambda v, k: _of_sign(v.sign[:, k[:, 0]] * v.public[:, k[:, 1]]), (MEAN,),
           voted=False, id_part=lambda v, k, _: v.public[:, k[:, 1]]),
    Family("low bit", _with(lambda v: len(v.wire.shifts)), _low_bits),
    Family("remainder", _residues, _residue),
    Family("neighbour", _with(lambda v: 6, NEAR), _neighbours),
    Family("product of three signs", _sets(3, TRIPLED), _products, (MEAN,)),
)  # fmt: skip
"""All that are tried, the simplest first."""


def most_visits(messages: Messages, at: Ints, family: Family, index: Index) -> Signs:
    """What functions (k, w) say of most visits of the rows at these places; -1 where half do."""
    votes = np.zeros((len(at), len(index)), np.int16)
    for e in messages.folded:
        votes += encode_votes(family.of(messages.visit(at, e), index))
    return decide_votes(votes)


def encode_votes(values: Signs) -> Signs:
    """1, -1 and 0 for the values 1, 0 and -1."""
    return (values == 1).view(np.int8) - (values == 0).view(np.int8)


def decide_votes(votes: NDArray[np.int16]) -> Signs:
    """The values that sums of :func:`encode_votes` over visits stand for."""
    return _of_sign(np.sign(votes))


def find_beyond(
    p: Floats, values: Signs, id_part: Signs, mine: NDArray[np.bool_], levels: Floats
) -> NDArray[np.bool_]:
    """Which functions (k,) tell known rows of a class from others beyond what ids say of them.

    Of a function v as much is explained by the part a that ids say as a foretells over all rows:
    the gap of a, times the slope of v on a. What is left of its gap beside that is tested.

    Args:
        p: (k,) chance of each; infinite ones stay.
        values, id_part: (r, k) of the functions and of that part, known rows before others.
        mine: (q,) which of the known rows are of the class.
        levels: (k,) of the tests.
    """
    beyond = np.isfinite(p)
    for k in np.flatnonzero(beyond & (id_part != 0).any(0)):
        v, a = encode_votes(values[:, k]).astype(float), id_part[:, k].astype(float)
        usual = (v * a).sum() / max((a[v != 0] ** 2).sum(), 1)
        v, a = v[: len(mine)], a[: len(mine)]
        ones, others = mine & (v != 0), ~mine & (v != 0)
        gap = v[ones].mean() - v[others].mean() - usual * (a[ones].mean() - a[others].mean())
        counts, share = (int(ones.sum()), int(others.sum())), float((v[v != 0] > 0).mean())
        beyond[k] = compute_gap_chance(abs(float(gap)) / 2, *counts, share) <= levels[k]
    return beyond


APART = 2.0
"""How many times farther off the median than any other row a marked one is, for one bit to do."""


def find_mark(messages: Messages) -> Floats | None:
    """Signs (n,) of the mark that a gap parts from all other rows, 0 of these; None without one.

    Of several one that has both signs, then the one with the largest gap.
    """
    at, found, most = np.arange(len(messages.rows)), None, (False, APART)
    for version in (MEAN, SIZE):
        visit = messages.visit(at, version)
        for j, middle, far, of_sign in FAMILIES[0].index(visit):
            off = np.nan_to_num(visit.reals[:, int(j)] - middle)
            size, marked = np.abs(off), np.abs(off) > far
            apart = size[marked].min() / max(size[~marked].max(), 1e-300)
            both = len(np.unique(off[marked] > 0)) == 2
            is_mark = of_sign and far > 0 and marked.sum() > 1 and apart > APART
            if is_mark and (both, apart) > most:
                found, most = np.where(marked, np.sign(off), 0.0), (both, apart)
    return found
