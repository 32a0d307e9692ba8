"""Columns that name the people whom rows are of, found by what stays over the rows of one person.

Rows of one person on both sides of a split let the model remember, and then all figures are too
high. Where each person has one label :func:`vflsec.data.label_leakage.find_groups` finds them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vflsec.core.rng import numpy_generator
from vflsec.data.label_leakage import is_sorted, list_labelled
from vflsec.data.source import Source

_LEAST = 10  # pairs of rows, and changes that chance makes
_CHANGES = 0.1  # of the changes that chance makes
_SURE = 3.0  # standard errors below chance
_ROWS_OF_ONE, _MOST = 10, 40  # rows of a person on average, at most; columns that are tried
Floats = NDArray[np.float64]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


def find_people(source: Source) -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
    """{(party, label): {column: two others}} of columns that name people, whose label may change.

    Each value stands in few rows. Over these two other columns hardly change, neither of which goes
    with the other or follows the order of the values, and the label changes less than by chance. A
    person has a sex and a year of birth; a city has a region, and the region a country. Of large
    tables the first rows are looked at. Nothing if a group is named already.
    """
    out: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for key, names, x, y in list_labelled(source):
        pairs = {j: of for j in range(len(names)) if len((of := _pair_rows(x[:, j]))[0]) >= _LEAST}
        may = [j for j in pairs if _may_be_people(x[:, j], y, pairs[j])][:_MOST]
        table = _Table(x, pairs)
        for j in may:
            if found := table.find_kept(j):
                out.setdefault(key, {})[names[j]] = (names[found[0]], names[found[1]])
    return out


def _pair_rows(x: Floats) -> Pairs:
    """Rows of one value in an order that is drawn, for tables are often sorted, each with the next
    one.
    """
    order = numpy_generator(0, "pairs of rows").permutation(len(x))
    order = order[np.argsort(x[order], kind="stable")]
    same = x[order][1:] == x[order][:-1]  # of missing values none is
    return order[:-1][same], order[1:][same]


def _may_be_people(x: Floats, y: NDArray[np.int64], pairs: Pairs) -> bool:
    """Whether values have few rows each, in which the label surely changes less than by chance."""
    there = int((~np.isnan(x)).sum())
    if there - len(pairs[0]) < max(2 * _LEAST, there / _ROWS_OF_ONE):
        return False
    classes = y[:, None].astype(np.float64)
    chance = float(len(pairs[0]) * _find_mixed(classes)[0])
    return bool((y[pairs[0]] != y[pairs[1]]).sum() < chance - _SURE * np.sqrt(chance))


def _find_mixed(x: Floats) -> Floats:
    """(d,) how often two rows differ in each column of (m, d), where both have a value."""
    counts = [np.unique(c[~np.isnan(c)], return_counts=True)[1] for c in x.T]
    return np.array([1 - float((k**2).sum()) / max(1, int(k.sum())) ** 2 for k in counts])


@dataclass(frozen=True)
class _Table:
    """Columns (m, d), and the pairs of rows of those whose values repeat."""

    x: Floats
    pairs: dict[int, Pairs]

    @cached_property
    def mixed(self) -> Floats:
        """(d,) of :func:`_find_mixed`."""
        return _find_mixed(self.x)

    def find_kept(self, j: int) -> tuple[int, int] | None:
        """Two columns that go with column `j`, and not with each other nor with its order."""
        first = np.unique(self.x[:, j], return_index=True)[1]
        kept = [
            k for k in range(self.x.shape[1])
            if k != j and self._keeps(j, k) and not self._keeps(k, j)
            and not is_sorted(np.unique(self.x[first, k], return_inverse=True)[1])
        ]  # fmt: skip
        pairs = itertools.combinations(kept, 2)
        return next((p for p in pairs if not self._keeps(*p) and not self._keeps(*p[::-1])), None)

    def _keeps(self, j: int, k: int) -> bool:
        """Whether column `k` hardly changes over the rows of one value of column `j`."""
        if j not in self.pairs:
            return False
        a, b = (self.x[rows, k] for rows in self.pairs[j])
        there = ~(np.isnan(a) | np.isnan(b))
        chance = there.sum() * self.mixed[k]
        return bool(chance >= _LEAST and ((a != b) & there).sum() <= _CHANGES * chance)
