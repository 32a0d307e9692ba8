"""What a registered data set gave, looked at before anything relies on it; it may be a plug-in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vflsec.data.source import PartyData, Source
from vflsec.errors import DataError


def check_source(found: Any, name: str) -> Source:
    """What the data set `name` loaded, if it is a sound Source.

    Raises:
        DataError: it is not, with what is wrong.
    """
    wrong = f"must return a Source, got {type(found).__name__}"
    if isinstance(found, Source):
        wrong = next(_faults(found), "")
    if wrong:
        raise DataError(f"data set {name}: its load {wrong}.")
    assert isinstance(found, Source)
    return found


def hash_content(source: Source) -> str:
    """A hash of all that a Source holds but its name, its facts and its digest."""
    whole = hashlib.sha256()
    arrays: list[tuple[str, Any]] = [
        (k, getattr(source, k)) for k in ("y", "values", "split", "group")
    ]
    ids = tuple(map(str, source.ids))
    plain: list[Any] = [source.active, source.class_names, source.labels, ids]
    if source.task:
        plain.append(source.task)
    for party, data in source.parties.items():
        arrays += [(f"{party}\x1fvalues", data.values), (f"{party}\x1frows", data.rows)]
        plain += [party, data.names, data.categories]
    whole.update(repr(plain).encode())
    for what, array in arrays:
        if array is not None:
            array = np.asarray(array)
            array = array.astype("U") if array.dtype == object else array
            whole.update(f"\x1f{what}\x1f{array.dtype}{array.shape}".encode())
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def _faults(source: Source) -> Iterator[str]:
    """What is wrong, the first of it first; what comes later relies on what came before."""
    for key in ("name", "active", "digest"):
        if not isinstance(getattr(source, key), str):
            yield f"must give {key} as text, got {_kind(getattr(source, key))}"
    many = source.class_names
    texts = isinstance(many, tuple | list) and all(isinstance(c, str) for c in many)
    if not many or not texts:
        yield f"must give class_names as a tuple of texts, got {many!r}"
    y = source.y
    if not _whole(y) or y.ndim != 1 or not len(y):
        yield f"must give y as whole numbers (N,), got {_kind(y)}"
    most = len(many) if source.values is None else 1
    if y.min() < -1 or y.max() >= most:
        yield f"must give y as 0 to {most - 1}, or -1, got {int(y.min())} to {int(y.max())}"
    yield from _beside(source)
    if not isinstance(source.parties, Mapping) or source.active not in source.parties:
        yield f"must give the active party, {source.active!r}, among parties"
    for party, data in source.parties.items():
        for fault in _of_party(data, len(y)):
            yield f"must give {fault} of party {party!r}"


def _beside(source: Source) -> Iterator[str]:
    """What is wrong with what there may be for each row of `y`."""
    n, values, labels = len(source.y), source.values, source.labels
    shape = (n, len(labels)) if labels else (n,)
    if (values is None and labels) or (values is not None and np.shape(values) != shape):
        yield f"must give values {shape}, got {_kind(values)}"
    for key in ("ids", "split", "group"):
        given = getattr(source, key)
        if given is not None and len(given) != n and (key != "ids" or len(given)):
            yield f"must give {key} for each of {n} rows, got {len(given)}"


def _of_party(data: Any, n: int) -> Iterator[str]:
    if not isinstance(data, PartyData):
        yield f"the table as a PartyData, got {type(data).__name__},"
    x, rows, names = data.values, data.rows, data.names
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or x.ndim not in (2, 4):
        yield f"values as floats (n, d) or (n, c, h, w), got {_kind(x)},"
    if np.isinf(x).any():
        yield "finite values or NaN, got infinity,"
    if not _whole(rows) or rows.shape != (len(x),):
        yield f"rows as whole numbers ({len(x)},), got {_kind(rows)},"
    if len(rows) and not 0 <= rows.min() <= rows.max() < n:
        yield f"rows from 0 to {n - 1}, got {int(rows.min())} to {int(rows.max())},"
    if len(np.unique(rows)) != len(rows):
        yield "each row once, got one twice,"
    d = x.shape[1] if x.ndim == 2 else 0
    if not isinstance(names, tuple | list) or len(names) != d or len(set(names)) != d:
        yield f"{d} different names of columns, got {names!r},"
    if data.categories and len(data.categories) != d:
        yield f"categories for each of {d} columns, got {len(data.categories)},"


def _whole(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "i"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__
