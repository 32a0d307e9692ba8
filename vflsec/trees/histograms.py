"""Sums of gradient pairs by node, column and bin, and the best split that they name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Limits:
    """When a node may be split.

    Attributes:
        l2: added to every sum of second derivatives.
        min_rows, min_hessian: rows and second derivatives that each side must have.
        min_gain: a split must gain more.
    """

    l2: float = 0.1
    min_rows: int = 1
    min_hessian: float = 1e-3
    min_gain: float = 0.0


@dataclass(frozen=True)
class Best:
    """One party's best split of each of S nodes; arrays (S,).

    Attributes:
        gain: -inf where there is none.
        column, cut: rows whose bin is at most `cut` go left.
        missing_left: whether rows without a value go left.
    """

    gain: Floats
    column: Ints
    cut: Ints
    missing_left: NDArray[np.bool_]


def add_up_nodes(slot: Ints, weights: Floats, slots: int) -> Floats:
    """Sums of weights (n, w) over the rows of each node, (slots, w), row after row."""
    each = [np.bincount(slot, weights[:, k], slots) for k in range(weights.shape[1])]
    return np.stack(each, axis=1)


def add_up(codes: NDArray[np.int32], slot: Ints, weights: Floats, slots: int, bins: int) -> Floats:
    """Sums of weights (n, w) by node, column and bin, (slots, d, bins, w), row after row.

    Args:
        codes: bins (d, n).
        slot: node of each row, (n,).
        weights: what is added up.
        slots, bins: how many.
    """
    out = np.empty((slots, len(codes), bins, weights.shape[1]))
    start = slot * bins
    each = [None if (w == 1).all() else np.ascontiguousarray(w) for w in weights.T]  # None: count
    for j, column in enumerate(codes):
        at = start + column
        for k, w in enumerate(each):
            out[:, j, :, k] = np.bincount(at, w, slots * bins).reshape(slots, bins)
    return out


def take_left(sums: Floats) -> Floats:
    """Sums (S, d, B + 1, w) as those left of each cut, (S, d, B, 2, w): missing right, then left.

    The last bin holds the missing values.
    """
    left = sums[:, :, :-1].cumsum(axis=2)
    return np.stack([left, left + sums[:, :, -1:]], axis=3)


def find_best(
    left: Floats, total: Floats, limits: Limits, allowed: NDArray[np.bool_] | None = None
) -> Best:
    """The split with the largest gain; of equal ones the first column, then the first bin.

        gain = G_L^2 / (H_L + l2) + G_R^2 / (H_R + l2) - G^2 / (H + l2)

    Args:
        left: sums of g, h and rows left of each cut, (S, d, B, 2, 3).
        total: those of each node, (S, 3).
        limits: when a split is none.
        allowed: (S, d, B, 2) splits that may be taken; None for all.
    """
    whole = total[:, None, None, None, :]
    right = whole - left
    gain = _score(left, limits.l2) + _score(right, limits.l2) - _score(whole, limits.l2)
    fits = np.ones(gain.shape, dtype=bool) if allowed is None else allowed.copy()
    for side in (left, right):
        fits &= (side[..., 2] >= limits.min_rows) & (side[..., 1] >= limits.min_hessian)
    gain = np.where(fits, gain, -np.inf)
    flat = gain.reshape(len(gain), -1)
    if not flat.shape[1]:  # a party without columns
        none = np.zeros(len(gain), dtype=np.int64)
        return Best(np.full(len(gain), -np.inf), none, none, none.astype(bool))
    at = flat.argmax(axis=1)
    column, cut, missing = np.unravel_index(at, gain.shape[1:])
    return Best(flat[np.arange(len(flat)), at], column, cut, missing.astype(bool))


def _score(sums: Floats, l2: float) -> Floats:
    found: Floats = sums[..., 0] ** 2 / (sums[..., 1] + l2 + 1e-15)
    return found
