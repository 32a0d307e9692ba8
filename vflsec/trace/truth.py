"""The truth of a trace: a folder of its own, which only the scorer opens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from vflsec.errors import TraceError
from vflsec.guess import Truth
from vflsec.trace.columns import LABELS, batches, write_table
from vflsec.trace.limits import Limits, files_of
from vflsec.trace.seal import write_seal

__all__ = ["read_truth", "write_truth"]

_FILE = "labels.parquet"


def write_truth(
    folder: str | Path, rows: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, at: str = "truth"
) -> Path:
    """Write labels by trace row id, with a seal of their own; rows without a label have -1.

    Args:
        folder: of the trace, or any other folder at the label owner's.
        rows: (n,) trace row ids.
        labels: (n,) class numbers 0..C-1.
        at: name of the truth's folder.
    """
    base = Path(folder) / at
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    columns = {"row": np.asarray(rows, np.int64), "y": np.asarray(labels, np.int64)}
    count = write_table(base / _FILE, LABELS, columns)
    write_seal(base, {_FILE: count}, Limits())
    return base


def read_truth(folder: str | Path, limits: Limits | None = None) -> Truth:
    """Labels by trace row id; rows without one are left out.

    Args:
        folder: of a trace, or the truth's own.

    Raises:
        TraceError: there is none, or it is damaged.
    """
    from vflsec.trace.reader import check_seal

    limits, base = limits or Limits(), Path(folder)
    base = base / "truth" if (base / "truth").is_dir() else base
    if not (base / _FILE).is_file():
        raise TraceError(
            f"{folder}: holds no truth ({_FILE}). Its owner writes it with "
            "vflsec.trace.truth.write_truth."
        )
    files = files_of(base, limits)
    if "seal.json" in files:
        check_seal(base, files, limits)
    found = list(batches(base, _FILE, LABELS, limits, 32))
    if any(c.null_count for b in found for c in b.columns):
        raise TraceError(f"{base / _FILE}: must hold no nulls; rows without a label have -1.")
    rows = np.concatenate([b.column("row").to_numpy() for b in found] or [np.empty(0, np.int64)])
    y = np.concatenate([b.column("y").to_numpy() for b in found] or [np.empty(0, np.int64)])
    if len(np.unique(rows)) < len(rows):
        raise TraceError(f"{base / _FILE}: row ids repeat; each stands there once.")
    return Truth("label", rows[y >= 0], y[y >= 0])
