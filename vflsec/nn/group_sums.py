"""Sums of rows by group, which come out alike whenever they are taken."""

from __future__ import annotations

from torch import Tensor


def sums(value: Tensor, place: Tensor, n: int) -> Tensor:
    """Sums (n, ...) of the rows of `value` (m, ...) by the `place` (m,) of each, 0 to n - 1.

    They are added in the order in which they stand. ``index_add`` of a GPU adds in the order in
    which its threads come, so that two runs differ in the last bits; ``index_put`` sorts first.
    """
    out = value.new_zeros(n, *value.shape[1:])
    if value.is_cuda:
        return out.index_put_((place,), value, accumulate=True)
    return out.index_add_(0, place, value)
