"""Whether embeddings that a party sent have to do with its own columns of the rows they name.

Where rows of a trace's columns stand in another order than those of its messages, so do labels, and
every attack ends at chance. The RV coefficient of two tables of the same n rows, X and Z, centred,
with K = X X' and L = Z Z', is

    RV = tr(K L) / sqrt(tr(K K) tr(L L)) ,

of which mean and variance over all orders of the rows of Z are known in closed form.

Source: Robert, Escoufier, "A unifying tool for linear multivariate statistical methods: the RV-
coefficient", Applied Statistics 25(3), 1976; moments: Kazi-Aoual, Hitier, Sabatier, Lebreton,
"Refined approximations to permutation tests for multivariate inference", Computational Statistics &
Data Analysis 20(6), 1995.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from vflsec.trace.message import Recorded

__all__ = ["Sent", "related"]

_ROWS, _LEAST = 1024, 100  # rows that are compared at most and at least
_SURE = 4.0  # standard deviations; a bottom model that sees its columns reaches tens and more


def related(x: Tensor, z: Tensor) -> float:
    """By how many standard deviations RV exceeds its mean over all orders of the rows.

    Args:
        x, z: (n, p) and (n, q), n > 3.

    Returns:
        NaN where a table has the same rows everywhere.
    """
    n = len(x)
    k, el = (_gram(t) for t in (x, z))
    kk, ll = float((k * k).sum()), float((el * el).sum())
    if min(kk, ll) <= 0:
        return math.nan
    rv = float((k * el).sum()) / math.sqrt(kk * ll)
    (bx, tx), (bz, tz) = _shape(k, kk, n), _shape(el, ll, n)
    mean = math.sqrt(bx * bz) / (n - 1)
    spread = 2 * (n - 1 - bx) * (n - 1 - bz) / ((n + 1) * (n - 1) ** 2 * (n - 2))
    variance = spread * (1 + (n - 3) / (2 * n * (n - 1)) * tx * tz)
    return (rv - mean) / math.sqrt(variance) if variance > 0 else math.nan


def _gram(x: Tensor) -> Tensor:
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    flat = flat / flat.square().mean().sqrt().clamp_min(1e-300)
    return flat @ flat.T


def _shape(k: Tensor, kk: float, n: int) -> tuple[float, float]:
    """(beta, tau) of a Gram matrix, with which the moments are written."""
    beta = float(k.trace()) ** 2 / kk
    inner = n * (n + 1) * float(k.diagonal().square().sum()) / kk - (n - 1) * (beta + 2)
    rest = n - 1 - beta
    return beta, (n - 1) / ((n - 3) * rest) * inner if rest > 1e-9 else 0.0


class _Kept:
    """Sum, number and last of the embeddings of the first 1,024 rows that came."""

    def __init__(self, width: int) -> None:
        self.ids = np.empty(0, np.int64)
        self.total, self.last = np.zeros((2, _ROWS, width))
        self.count = np.zeros(_ROWS, np.int64)

    def add(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        room = _ROWS - len(self.ids)
        if room:
            fresh = rows[~np.isin(rows, self.ids)]
            fresh = fresh[np.sort(np.unique(fresh, return_index=True)[1])][:room]
            self.ids = np.concatenate([self.ids, fresh])
        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids, rows, sorter=order).clip(max=len(order) - 1)
        slot = order[place]
        mine = self.ids[slot] == rows
        slot, wide = slot[mine], values.reshape(len(values), -1)[mine]
        np.add.at(self.total, slot, wide)
        np.add.at(self.count, slot, 1)
        self.last[slot] = wide


class Sent:
    """The embeddings that an observer sent in a phase, of up to 1,024 rows of each name.

    Their mean over epochs is compared with own columns, and the last ones: noise that is drawn anew
    in every epoch averages out, and what the last ones tell earlier ones may contradict.
    """

    def __init__(self, observer: str, phase: str) -> None:
        self.observer, self.phase = observer, phase
        self.kept: dict[str, _Kept] = {}

    def add(self, found: Recorded) -> None:
        """Take in a message."""
        f = found.fields
        if (f["kind"], f["sender"], f["phase"]) != ("embedding", self.observer, self.phase):
            return
        if found.rows is None or found.values is None or not len(found.rows):
            return
        width = found.values[0].size
        kept = self.kept.setdefault(f["name"], _Kept(width))
        if kept.total.shape[1] == width:
            kept.add(found.rows, found.values)

    def clauses(self, own: tuple[Tensor, Tensor] | None) -> list[str]:
        """That the embeddings of a name have nothing to do with own columns, a clause each.

        Args:
            own: columns (N, ...) and which rows are held (N,); None if there are none.
        """
        out = []
        for name, kept in self.kept.items() if own is not None else ():
            assert own is not None
            rows = torch.from_numpy(kept.ids)
            at = own[1][rows].nonzero().squeeze(1)
            if len(at) < _LEAST:
                continue
            mean = kept.total[: len(rows)] / kept.count[: len(rows), None]
            tables = (torch.from_numpy(z)[at] for z in (mean, kept.last[: len(rows)]))
            score = max(related(own[0][rows[at]], z) for z in tables)
            if score < _SURE:
                out.append(
                    f"embeddings{f' named {name!r}' * bool(name)} that it sent have nothing to do "
                    f"with its own columns ({len(at)} rows, RV {score:+.1f} standard deviations "
                    "from that of rows in any order), so nothing shows that columns stand in the "
                    "order of 'rows'"
                )
        return out
