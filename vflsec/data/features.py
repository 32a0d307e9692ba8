"""What a table's columns mean: numeric or categorical features, class labels, sample ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from vflsec.data.reading import Frame, data_error, listed, numbers, texts

__all__ = ["MOST_CATEGORIES", "MOST_CLASSES", "Features", "features", "ids", "labels"]

MOST_CATEGORIES = 10_000
"""Rarer categories of one column are folded into :data:`RARE`."""

MOST_CLASSES = 1_000

MOST_FRACTIONAL_CLASSES = 20
"""With more distinct labels that are no whole numbers, the label looks like a quantity."""

RARE = "(rare)"


@dataclass(frozen=True)
class Features:
    """Feature columns of one table.

    Attributes:
        values: (n, d) float64, NaN = missing; codes from 1 for categorical columns.
        categories: for each column None or its category names.
        folded: number of rare categories folded, by column.
        doubtful: columns taken as categorical though nearly all of their values are numbers.
    """

    values: NDArray[np.float64]
    categories: tuple[tuple[str, ...] | None, ...]
    folded: dict[str, int]
    doubtful: dict[str, str]


def features(
    frame: Frame, names: Sequence[str], categorical: Collection[str], numeric: Collection[str]
) -> Features:
    """Read the feature columns `names`.

    A column is what it is declared to be. Undeclared, it is numeric if Parquet types it so or if
    all of its CSV values are numbers, else categorical.

    Raises:
        DataError: text in a numeric column, or an infinite value.
    """
    values = np.full((frame.rows, len(names)), np.nan)
    categories: list[tuple[str, ...] | None] = []
    folded: dict[str, int] = {}
    doubtful: dict[str, str] = {}
    for i, name in enumerate(names):
        array = frame.columns[name]
        as_text = name in categorical or pa.types.is_boolean(array.type)
        if not as_text and name not in numeric:
            as_text = frame.typed and pa.types.is_string(array.type)
        if not as_text:
            found, bad = numbers(array)
            if len(bad) and name in numeric:
                raise data_error(
                    frame.path,
                    f"column {name!r}",
                    "hold numbers (it is declared numeric)",
                    f"{array[int(bad[0])].as_py()!r} in {frame.row(int(bad[0]))}",
                    "Correct the value, leave it empty, or declare the column categorical.",
                )
            as_text = len(bad) > 0
            if as_text and len(bad) < 0.1 * (frame.rows - array.null_count):
                doubtful[name] = f"{len(bad)} values, such as {array[int(bad[0])].as_py()!r}"
            if not as_text:
                _check_finite(frame, name, found)
                values[:, i] = found
                categories.append(None)
                continue
        values[:, i], known, rare = _coded(array)
        categories.append(known)
        if rare:
            folded[name] = rare
    return Features(values, tuple(categories), folded, doubtful)


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
    kept, rare = _sorted(names), 0
    if len(names) > MOST_CATEGORIES:
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        by_count = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))
        kept = [*_sorted([names[i] for i in by_count[:MOST_CATEGORIES]]), RARE]
        rare = len(names) - MOST_CATEGORIES
    place = {n: i + 1.0 for i, n in enumerate(kept)}
    lookup = np.array([place.get(n, float(len(kept))) for n in names] + [np.nan])
    return lookup[codes], tuple(kept), rare


def _sorted(names: Sequence[str]) -> list[str]:
    """Names in numeric order if all are whole numbers, else in alphabetic order."""
    try:
        return sorted(names, key=lambda n: (int(n), n))
    except ValueError:
        return sorted(names)


def labels(frame: Frame, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class index of each row (-1 = no label) and the class names in index order.

    Classes are ordered as numbers if they are whole numbers, else alphabetically; with two classes
    the second one counts as positive.

    Raises:
        DataError: no label, one class, more than 1000 classes, or a quantity instead of classes.
    """
    array = texts(frame.column(name, "label"))
    coded = array.dictionary_encode()
    found = coded.dictionary.to_pylist()
    what = f"label column {name!r}"
    if not found:
        raise data_error(
            frame.path, what, "have a value in some row", "no value in any", "Name another column."
        )
    if len(found) == 1:
        raise data_error(
            frame.path, what, "have at least two classes", f"only {found[0]!r}", "Check the column."
        )
    values, bad = numbers(array)
    if len(bad) == 0 and len(found) > MOST_FRACTIONAL_CLASSES:
        there = values[~np.isnan(values)]
        if (there != np.round(there)).any():
            raise data_error(
                frame.path,
                what,
                "hold classes",
                f"{len(found)} different numbers such as {listed(found[:3])}",
                "It looks like a quantity (regression is not supported): bin it into classes.",
            )
    if len(found) > MOST_CLASSES:
        raise data_error(
            frame.path,
            what,
            f"have at most {MOST_CLASSES} classes",
            f"{len(found)}, such as {listed(found[:3])}",
            "Name the label column, or merge classes.",
        )
    _check_finite(frame, name, values if len(bad) == 0 else np.zeros(1))
    names = _sorted(found)
    place = {n: i for i, n in enumerate(names)}
    lookup = np.array([place[n] for n in found] + [-1], dtype=np.int64)
    return lookup[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)], tuple(names)


def ids(frame: Frame, name: str) -> pd.Index:
    """Sample ids as trimmed text; ``1``, ``"1"`` and ``1.0`` in a column of whole numbers match.

    Raises:
        DataError: an id is missing or occurs twice.
    """
    array = texts(frame.column(name, "id"))
    index = pd.Index(array.to_pylist(), dtype=object)
    missing = np.flatnonzero(index.isna())
    if len(missing):
        raise data_error(
            frame.path,
            f"id column {name!r}",
            "have a value in every row",
            f"no value in {frame.row(int(missing[0]))} ({len(missing)} in all)",
            "Fill in or remove the rows without an id.",
        )
    if not index.is_unique:
        twice = [i for i, k in Counter(index.tolist()).items() if k > 1]
        raise data_error(
            frame.path,
            f"id column {name!r}",
            "have each id once",
            f"{len(twice)} ids more than once: {listed(twice, 5)}",
            "Keep one row for each id.",
        )
    return index
