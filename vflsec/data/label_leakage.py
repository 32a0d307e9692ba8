"""What tells the label without any message: a column, the ids, the order of rows in a table.

What a party's own columns tell is no leak, so where one tells all, every attack of that party ends
with nothing gained and a gate on labels passes, whatever the messages say. Ids, which all parties
know, and the order in which a table was written are read by no attack at all. Nobody means to audit
that; a reader has to be told before training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vflsec.data.source import Source

TELLS = 0.99
_CELLS, _MOST, _LEAST = 4_000_000, 5000, 200  # numbers to look at in a table; rows of it
_RARE = 10  # a class of fewer rows is not looked at
_RUNS = 0.1  # of the runs that chance makes


def find_telling_columns(
    source: Source, groups: Mapping[tuple[str, str], Sequence[str]]
) -> dict[tuple[str, str], dict[str, float]]:
    """{(party, label): {column: AUC}} of columns whose AUC, the least over classes, is >= 0.99.

    The label is '' where a row has one. A quantity has no classes, and none is named. Of large
    tables every k-th row is looked at. Columns in `groups`, see :func:`find_groups`, are left out.
    """
    out: dict[tuple[str, str], dict[str, float]] = {}
    for label, y in source.label.split_classes(source.y, source.values):
        for party, data in source.parties.items():
            if data.values.ndim != 2 or not data.names:
                continue
            there = np.nonzero(y[data.rows] >= 0)[0]
            most = int(np.clip(_CELLS // len(data.names), _LEAST, _MOST))
            there = there[:: -(-len(there) // most) or 1]
            for j, name in enumerate(data.names):
                if name in groups.get((party, label), ()):
                    continue
                found = compute_column_auc(data.values[there, j], y[data.rows[there]])
                if found >= TELLS:
                    out.setdefault((party, label), {})[name] = found
    return out


def find_groups(source: Source) -> dict[tuple[str, str], list[str]]:
    """{(party, label): columns} whose values repeat, each with one label, in no order of the label.

    So do the rows of one person. Rows of a split that share such a value let the model remember. Of
    large tables the first rows are looked at. Nothing if a group is named already.
    """
    out: dict[tuple[str, str], list[str]] = {}
    for key, names, x, y in list_labelled(source):
        if found := [name for j, name in enumerate(names) if _groups(x[:, j], y)]:
            out[key] = found
    return out


def list_labelled(
    source: Source,
) -> Iterator[tuple[tuple[str, str], Sequence[str], NDArray[np.float64], NDArray[np.int64]]]:
    """(party, label), columns, values (m, d) and classes (m,) of rows that have a label; of large
    tables the first rows, and nothing where a group is named.
    """
    for label, y in source.label.split_classes(source.y, source.values):
        for party, data in source.parties.items():
            if source.group is not None or data.values.ndim != 2 or not data.names:
                continue
            there = np.nonzero(y[data.rows] >= 0)[0][: max(_LEAST, _CELLS // len(data.names))]
            yield (party, label), data.names, data.values[there], y[data.rows[there]]


def _groups(x: NDArray[np.float64], y: NDArray[np.int64]) -> bool:
    """Whether values repeat, each with one class, and sorted they do not sort the classes."""
    there = ~np.isnan(x)
    values, group = np.unique(x[there], return_inverse=True)
    if not 2 * _RARE <= len(values) <= len(group) / 2:
        return False
    y, of_value = y[there], np.empty(len(values), y.dtype)
    of_value[group] = y  # any of its rows: all are to be of one class
    if (y != of_value[group]).any():
        return False
    sizes = np.sort(np.bincount(of_value, minlength=2))
    return bool(sizes[-2] >= _RARE and not is_sorted(of_value))


def compute_column_auc(x: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """How well one column tells classes by itself: the AUC, the least over classes.

    Few values are ranked by their share of the class, as codes without an order; many by size, from
    either end, a missing value last. 0.5 if there is nothing to compare.

    Args:
        x: (m,) NaN = missing.
        y: (m,) class numbers.
    """
    values, group = np.unique(x, return_inverse=True)
    found = []
    for c in np.unique(y):
        mine = y == c
        if min(mine.sum(), (~mine).sum()) < _RARE:
            continue
        ones = np.bincount(group[mine], minlength=len(values)).astype(float)
        zeros = np.bincount(group[~mine], minlength=len(values)).astype(float)
        if len(values) <= len(x) // 10:
            order = np.argsort(ones / (ones + zeros))
            ones, zeros = ones[order], zeros[order]
        below = np.cumsum(zeros) - zeros
        auc = float((ones * (below + zeros / 2)).sum() / (ones.sum() * zeros.sum()))
        found.append(max(auc, 1 - auc))
    return min(found, default=0.5)


def find_telling_ids(source: Source) -> list[str]:
    """Labels ('' where a row has one) that go with the ids, sorted by their start or their end."""
    if not source.ids:
        return []
    text = np.array(source.ids, dtype=object)
    orders = [_by_size(text), np.argsort(np.array([t[::-1] for t in text]), kind="stable")]
    return [
        label for label, y in source.label.split_classes(source.y, source.values)
        if any(_follows(source, y, order) for order in orders)
    ]  # fmt: skip


def find_telling_rows(source: Source) -> list[tuple[str, str]]:
    """(party, label) where rows of one class follow each other in the table of a passive party."""
    return [
        (party, label) for label, y in source.label.split_classes(source.y, source.values)
        for party, data in source.parties.items()
        if party != source.active and _follows(source, y, data.rows)
    ]  # fmt: skip


def _by_size(ids: NDArray[np.object_]) -> NDArray[np.int64]:
    """Ids in their order, as numbers where all are whole ones."""
    if all(t.isdecimal() for t in ids):
        return np.array(sorted(range(len(ids)), key=lambda i: int(ids[i])), dtype=np.int64)
    return np.argsort(ids.astype(str), kind="stable")


def _follows(source: Source, y: NDArray[np.int64], order: NDArray[np.int64]) -> bool:
    """Whether rows `order` are sorted; of a group its first counts, for what follows a row of the
    same person does so whatever the order tells.
    """
    if source.group is not None:
        order = order[np.sort(np.unique(source.group[order], return_index=True)[1])]
    y = y[order]
    y = y[y >= 0]
    return np.sort(np.bincount(y, minlength=2))[-2] >= _RARE and is_sorted(y)


def is_sorted(y: NDArray[np.int64]) -> bool:
    """Whether rows in this order have a tenth of the runs of one class that chance would make."""
    found, chance = count_runs(y)
    return found <= _RUNS * chance


def count_runs(y: NDArray[np.int64]) -> tuple[int, float]:
    """How often rows of one class follow each other without a break, and what chance would make.

    Wald and Wolfowitz, "On a test whether two samples are from the same population", Annals of
    Mathematical Statistics 11 (1940), for any number of classes.

    Args:
        y: (n,) class numbers in the order of the rows.
    """
    shares = np.bincount(y) / len(y)
    return 1 + int((y[1:] != y[:-1]).sum()), float(1 + len(y) * (1 - (shares**2).sum()))
