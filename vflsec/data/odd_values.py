"""Values that can hardly be meant: one far beyond all others, or the same one everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.data.source import PartyData

FAR = 10.0
"""Ranges of the other values from which on a value is far away."""

_SAMPLE = 2000  # values that are looked at first
_LEAST = 20
_CORE = 3  # different values that the others must have
_MOST = 3  # different values at either end that may be far away


def describe_far_values(values: NDArray[np.float64]) -> str:
    """That few values, such as 999999 or 1e30, lie far beyond all others, in words; or ''.

    Columns are scaled by mean and standard deviation, so such values flatten all others.

    Args:
        values: (n,) a column, NaN = missing.
    """
    there = values[~np.isnan(values)]
    if len(there) < _LEAST:
        return ""
    sample = there[:: -(-len(there) // _SAMPLE)]
    if not any(_count_far(np.unique(np.append(sample, [there.min(), there.max()])))):
        return ""
    distinct, rows = np.unique(there, return_counts=True)
    low, high = _count_far(distinct)
    if not low + high:
        return ""
    core = slice(low, len(distinct) - high)
    far = np.delete(distinct, core)
    count, shown = int(np.delete(rows, core).sum()), ", ".join(f"{v:g}" for v in far)
    return (
        f"{count} value{'s' * (count > 1)} ({shown}) far beyond all others "
        f"({distinct[core][0]:g} to {distinct[core][-1]:g}), which flatten these: placeholders for "
        "missing values, or errors? Leave them empty"
    )


def _count_far(distinct: NDArray[np.float64]) -> tuple[int, int]:
    """How many of the sorted values lie far below and far above all others, at most three each."""
    counts = [(low, high) for low in range(_MOST + 1) for high in range(_MOST + 1)]
    for low, high in sorted(counts, key=sum)[1:]:
        core = distinct[low : len(distinct) - high]
        if len(core) < _CORE:
            break
        with np.errstate(all="ignore"):
            reach = FAR * (core[-1] - core[0])
            below = not low or core[0] - distinct[low - 1] > reach
            above = not high or distinct[-high] - core[-1] > reach
        if below and above:
            return low, high
    return 0, 0


def has_only_constants(data: PartyData) -> bool:
    """Whether a party has columns, and none of them tells two rows apart."""
    if data.values.ndim != 2 or not data.values.size:
        return False
    return all(
        _is_constant(column, kind is not None)
        for column, kind in zip(data.values.T, data.categories, strict=True)
    )


def _is_constant(column: NDArray[Any], category: bool) -> bool:
    """Whether all values are one; a missing category is a value of its own."""
    there = column[~np.isnan(column)]
    alike = not len(there) or there.min() == there.max()
    return bool(alike and (not category or len(there) in (0, len(column))))
