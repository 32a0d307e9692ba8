"""What a table's columns mean: numeric, dated or categorical features, and sample ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.data.classes import in_order
from vflsec.data.dialect import number_of
from vflsec.data.read_table import Frame, data_error, dates, listed, texts

__all__ = ["MOST_CATEGORIES", "Features", "features", "ids"]

MOST_CATEGORIES = 10_000
"""Rarer categories of one column are folded into :data:`RARE`."""

RARE = "(rare)"

_FEW = 20
_SOME = 200  # values of a column that are looked at for a remark
_CODE = "^0[0-9]+$"


@dataclass(frozen=True)
class Features:
    """Feature columns of one table.

    Attributes:
        values: (n, d) float64, NaN = missing; codes from 1 for categorical columns.
        categories: for each column None or its category names.
        folded: number of rare categories folded, by column.
        kinds: ``number``, ``date`` or ``category`` by column.
        doubtful: what in a column looks otherwise than it is read, in words.
    """

    values: NDArray[np.float64]
    categories: tuple[tuple[str, ...] | None, ...]
    folded: dict[str, int]
    kinds: dict[str, str]
    doubtful: dict[str, str]


_COUNTER = (
    "another whole number in every row: an id, or a row number of the export? Leave it out with "
    "drop"
)


def features(
    frame: Frame, names: Sequence[str], categorical: Collection[str], numeric: Collection[str]
) -> Features:
    """Read the feature columns `names`.

    A column is what it is declared to be. Undeclared, it is numeric if Parquet types it so or if
    all of its CSV values are numbers or dates (:mod:`vflsec.data.dates`), else categorical.

    Raises:
        DataError: text in a numeric column, or an infinite value.
    """
    values = np.full((frame.rows, len(names)), np.nan)
    categories: list[tuple[str, ...] | None] = []
    folded: dict[str, int] = {}
    kinds: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    for i, name in enumerate(names):
        array = frame.columns[name]
        declared = name in categorical or name in numeric
        if name not in categorical and not pa.types.is_boolean(array.type):
            kind, found, doubt = _measured(frame, name, name in numeric)
            if kind:
                _check_finite(frame, name, found)
                values[:, i], kinds[name] = found, kind
                categories.append(None)
                if doubt and not declared:
                    doubtful[name] = doubt
                continue
        else:
            doubt = ""
        values[:, i], known, rare = _coded(array)
        categories.append(known)
        kinds[name] = "category"
        there = frame.rows - array.null_count
        if rare:
            folded[name] = rare
        if not doubt and len(known) + rare > max(_FEW, 0.8 * there):
            doubt = (
                f"{len(known) + rare} different texts in {there} rows: an id or free text? "
                "Leave it out with drop"
            )
        if doubt and not declared:
            doubtful[name] = doubt
    return Features(values, tuple(categories), folded, kinds, doubtful)


def _measured(frame: Frame, name: str, declared: bool) -> tuple[str, NDArray[np.float64], str]:
    """Kind (``number``, ``date``, or '' for text), values, and what is doubtful about it."""
    array = frame.columns[name]
    found, bad = frame.numbers(name)
    is_text = pa.types.is_string(array.type)
    if not len(bad) and not (frame.typed and is_text and not declared):
        if pa.types.is_temporal(array.type):
            return "date", found, ""
        zeros = is_text and pc.any(pc.match_substring_regex(array[:_SOME], _CODE)).as_py()
        if zeros:
            doubt = "numbers that begin with 0, such as codes do; declare it categorical if so"
            return "number", found, doubt
        return "number", found, _COUNTER if _counts(array, found) else ""
    there = frame.rows - array.null_count
    if not len(bad) and there:
        return "", found, "numbers that the file types as text; declare it numeric if they are"
    day, why = dates(array)
    if day is not None:
        return "date", day, ""
    if declared:
        wrong = array[int(bad[0])].as_py()
        comma = number_of(wrong, ",") is not None
        raise data_error(
            frame.path,
            f"column {name!r}",
            "hold numbers (it is declared numeric)",
            f"{wrong!r} in {frame.row(int(bad[0]))}",
            "Correct the value, leave it empty, or declare the column categorical."
            + (' If the comma is a decimal mark, add decimal = "," under [data].' if comma else ""),
        )
    if why:
        return "", found, f"dates of which {why}; write them as YYYY-MM-DD to have numbers"
    if len(bad) < 0.1 * there:
        shown = f"{len(bad)} values, such as {array[int(bad[0])].as_py()!r}"
        return "", found, f"{shown}, that are no numbers; correct them and declare it numeric"
    if all(number_of(t, ",") is not None for t in _some(array) if t) and any(_some(array)):
        hint = 'add decimal = "," under [data] if they are decimal marks'
        return "", found, f"numbers with commas; {hint}"
    return "", found, ""


def _counts(array: pa.Array, found: NDArray[np.float64]) -> bool:
    """Whether whole numbers, of which every row has another, look like an id or a row number."""
    if array.null_count or len(found) <= _FEW or not np.array_equal(found, np.trunc(found)):
        return False
    return len(np.unique(found)) == len(found)


def _some(array: pa.Array) -> list[str | None]:
    """The first values of a text column."""
    return list(array[:_SOME].to_pylist())


def _check_finite(frame: Frame, name: str, values: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        raise data_error(
            frame.path,
            f"column {name!r}",
            "hold finite numbers",
            f"{values[bad[0]]} in {frame.row(int(bad[0]))}",
            "Correct it, or leave it empty if it is missing.",
        )


def _coded(array: pa.Array) -> tuple[NDArray[np.float64], tuple[str, ...], int]:
    """Codes from 1 (NaN = missing), the category names, and how many were folded."""
    coded = texts(array).dictionary_encode()
    names = coded.dictionary.to_pylist()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    kept, rare = in_order(names), 0
    if len(names) > MOST_CATEGORIES:
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        by_count = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))
        kept = [*in_order([names[i] for i in by_count[:MOST_CATEGORIES]]), RARE]
        rare = len(names) - MOST_CATEGORIES
    place = {n: i + 1.0 for i, n in enumerate(kept)}
    lookup = np.array([place.get(n, float(len(kept))) for n in names] + [np.nan])
    return lookup[codes], tuple(kept), rare


def ids(frame: Frame, name: str) -> pd.Index:
    """Sample ids as trimmed text; ``1``, ``"1"`` and ``1.0`` in a column of whole numbers match.

    Raises:
        DataError: an id is missing or occurs twice, or is of a type of numbers in which another
            may have become the same.
    """
    _check_exact(frame, name)
    array = texts(frame.column(name, "id"))
    missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    if len(missing):
        raise data_error(
            frame.path,
            f"id column {name!r}",
            "have a value in every row",
            f"no value in {frame.row(int(missing[0]))} ({len(missing)} in all)",
            "Fill in or remove the rows without an id.",
        )
    control = pc.match_substring_regex(array, r"[\x00-\x1f\x7f]")
    if pc.any(control).as_py():
        at = pc.index(control, True).as_py()
        raise data_error(
            frame.path,
            f"id column {name!r}",
            "hold printable characters",
            f"{array[at].as_py()[:60]!r} in {frame.row(at)}",
            "Correct the id.",
        )
    index = pd.Index(array.to_numpy(zero_copy_only=False), dtype=object)
    if not _rises(array) and not index.is_unique:
        twice = [i for i, k in Counter(index.tolist()).items() if k > 1]
        raise data_error(
            frame.path,
            f"id column {name!r}",
            "have each id once",
            f"{len(twice)} ids more than once: {listed(twice, 5)}",
            "Keep one row for each id.",
        )
    return index


_DIGITS = {pa.float32(): 24, pa.float64(): 53}
"""Bits up to which such numbers tell all whole numbers apart."""


def _check_exact(frame: Frame, name: str) -> None:
    """Refuse ids in a float type that has one number for several of them."""
    array = frame.column(name, "id")
    bits = _DIGITS.get(array.type, 0)
    large = pc.greater_equal(pc.abs(array), 2.0**bits) if bits else None
    if large is not None and pc.any(large).as_py():
        at = pc.index(large, True).as_py()
        raise data_error(
            frame.path,
            f"id column {name!r}",
            f"hold integers or text, or numbers below 2^{bits}",
            f"{array[at].as_py():.0f} of the type {array.type} in {frame.row(at)}",
            "From there on ids that differ become the same number: write the table again from its "
            "source with ids as text.",
        )


def _rises(array: pa.Array) -> bool:
    """Whether each text, or the whole number it says, is larger than the one before.

    Then all differ, without hashing any.
    """
    if len(array) < 2 or pc.all(pc.less(array[:-1], array[1:])).as_py():
        return True
    try:
        found = pc.cast(array, pa.int64())
    except pa.ArrowInvalid:
        return False
    return bool(pc.all(pc.less(found[:-1], found[1:])).as_py())
