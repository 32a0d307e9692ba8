"""Labels of columns: classes (in order, merged, left out, cut), a quantity, several at once."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vflsec.data.read_table import Frame, as_texts
from vflsec.errors import DataError, format_list, write_setting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Read = tuple[Ints, tuple[str, ...], Floats | None]
"""Classes (n,) or 0, -1 where a row has no label; names of the classes; values (n,) or (n, L) where
labels are no classes."""

MOST_CLASSES = 1_000

MOST_FRACTIONAL_CLASSES = 20
"""With more distinct labels that are no whole numbers, the label looks like a quantity."""


@dataclass(frozen=True)
class Relabel:
    """How labels are changed before they are classes.

    Attributes:
        merge: new class by name, with the classes that become it.
        drop: classes whose rows count as rows without a label.
        edges: cut points e_1 < e_2 < ... of a quantity: classes ``< e_1``, ``e_1 to < e_2``, ...,
            ``>= e_k``.
    """

    merge: Mapping[str, Sequence[str]] = field(default_factory=dict)
    drop: Sequence[str] = ()
    edges: Sequence[float] = ()

    def __bool__(self) -> bool:
        return bool(self.merge or self.drop or self.edges)


def read_labels(
    frame: Frame, name: str, change: Relabel | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class index of each row (-1 = no label) and the class names in index order.

    Classes are ordered as numbers if they are whole numbers, else alphabetically (cut quantities by
    size); with two classes the second one counts as positive.

    Raises:
        DataError: no label, one class, more than 1000 classes, a quantity instead of classes, or
            a change that names a class that is not there.
    """
    change = change or Relabel()
    array = frame.column(name, "label")
    if array.null_count == len(array):
        raise _too_few(frame, name, [])
    if change.edges:
        return _cut(frame, name, change)
    coded = as_texts(array).dictionary_encode()
    found: list[str] = coded.dictionary.to_pylist()
    if not (change.merge or change.drop):
        _check_kind(frame, name, found)
    become = _renamed(frame, name, found, change)
    left = list(dict.fromkeys(v for v in become.values() if v is not None))
    if len(left) < 2:
        raise _too_few(frame, name, left)
    if len(left) > MOST_CLASSES:
        got = f"{len(left)}, such as {format_list(left[:3])}"
        rule = f"have at most {MOST_CLASSES} classes"
        raise frame.refuse_column("label", name, rule, got, "Merge classes.")
    names = in_order(left)
    place: dict[str | None, int] = {n: i for i, n in enumerate(names)}
    lookup = np.array([place.get(become[n], -1) for n in found] + [-1], dtype=np.int64)
    return lookup[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], tuple(names)


def _too_few(frame: Frame, name: str, left: Sequence[str]) -> DataError:
    got = f"only {left[0]!r}" if left else "none"
    return frame.refuse_column("label", name, "have at least two classes", got)


def _read_quantity(frame: Frame, names: Sequence[str], change: Relabel) -> Read:
    """The label as a number."""
    (name,) = names
    frame.column(name, "label")
    values = _read_finite(frame, name, 'task = "regression"', "Correct it, or leave it empty.")
    there = values[~np.isnan(values)]
    if not len(there) or there.min() == there.max():
        found = f"only {there[0]:g}" if len(there) else "none"
        raise frame.refuse_column("label", name, "have different values", found)
    return np.where(np.isnan(values), -1, 0), (name,), values


def _read_finite(frame: Frame, name: str, why: str, remedy: str) -> Floats:
    """The numbers of a label column, (n,), NaN where a row has none; others are refused."""
    values, bad = frame.numbers(name)
    wrong = [*bad.tolist(), *np.flatnonzero(np.isinf(values)).tolist()]
    if wrong:
        found = f"{frame.columns[name][wrong[0]].as_py()!r} in {frame.row(wrong[0])}"
        raise frame.refuse_column("label", name, f"hold finite numbers ({why})", found, remedy)
    return values


def _read_several(frame: Frame, names: Sequence[str], change: Relabel) -> Read:
    """Several yes/no labels of each row: 0 or 1 as two classes are read. A row has all or none."""
    out = np.full((frame.rows, len(names)), np.nan)
    for k, name in enumerate(names):
        values = as_texts(frame.column(name, "label")).unique().drop_null().to_pylist()
        if len(values) > 2:
            got = f"{len(values)}, such as {format_list(in_order(values)[:3])}"
            remedy = "Audit this label alone."
            raise frame.refuse_column("label", name, "have two classes beside others", got, remedy)
        y, _ = read_labels(frame, name)
        out[y >= 0, k] = y[y >= 0]
    lost = np.isnan(out)
    some = np.flatnonzero(lost.any(axis=1) & ~lost.all(axis=1))
    if len(some):
        row = int(some[0])
        name = names[int(lost[row].argmax())]
        got = f"none in {frame.row(row)} ({len(some)} such rows)"
        raise frame.refuse_column("label", name, "have a value where other labels have one", got)
    return np.where(lost[:, 0], -1, 0), (" and ".join(names),), out


def _read_counts(frame: Frame, names: Sequence[str], change: Relabel) -> Read:
    y, names, values = _read_quantity(frame, names, change)
    assert values is not None
    odd = np.flatnonzero((y == 0) & ((values < 0) | (values != np.round(values))))
    if len(odd):
        got = f"{values[odd[0]]:g} in {frame.row(int(odd[0]))}"
        name, rule = names[0], 'hold whole numbers from 0 (task = "counts")'
        raise frame.refuse_column(
            "label", name, rule, got, 'Correct it, or say task = "regression".'
        )
    return y, names, values


READERS: Mapping[str, Callable[[Frame, Sequence[str], Relabel], Read]] = {
    "classification": lambda frame, names, change: (*read_labels(frame, names[0], change), None),
    "regression": _read_quantity,
    "multilabel": _read_several,
    "counts": _read_counts,
}
"""How the label columns of a table are read, by the name of the kind of label."""


def is_quantity(frame: Frame, name: str) -> bool:
    """Whether a column holds so many different numbers that they can be no classes."""
    array = as_texts(frame.columns[name])
    distinct = [v for v in array.unique().to_pylist() if v is not None]
    if len(distinct) <= MOST_FRACTIONAL_CLASSES:
        return False
    found = frame.read_numbers(array)
    if found.ambiguous:
        frame.numbers(name)  # says so
    values = found.values
    there = values[~np.isnan(values)]
    if len(found.bad):
        return False
    return bool((there != np.round(there)).any()) or len(distinct) > MOST_CLASSES


def _check_kind(frame: Frame, name: str, found: Sequence[str]) -> None:
    """Refuse a quantity, and numbers that are not finite."""
    read = frame.read_numbers(pa.array(found))
    values = read.values
    if read.ambiguous and len(found) > MOST_FRACTIONAL_CLASSES:
        frame.numbers(name)  # says so
    if len(read.bad):
        return
    if np.isinf(values).any():
        got = f"{found[int(np.isinf(values).argmax())][:40]!r}"
        raise frame.refuse_column("label", name, "hold finite numbers or names", got)
    if len(found) > MOST_FRACTIONAL_CLASSES and (values != np.round(values)).any():
        middle = float(np.median(values))
        raise frame.refuse_column(
            "label", name, "hold classes", f"{len(found)} numbers such as {format_list(found[:3])}",
            f"Say {write_setting('task', 'regression', '--regression')}, or cut it: "
            f"{write_setting(f'label_edges = [{middle:g}]', None, '--bins 2')}.",
        )  # fmt: skip


def _renamed(
    frame: Frame, name: str, found: Sequence[str], change: Relabel
) -> dict[str, str | None]:
    """What each label becomes; None = no label."""
    out: dict[str, str | None] = {v: v for v in found}
    named = [(v, new) for new, olds in change.merge.items() for v in olds]
    named += [(v, "") for v in change.drop]
    for old, new in named:
        if old not in out:
            key = "merge_classes" if new else "drop_classes"
            raise frame.unknown(key, old, found)
        if [v for v, _ in named].count(old) > 1:
            raise frame.refuse("classes", "be merged or dropped once", f"{old!r} twice")
        out[old] = new or None
    return out


def _cut(frame: Frame, name: str, change: Relabel) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    edges = [float(e) for e in change.edges]
    if sorted(set(edges)) != edges:
        raise frame.refuse("label_edges", "rise", repr(list(change.edges)))
    if change.merge or change.drop:
        raise frame.refuse("label_edges", "stand without merge_classes and drop_classes", "both")
    values = _read_finite(frame, name, "label_edges cut it", "Leave `label_edges` out.")
    shown = [f"{e:g}" for e in edges]
    names = [f"< {shown[0]}", *(f"{a} to < {b}" for a, b in itertools.pairwise(shown))]
    names.append(f">= {shown[-1]}")
    y = np.array([-1 if np.isnan(v) else bisect.bisect_right(edges, v) for v in values])
    for i, n in enumerate(names):
        if not (y == i).any():
            there = values[~np.isnan(values)]
            got = f"none in {n!r} of {there.min():g} to {there.max():g}"
            raise frame.refuse("label_edges", "leave rows in every class", got)
    return y.astype(np.int64), tuple(names)


def in_order(names: Sequence[str]) -> list[str]:
    """Names in numeric order if all are whole numbers, else in alphabetic order."""
    try:
        return sorted(names, key=lambda n: (int(n), n))
    except ValueError:
        return sorted(names)
