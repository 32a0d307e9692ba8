"""Rows whose labels an adversary knows: those it was granted, and the same samples by other ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vflsec.core.duplicate_rows import telling
from vflsec.core.view import Known
from vflsec.errors import TraceError
from vflsec.trace.observer_reader import Observer

__all__ = ["find_same_samples", "read_granted"]


def read_granted(observers: Sequence[Observer]) -> Known | None:
    """What observers who put together what they know were granted, in order; None if nothing.

    Raises:
        TraceError: two of them were granted different labels of a row.
    """
    out: Known | None = None
    for observer in observers:
        more = observer.known()
        if out is None or more is None:
            out = out if more is None else more
            continue
        labels = dict(zip(out.rows.tolist(), out.labels.tolist(), strict=True))
        mine = dict(zip(more.rows.tolist(), more.labels.tolist(), strict=True))
        odd = [r for r in labels.keys() & mine.keys() if labels[r] != mine[r]]
        if odd:
            names = " and ".join(o.name for o in observers)
            raise TraceError(
                f"{names} were granted different labels of {len(odd)} rows (first: {min(odd)}). "
                "Row k must be the same sample for all of them."
            )
        fresh = ~torch.isin(more.rows, out.rows)
        pairs = ((out.rows, more.rows), (out.labels, more.labels))
        out = Known(*(torch.cat([a, b[fresh]]) for a, b in pairs))
    return out


def find_same_samples(
    own: Mapping[str, tuple[Tensor, Tensor] | None], who: Sequence[str], known: Known | None
) -> Tensor:
    """Row ids that have, number for number, the columns of a known row: that sample by another id.

    Where no column tells most rows apart rows are equal by chance, and none is meant.

    Args:
        own: by party, columns (N, ...) and which rows are held (N,), or None.
        who: parties that put their columns together.
        known: rows whose labels they know.
    """
    none = torch.empty(0, dtype=torch.int64)
    parts = [held for p in who if (held := own[p]) is not None]
    if known is None or not parts:
        return none
    there = torch.stack([present for _, present in parts]).all(0)
    rows = there.nonzero().squeeze(1)
    if not any(x.dim() > 2 or telling(x[rows].numpy()) for x, _ in parts):
        return none
    whole = torch.cat([x[rows].flatten(1) for x, _ in parts], 1) + 0.0  # -0.0 is 0.0
    mine = torch.isin(rows, known.rows)
    of = {row.tobytes() for row in whole[mine].numpy()}
    same = [row.tobytes() in of for row in whole.numpy()]
    return rows[torch.tensor(same, dtype=torch.bool) & ~mine]
