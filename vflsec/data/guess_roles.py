"""What tables say by themselves about the roles of their columns, for `vflsec init`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from vflsec.data.reading import Frame, numbers, texts

__all__ = ["id_column", "label_shares", "label_twins", "split_column"]

_IDS = re.compile(r"(^|[_\s.-])(id|uuid|guid|key|index)$|^(row|record)_?(no|nr|number)$", re.I)
_SPLITS = ("split", "fold", "partition", "set")
_SETS = {"train", "validation", "valid", "val", "test"}
_FEW = 50


def split_column(frame: Frame, label: str) -> str:
    """The column that says which rows train and which test; empty if there is none."""
    for name, array in frame.columns.items():
        if name != label and name.lower() in _SPLITS:
            values = {str(v).lower() for v in array.to_pylist()}
            if values <= _SETS and len(values) > 1:
                return name
    return ""


def label_shares(frame: Frame, label: str) -> tuple[int, float]:
    """Number of classes, and the share of the largest."""
    counts = Counter(str(v) for v in frame.columns[label].to_pylist())
    return len(counts), max(counts.values(), default=0) / max(sum(counts.values()), 1)


def id_column(frames: Sequence[Frame], label: str) -> str:
    """The column that links the rows; empty if none is sure.

    It is in every table, has another value in every row, and is called like an id; with several
    tables a single column that they share may have any name.
    """
    first, *others = frames
    shared = [c for c in first.columns if c != label and all(c in f.columns for f in others)]
    unique = [c for c in shared if all(_unique(f, c) for f in frames)]
    named = [c for c in unique if _IDS.search(c)]
    if named:
        return named[0]
    return unique[0] if others and len(unique) == 1 else ""


def _unique(frame: Frame, name: str) -> bool:
    found = texts(frame.columns[name])
    values = found.to_pylist()
    return found.null_count == 0 and len(values) > 1 and len(set(values)) == len(values)


def label_twins(frame: Frame, label: str, roles: Sequence[str]) -> list[str]:
    """Columns that give the label away by themselves: another form of it, so no feature.

    Every value goes with one label only, although there are few values and a label has many rows.
    """
    given = texts(frame.columns[label]).to_pylist()
    classes = set(given) - {None}
    out = []
    for name, array in frame.columns.items():
        if name == label or name in roles or _continuous(array):
            continue
        of: dict[str | None, set[str]] = {}
        for value, y in zip(texts(array).to_pylist(), given, strict=True):
            if y is not None:
                of.setdefault(value, set()).add(y)
            if len(of) > _FEW:
                break
        few = 2 <= len(of) <= min(_FEW, max(len(given) // 10, 2))
        if few and len(classes) > 1 and all(len(ys) == 1 for ys in of.values()):
            out.append(name)
    return out


def _continuous(array: pa.Array) -> bool:
    return pa.types.is_floating(array.type) and any(x % 1 for x in numbers(array)[0])
