"""The truth of a trace: a folder of its own, which only the scorer opens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vflsec.core import check
from vflsec.core.guess import Truth
from vflsec.core.view import Schema
from vflsec.errors import ConfigError, TraceError
from vflsec.label import Classes, Quantity
from vflsec.trace.columns import (
    AMOUNTS,
    LABELS,
    Stored,
    as_values,
    build_vector_schema,
    read_batches,
    write_table,
)
from vflsec.trace.grants import write_hidden
from vflsec.trace.limits import NAME, Limits, files_of, read_bytes
from vflsec.trace.manifest import Layout, TruthInfo, dump, load
from vflsec.trace.recorder_inputs import amounts, check_whole
from vflsec.trace.seal import write_seal

__all__ = ["Hidden", "read_hidden", "read_shares", "read_truth", "write_truth"]

_FILE, _VALUES = "labels.parquet", "values.parquet"
_SHARES, _INFO = "shares.parquet", "truth.json"
_HIDDEN = re.compile(rf"columns-({NAME.pattern})-(f[48])\.parquet")

Hidden = tuple[NDArray[np.int64], Tensor, Schema]
"""Row ids (n,), columns (n, ...) and their layout."""


def write_truth(
    folder: str | Path,
    rows: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    at: str = "truth",
    shares: ArrayLike | Tensor | None = None,
    hidden: Mapping[str, Any] | None = None,
    quantity: bool = False,
) -> Path:
    """Write labels by trace row id, with a seal of their own; rows without a label have -1.

    Args:
        folder: of the trace, or any other folder at the label owner's.
        rows: (n,) trace row ids.
        labels: (n,) class numbers 0..C-1.
        at: name of the truth's folder.
        shares: (n, C) class shares of the rows by something that has not seen their own labels,
            for the audit of a claimed epsilon;
            :func:`vflsec.epsilon.randomised_labels.cross_shares` makes them from columns.
        hidden: {party: columns (n, ...)} or {party: (columns, Schema)} of what attacks on features
            and attributes try to recover, as that party's model takes them.
        quantity: labels (n,) are numbers that are no classes, NaN where there is none; of traces
            that were recorded with ``classes=1``.

    Raises:
        ShapeError, ConfigError: not one entry for each row; labels or shares that are none.
    """
    base = Path(folder) / at
    ids = check_whole(
        "truth: rows", rows, remedy="They are places in 'rows' of the recording, from 0."
    )
    if len(np.unique(ids)) < len(ids):
        raise ConfigError("truth: rows must name every row once; some repeat.")
    y: NDArray[Any]
    if quantity:
        y = amounts("truth: labels", labels, len(ids))
    else:
        remedy = "Number classes from 0; -1 is no label. quantity=True says that they are numbers."
        y = check_whole("truth: labels", labels, len(ids), remedy)
    if np.array_equal(np.unique(y), [-1, 1]) and not quantity:
        raise check.fail(
            "truth: labels", "class numbers from 0", "-1 and 1",
            "-1 is read as no label, so that one class would be left. Give 0 and 1.",
        )  # fmt: skip
    held = {p: _columns(p, x, len(ids)) for p, x in (hidden or {}).items()}
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    columns = {"row": ids, "y": y}
    file, form = (_VALUES, AMOUNTS) if quantity else (_FILE, LABELS)
    (base / (_FILE if quantity else _VALUES)).unlink(missing_ok=True)
    counts = {file: write_table(base / file, form, columns)}
    if shares is not None:
        q = np.asarray(shares, np.float64)
        if q.ndim != 2 or len(q) != len(ids) or not (np.isfinite(q) & (q >= 0)).all():
            raise check.fail("truth: shares", f"({len(ids)}, C) numbers >= 0", q.shape)
        stored = Stored(q.shape[1], "f8")
        wide = {"row": ids, "value": as_values(q, stored)}
        counts[_SHARES] = write_table(base / _SHARES, build_vector_schema(stored), wide)
    for party, (x, _) in held.items():
        write_hidden(base, party, torch.from_numpy(ids.copy()), x)
    if held or shares is not None:
        layouts = {p: Layout.of(schema) for p, (_, schema) in held.items()}
        classes = None if shares is None else q.shape[1]
        (base / _INFO).write_bytes(dump(TruthInfo(layouts=layouts, classes=classes)))
    write_seal(base, counts, Limits())
    return base


def _columns(party: str, given: Any, n: int) -> tuple[Tensor, Schema]:
    x, schema = given if isinstance(given, tuple) else (given, None)
    x = torch.as_tensor(np.asarray(x)).detach()
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if not NAME.fullmatch(party) or x.dim() < 2 or len(x) != n:
        raise check.fail(f"truth: hidden columns of {party!r}", f"({n}, ...)", tuple(x.shape))
    return x, schema or Schema.numbers(tuple(x.shape[1:]))


def _base(folder: str | Path, limits: Limits) -> tuple[Path, dict[str, int]]:
    """The truth's folder and its files, as its seal says.

    Raises:
        TraceError: it holds none, or is damaged.
    """
    from vflsec.trace.reader import check_seal

    base = Path(folder)
    base = base / "truth" if (base / "truth").is_dir() else base
    if not (base / _FILE).is_file() and not (base / _VALUES).is_file():
        raise TraceError(
            f"{folder}: holds no truth ({_FILE}). Its owner writes it with vflsec.write_truth."
        )
    files = files_of(base, limits)
    if "seal.json" in files:
        check_seal(base, files, limits)
    return base, files


def read_truth(folder: str | Path, limits: Limits | None = None) -> Truth:
    """Labels by trace row id, or values of a quantity; rows without one are left out.

    Args:
        folder: of a trace, or the truth's own.

    Raises:
        TraceError: there is none, or it is damaged.
    """
    limits = limits or Limits()
    base, _ = _base(folder, limits)
    values = (base / _VALUES).is_file()
    file, form = (_VALUES, AMOUNTS) if values else (_FILE, LABELS)
    if values and (base / _FILE).is_file():
        raise TraceError(f"{base}: holds {_FILE} and {_VALUES}; a label is of one kind.")
    found = list(read_batches(base, file, form, limits, 32))
    if any(c.null_count for b in found for c in b.columns):
        none = "NaN" if values else "-1"
        raise TraceError(f"{base / file}: must hold no nulls; rows without a label have {none}.")
    rows = np.concatenate([b.column("row").to_numpy() for b in found] or [np.empty(0, np.int64)])
    y = np.concatenate([b.column("y").to_numpy() for b in found] or [np.empty(0)])
    if len(np.unique(rows)) < len(rows):
        raise TraceError(f"{base / file}: row ids repeat; each stands there once.")
    if values and np.isinf(y).any():
        raise TraceError(f"{base / file}: holds infinite values.")
    there = ~np.isnan(y) if values else y >= 0
    kind = np.float64 if values else np.int64
    return Truth((Quantity if values else Classes).target, rows[there], y[there].astype(kind))


def _info(base: Path, limits: Limits) -> TruthInfo:
    if not (base / _INFO).is_file():
        return TruthInfo()
    return load(read_bytes(base, _INFO, limits.manifest_bytes), TruthInfo, _INFO)


def read_shares(
    folder: str | Path, limits: Limits | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Row ids (n,) and class shares (n, C) of the truth, or None if it has none.

    Raises:
        TraceError: they are damaged.
    """
    limits = limits or Limits()
    base, files = _base(folder, limits)
    classes = _info(base, limits).classes
    if _SHARES not in files or classes is None:
        return None
    rows, q = _table(base, _SHARES, Stored(classes, "f8"), limits)
    if (q < 0).any() or not (q.sum(1) > 0).all():
        raise TraceError(f"{base / _SHARES}: class shares are >= 0 and not all 0 in a row.")
    return rows, q / q.sum(1, keepdims=True)


def read_hidden(folder: str | Path, limits: Limits | None = None) -> dict[str, Hidden]:
    """Columns by party that attacks on features and attributes are compared with.

    Raises:
        TraceError: they are damaged, or their layout is not said.
    """
    limits = limits or Limits()
    base, files = _base(folder, limits)
    layouts = _info(base, limits).layouts
    out: dict[str, Hidden] = {}
    for name in files:
        match = _HIDDEN.fullmatch(name)
        if match is None:
            continue
        party = match[1]
        if party not in layouts:
            raise TraceError(f"{base / name}: {_INFO} does not say the layout of {party}.")
        schema = layouts[party].as_schema()
        stored = Stored(int(np.prod(schema.shape)), match[2])
        rows, x = _table(base, name, stored, limits)
        out[party] = (rows, torch.from_numpy(x).reshape(len(x), *schema.shape), schema)
    return out


def _table(
    base: Path, name: str, stored: Stored, limits: Limits
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    found = list(read_batches(base, name, build_vector_schema(stored), limits, stored.row_bytes))
    rows = [b.column("row").to_numpy() for b in found]
    flat = [b.column("value").flatten().to_numpy(zero_copy_only=False) for b in found]
    ids = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)
    x = np.concatenate([*flat, np.empty(0, stored.numpy)]).astype(stored.numpy)
    x = x.reshape(-1, stored.width)
    if len(np.unique(ids)) < len(ids) or len(x) != len(ids) or not np.isfinite(x).all():
        raise TraceError(f"{base / name}: row ids repeat, or numbers are missing or not finite.")
    return ids, x
