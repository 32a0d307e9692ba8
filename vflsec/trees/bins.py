"""Cuts a party's columns into bins by itself, from its own training rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def cut_columns(
    x: NDArray[np.float64], fit: NDArray[np.int64], bins: int, categories: Sequence[int] = ()
) -> tuple[NDArray[np.int32], list[NDArray[np.float64]]]:
    """The bin of each value, (d, N), and the cuts of each column: bin b holds values <= cut b.

    A column with at most `bins` values has one bin for each; another is cut at quantiles. Missing
    values are in bin number `bins`: NaN, and code 0 of a categorical column.

    Args:
        x: columns (N, d).
        fit: the rows by which cuts are found.
        bins: of a column, without the one for missing values.
        categories: 0 for a number, else how many codes, by column; empty if all are numbers.
    """
    codes = np.empty((x.shape[1], len(x)), dtype=np.int32)
    cuts = []
    for j in range(x.shape[1]):
        column = x[:, j]
        if categories and categories[j]:
            column = np.where(column == 0, np.nan, column)
        seen = column[fit]
        seen = seen[~np.isnan(seen)]
        values = np.unique(seen)
        if len(values) > bins:
            at = np.quantile(seen, np.arange(1, bins) / bins, method="inverted_cdf")
            values = np.append(np.unique(at), np.inf)
        edges = values[:-1]
        codes[j] = np.where(np.isnan(column), bins, np.searchsorted(edges, column, side="left"))
        cuts.append(edges)
    return codes, cuts
