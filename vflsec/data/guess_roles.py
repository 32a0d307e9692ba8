"""What tables say by themselves about the roles of their columns, for `vflsec init`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from vflsec.data.id_spelling import MATCHES, find_respelled, respell
from vflsec.data.read_table import Frame, as_texts, read_numbers

_IDS = re.compile(
    r"(?i:(^|[_\s.-])(id|uuid|guid|key|index)$|^(row|record)_?(no|nr|number)$)|(?<=[a-z])(Id|ID)$"
)
_NUMBER = r"^[+-]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][+-]?[0-9]+)?$"
_SPLITS = ("split", "fold", "partition", "set")
_SETS = {"train", "validation", "valid", "val", "test"}
_FEW = 50
_PERSONS = 20  # from so many values on, rows of one value may be those of one person


def find_split(frame: Frame, labels: Sequence[str]) -> str:
    """The column that says which rows train and which test; empty if there is none."""
    for name, array in frame.columns.items():
        if name not in labels and name.lower() in _SPLITS:
            values = {str(v).lower() for v in array.to_pylist()}
            if values <= _SETS and len(values) > 1:
                return name
    return ""


def find_id(frames: Sequence[Frame], labels: Sequence[str]) -> str:
    """The column that links the rows; empty if none is sure.

    It is in every table, has unique values, and is called like an id; with several
    tables a single column that they share may have any name.
    """
    first, *others = frames
    shared = [c for c in first.columns if c not in labels and all(c in f.columns for f in others)]
    unique = [c for c in shared if all(_unique(f, c) for f in frames)]
    named = [c for c in unique if _IDS.search(c)]
    if named:
        return named[0]
    return unique[0] if others and len(unique) == 1 else ""


def match_ids(
    frames: Mapping[str, Frame], labels: Sequence[str]
) -> tuple[dict[str, str], Sequence[str]]:
    """By party the column, different in every row, whose values match those of the other tables.

    Only a suggestion: two row counters match as well as two ids do. Empty if nothing matches.

    Returns:
        the columns; and in what their values differ and would match, see
        :data:`vflsec.data.id_spelling.MATCHES`, empty if they match as they are.
    """
    values = {
        p: {c: pd.Index(as_texts(f.columns[c]).to_pylist()) for c in f.columns if _unique(f, c)}
        for p, f in frames.items()
    }
    found = _match(values, labels)
    if found:
        return found, ()
    found = _match({p: {c: respell(v, [*MATCHES]) for c, v in of.items()}
                    for p, of in values.items()}, labels)  # fmt: skip
    if not found:
        return {}, ()
    pairs = find_respelled({p: values[p][c] for p, c in found.items()}, list(found))
    ways = {name for pair in pairs if pair.can_match for name in pair.how}
    return found, [name for name in MATCHES if name in ways]


def _match(values: Mapping[str, Mapping[str, pd.Index]], labels: Sequence[str]) -> dict[str, str]:
    sets = {p: {c: set(v) for c, v in of.items()} for p, of in values.items()}
    first, *others = sets
    best: tuple[int, dict[str, str]] = (0, {})
    for column, own in sets[first].items():
        if column in labels:
            continue
        chosen, shared = {first: column}, len(own)
        for p in others:
            hits = {c: len(own & v) for c, v in sets[p].items()}
            match = max(hits, key=lambda c: (hits[c], bool(_IDS.search(c))), default="")
            if not match or not hits[match]:
                break
            chosen[p], shared = match, min(shared, hits[match])
        else:
            if shared + bool(_IDS.search(column)) > best[0]:
                best = shared + bool(_IDS.search(column)), chosen
    return best[1]


def find_unique(frame: Frame, labels: Sequence[str]) -> str:
    """The column that may be an id: different in every row, and called so if one is; or ''."""
    unique = [c for c in frame.columns if c not in labels and _unique(frame, c)]
    return next(filter(_IDS.search, unique), next(iter(unique), ""))


def find_ids(frames: Mapping[str, Frame], labels: Sequence[str]) -> dict[str, str]:
    """:func:`match_ids` where they cannot be row counters; else empty.

    Every value of each is text that is no number, and half of the smallest table is in all others.
    """
    found, ways = match_ids(frames, labels)
    values = [set(as_texts(frames[p].columns[c]).to_pylist()) for p, c in found.items()]
    if not values or ways or any(re.fullmatch(r"[\d\s.,+-]*", str(v)) for of in values for v in of):
        return {}
    shared = set.intersection(*values)
    return found if 2 * len(shared) >= min(map(len, values)) else {}


def _unique(frame: Frame, name: str) -> bool:
    found = as_texts(frame.columns[name])
    distinct = pc.count_distinct(found, mode="all").as_py()
    if found.null_count or len(found) < 2 or distinct < len(found):
        return False
    numbers = pc.all(pc.match_substring_regex(found, _NUMBER)).as_py()
    measured = pc.any(pc.match_substring_regex(found, "[.,eE]")).as_py()  # and no ids
    return not (numbers and measured)


def describe_nearest_id(
    frames: Mapping[str, Frame], labels: Sequence[str], option: Callable[[str, Any], str]
) -> str:
    """Which column would be the id but for some rows, and which these are, in a sentence or ''.

    `option` writes what the user would add.

    In one table each value may come in many rows, if those of another are unique and the same.
    """
    first, *others = frames.values()
    for name in first.columns:
        if name in labels or not all(name in f.columns for f in others):
            continue
        counts = [
            Counter(v for v in as_texts(f.columns[name]).to_pylist() if v is not None)
            for f in frames.values()
        ]
        linked = 2 * len(set.intersection(*map(set, counts))) >= max(1, *map(len, counts))
        unique = linked and any(_unique(f, name) for f in frames.values())
        if not unique and any(2 * len(c) < f.rows for c, f in zip(counts, frames.values())):
            continue
        faults, remedies = [], []
        for frame, count in zip(frames.values(), counts, strict=True):
            value, most = count.most_common(1)[0] if count else ("", 0)
            if most > 1:
                faults.append(f"{frame.path} has {value!r} in {most} rows")
                equal, mean = option("duplicates", "first"), {"COLUMN": "mean"}
                remedies.append(
                    f"add {option('id', name)}, with {equal} for equal rows, else "
                    f"{option('aggregate', mean)}"
                )
            elif count.total() < frame.rows:
                faults.append(f"{frame.path} has none in {frame.rows - count.total()} rows")
                remedies.append("delete the rows without one")
        if not faults:
            return ""
        do = ", or ".join(dict.fromkeys(remedies))
        return f" {name!r} is nearly that, but {', '.join(faults)}: correct these, or {do}."
    return ""


def find_label_copies(frame: Frame, label: str, roles: Sequence[str]) -> list[str]:
    """Columns that give the label away by themselves: another form of it, so no feature.

    Every value goes with one label only, although there are few values and many rows with a label.
    """
    y = as_texts(frame.columns[label]).to_pandas().dropna()
    classes, out = y.nunique(), []
    most = min(_FEW, len(y) // 10, max(_PERSONS, 2 * classes))
    for name, array in frame.columns.items():
        if name == label or name in roles or classes < 2 or _continuous(array):
            continue
        values = as_texts(array).to_pandas()[y.index]
        if 2 <= values.nunique(dropna=False) <= most and (
            y.groupby(values, dropna=False).nunique().max() == 1
        ):
            out.append(name)
    return out


def _continuous(array: pa.Array) -> bool:
    if pa.types.is_temporal(array.type):
        return True
    return pa.types.is_floating(array.type) and any(x % 1 for x in read_numbers(array).values)
