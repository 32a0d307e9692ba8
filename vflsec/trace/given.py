"""What whoever records says of rows, columns and grants, checked and as a trace holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec import check
from vflsec.errors import ConfigError, ShapeError
from vflsec.trace.manifest import Claim
from vflsec.view import Known, Schema

__all__ = ["Ids", "aux_columns", "claimed", "known_rows", "own_columns"]


class Ids:
    """From the party's ids to positions."""

    def __init__(self, rows: Any) -> None:
        self.sorted: NDArray[Any] | None = None
        if isinstance(rows, int) and not isinstance(rows, bool):
            self.n = check.integer("record: rows", rows)
            return
        values = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if values.ndim != 1 or not len(values):
            raise check.fail("record: rows", "a number of rows or one id for each", values.shape)
        self.n = len(values)
        self.order = np.argsort(values, kind="stable")
        self.sorted = values[self.order]
        if (self.sorted[1:] == self.sorted[:-1]).any():
            raise ConfigError("record: rows must name every row once; some ids repeat.")

    def __len__(self) -> int:
        return self.n

    def places(self, ids: Any) -> NDArray[np.int64]:
        """Trace row ids of the party's own ids.

        Raises:
            ConfigError: an id is not among `rows`.
        """
        if isinstance(ids, Tensor):
            values = ids.numpy() if ids.is_cpu and not ids.requires_grad else _numbers(ids)
        else:
            values = np.asarray(ids)
        if values.ndim != 1:
            raise ShapeError(f"record: ids of a batch have shape (b,), got {values.shape}.")
        if not len(values):
            return np.empty(0, np.int64)
        if values.dtype.kind not in "iu" and self.sorted is None:
            raise ConfigError(
                f"record: ids are whole numbers from 0 to {self.n - 1}, got {values.dtype}."
            )
        if self.sorted is None:
            found = values.astype(np.int64)  # a copy: a loop may use its ids' memory again
            large = found.view(np.uint64)  # negative ones are very large there
            if large[large.argmax()] < self.n:
                return found
            bad = (found < 0) | (found >= self.n)
        else:
            at = np.searchsorted(self.sorted, values).clip(max=self.n - 1)
            bad = self.sorted[at] != values
            found = self.order[at]
        if bad.any():
            raise ConfigError(
                f"record: {int(bad.sum())} ids of a batch are not among the {self.n} rows that "
                "were named. Give record() all rows, those of evaluation too."
            )
        return np.asarray(found, np.int64)


def _numbers(x: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = x.detach().cpu().numpy()
    return array


def claimed(claim: tuple[float, float] | float | None) -> Claim | None:
    """A claim given as epsilon, or as (epsilon, delta)."""
    if claim is None:
        return None
    epsilon, delta = claim if isinstance(claim, tuple) else (claim, 0.0)
    return Claim(epsilon=float(epsilon), delta=float(delta))


def own_columns(columns: Any, schema: Schema | None, n: int) -> tuple[Tensor, Schema]:
    """Columns (n, ...) as floats, and their layout.

    Raises:
        ShapeError: they have another shape.
    """
    x = columns if isinstance(columns, Tensor) else torch.from_numpy(np.array(columns))
    x = x.detach().cpu()
    x = x if x.is_floating_point() and x.dtype != torch.bfloat16 else x.float()
    if x.dim() < 2 or len(x) != n:
        raise ShapeError(f"record: columns have shape (N, ...) with N = {n}, got {tuple(x.shape)}.")
    return x, schema or Schema.numbers(tuple(x.shape[1:]))


def aux_columns(
    aux: Mapping[str, tuple[Any, Any]], ids: Ids, roles: Mapping[str, str], party: str
) -> dict[str, tuple[Tensor, Tensor, Schema]]:
    """Granted columns of other parties: trace row ids (q,), columns (q, ...), layout.

    Raises:
        ConfigError: no such party, or ids that were not named.
    """
    out = {}
    for other, (rows, x) in aux.items():
        check.one_of("record: aux", other, [n for n in roles if n != party])
        places = torch.from_numpy(ids.places(rows))
        out[other] = (places, *own_columns(x, None, len(places)))
    return out


def known_rows(known: tuple[Any, Any] | None, ids: Ids) -> Known | None:
    """Granted labels by trace row id.

    Raises:
        ConfigError, ShapeError: ids that were not named, or not one label for each.
    """
    if known is None:
        return None
    labels = torch.from_numpy(np.array(known[1], dtype=np.int64))
    rows = torch.from_numpy(ids.places(known[0]))
    if len(rows) != len(labels):
        raise ShapeError(f"record: known has {len(rows)} ids and {len(labels)} labels.")
    return Known(rows, labels)
