"""The truth of a trace: a folder of its own, which only the scorer opens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vflsec.core import check
from vflsec.core.guess import Truth
from vflsec.core.view import Schema
from vflsec.errors import TraceError
from vflsec.label import Classes, Quantity
from vflsec.trace.limits import NAME, Limits, list_files
from vflsec.trace.manifest import Layout, TruthInfo, read_json, write_json
from vflsec.trace.recorder_inputs import check_once, check_whole, read_amounts
from vflsec.trace.seal import check_seal, write_seal
from vflsec.trace.tables import (
    AMOUNTS,
    LABELS,
    Rows,
    Stored,
    as_values,
    build_vector_schema,
    read_rows,
    write_table,
    write_vectors,
)  # fmt: skip

_LABELS = {False: ("labels.parquet", LABELS), True: ("values.parquet", AMOUNTS)}
(_FILE, _), (_VALUES, _) = _LABELS.values()
_SHARES, _INFO = "shares.parquet", "truth.json"
_HIDDEN = re.compile(rf"columns-({NAME.pattern})-(f[48])\.parquet")


class Hidden(NamedTuple):
    """Columns of a party: row ids (n,), columns (n, ...) and their layout."""

    rows: NDArray[np.int64]
    columns: Tensor
    schema: Schema


def write_truth(
    folder: str | Path,
    rows: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    at: str = "truth",
    shares: ArrayLike | Tensor | None = None,
    hidden: Mapping[str, object] | None = None,
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
    named, told = (f"truth: {key}" for key in ("rows", "labels"))
    ids = check_whole(named, rows, remedy="They are places in 'rows' of the recording.")
    check_once(named, ids)
    y: NDArray[Any]
    remedy = "Number classes from 0 (-1: no label), or say quantity=True."
    if quantity:
        y = read_amounts(told, labels, len(ids))
    else:
        y = check_whole(told, labels, len(ids), remedy)
    if np.array_equal(np.unique(y), [-1, 1]) and not quantity:
        raise check.fail(told, "class numbers", "-1 and 1", remedy)
    held = {p: _columns(p, x, len(ids)) for p, x in (hidden or {}).items()}
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    columns = {"row": ids, "y": y}
    (file, form), (other, _) = _LABELS[quantity], _LABELS[not quantity]
    (base / other).unlink(missing_ok=True)
    write_table(base / file, form, columns)
    if shares is not None:
        q = np.asarray(shares, np.float64)
        if q.ndim != 2 or len(q) != len(ids) or not (np.isfinite(q) & (q >= 0)).all():
            raise check.fail("truth: shares", f"({len(ids)}, C) numbers >= 0", q.shape)
        stored = Stored(q.shape[1], "f8")
        wide = {"row": ids, "value": as_values(q, stored)}
        write_table(base / _SHARES, build_vector_schema(stored), wide)
    for party, (x, _) in held.items():
        write_vectors(base, f"columns-{party}", torch.from_numpy(ids), x)
    if held or shares is not None:
        layouts = {p: Layout.of(schema) for p, (_, schema) in held.items()}
        classes = None if shares is None else q.shape[1]
        write_json(base / _INFO, TruthInfo(layouts=layouts, classes=classes))
    write_seal(base, Limits())
    return base


def _columns(party: str, given: Any, n: int) -> tuple[Tensor, Schema]:
    x, schema = given if isinstance(given, tuple) else (given, None)
    x = torch.as_tensor(np.asarray(x)).detach()
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if not NAME.fullmatch(party) or x.dim() < 2 or len(x) != n:
        raise check.fail(f"truth: columns of {party!r}", f"({n}, ...)", tuple(x.shape))
    return x, schema or Schema.numbers(tuple(x.shape[1:]))


def _base(folder: str | Path, limits: Limits) -> tuple[Path, dict[str, int]]:
    """The truth's folder and its files, as its seal says."""
    base = Path(folder)
    base = base / "truth" if (base / "truth").is_dir() else base
    if not (base / _FILE).is_file() and not (base / _VALUES).is_file():
        raise TraceError(f"{folder}: has no {_FILE}. Its owner runs vflsec.write_truth.")
    files = list_files(base, limits)
    if "seal.json" in files:
        check_seal(base, files, limits)
    return base, files


@dataclass(frozen=True)
class KnownTruth:
    """What a label owner knows of a trace.

    Attributes:
        labels: by trace row id, or values of a quantity; rows without one are left out.
        shares: row ids (n,) and class shares (n, C), None if there are none.
        hidden: by party, columns that attacks on features and attributes are compared with.
    """

    labels: Truth
    shares: Rows | None
    hidden: Mapping[str, Hidden]


def read_truth(folder: str | Path, limits: Limits | None = None) -> KnownTruth:
    """All that a truth's folder holds.

    Args:
        folder: of a trace, or the truth's own.

    Raises:
        TraceError: there is none, it is damaged, or does not say the layout of columns.
    """
    limits = limits or Limits()
    base, files = _base(folder, limits)
    labels, info = _read_labels(base, limits), TruthInfo()
    if _INFO in files:
        info = read_json(base, _INFO, TruthInfo, limits)
    shares, hidden = None, {}
    if _SHARES in files and info.classes is not None:
        ids, q = read_rows(
            base, _SHARES, Stored(info.classes, "f8"), limits, where=str(base / _SHARES)
        )
        if (q < 0).any() or not (q.sum(1) > 0).all():
            raise TraceError.must(base / _SHARES, "hold shares >= 0, not all 0 in a row", "others")
        shares = Rows(ids, q / q.sum(1, keepdims=True))
    for match in filter(None, map(_HIDDEN.fullmatch, files)):
        where, party = str(base / match[0]), match[1]
        if party not in info.layouts:
            raise TraceError(f"{where}: {_INFO} lacks the layout of {party}.")
        schema = info.layouts[party].as_schema()
        stored = Stored(int(np.prod(schema.shape)), match[2])
        ids, x = read_rows(base, match[0], stored, limits, where=where)
        hidden[party] = Hidden(ids, torch.from_numpy(x).reshape(len(x), *schema.shape), schema)
    return KnownTruth(labels, shares, hidden)


def _read_labels(base: Path, limits: Limits) -> Truth:
    quantity = (base / _VALUES).is_file()
    if quantity and (base / _FILE).is_file():
        raise TraceError.taken(base, f"{_FILE} and {_VALUES}", "Keep one.")
    file, form = _LABELS[quantity]
    ids, y = read_rows(base, file, form, limits, where=str(base / file), gaps=quantity)
    there = ~np.isnan(y) if quantity else y >= 0
    return Truth((Quantity if quantity else Classes).target, ids[there], y[there])
