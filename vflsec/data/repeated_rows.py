"""Several rows of one id made one: equal rows dropped, or columns put together as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vflsec.data.read_table import AGGREGATE, Frame, as_texts
from vflsec.data.table_spec import Aggregate

_NUMBERS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def join_rows(
    frame: Frame, column: str, roles: Sequence[str], aggregate: Mapping[str, Aggregate]
) -> Frame:
    """A table with one row for each id, in the order in which ids come first.

    Args:
        frame: the table.
        column: with the ids; a row without one stays as it is.
        roles: columns that are no features; within one id they must be equal.
        aggregate: how the values of one id become one, by column; other features are left out.
            Empty: rows must be equal in every column to become one.

    Raises:
        DataError: rows of one id differ in a role column, or at all; a column to put together is
            not there, or holds no numbers.
    """
    ids = as_texts(frame.column(column, "id")).to_numpy(zero_copy_only=False)
    _, first, of = np.unique([f"{i}" if t is None else f"\0{t}" for i, t in enumerate(ids)],
                             return_index=True, return_inverse=True)  # fmt: skip
    if len(first) == len(ids) and not aggregate:
        return frame
    order = np.argsort(first)
    first, of = first[order], np.argsort(order)[of]
    kept = [c for c in frame.columns if c in roles or not aggregate]
    _check_equal(frame, column, kept, ids, first[of])
    made = {name: _put_together(frame, name, way, of, first) for name, way in aggregate.items()}
    taken = _take(frame, kept, first)
    gone = tuple(c for c in frame.columns if c not in kept and c not in made)
    return replace(taken, columns=taken.columns | made, left_out=gone)


def _take(frame: Frame, names: Sequence[str], rows: NDArray[np.int64]) -> Frame:
    columns = {name: frame.columns[name].take(pa.array(rows)) for name in names}
    return replace(frame, columns=columns, rows=len(rows), first_rows=rows)


def _check_equal(
    frame: Frame, column: str, names: Sequence[str], ids: NDArray[np.object_],
    other: NDArray[np.int64],
) -> None:  # fmt: skip
    """Refuse rows that differ from the first one of their id, `other`."""
    for name in names:
        codes = frame.columns[name].dictionary_encode(null_encoding="encode").indices
        values = codes.to_numpy(zero_copy_only=False)
        differs = np.flatnonzero(values != values[other])
        if len(differs):
            raise frame.refuse(
                f"rows of one {column}", f"be equal in column {name!r} to become one",
                f"others in {frame.row(int(differs[0]))} ({ids[differs[0]]!r})",
                f"Say {AGGREGATE}.",
            )  # fmt: skip


def _put_together(
    frame: Frame, name: str, way: Aggregate, of: NDArray[np.int64], first: NDArray[np.int64]
) -> pa.Array:
    """One value for each id: `of` (n,) is each row's id, `first` (k,) each id's first row."""
    array = frame.column(name, "aggregated")
    if way in ("first", "last"):
        rows = first.copy()
        if way == "last":
            rows[of] = np.arange(len(of))
        return array.take(pa.array(rows))
    there = array.is_valid().to_numpy(zero_copy_only=False)
    count = np.bincount(of[there], minlength=len(first)).astype(np.float64)
    if way == "count":
        return pa.array(count)
    values, bad = frame.numbers(name)
    if len(bad):
        got = f"{array[int(bad[0])].as_py()!r} in {frame.row(int(bad[0]))}"
        remedy = "Use 'first', 'last' or 'count'."
        raise frame.refuse(f"column {name!r}", f"hold numbers for {way!r}", got, remedy)
    ufunc = _NUMBERS["sum" if way == "mean" else way]
    out = np.full(len(first), {"min": np.inf, "max": -np.inf}.get(way, 0.0))
    ufunc.at(out, of[there], values[there])
    if way == "mean":
        out = out / np.maximum(count, 1)
    return pa.array(np.where(count > 0, out, np.nan), from_pandas=True)
