"""Writes what an observer has beside messages: own columns, targets, and what it was granted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Known
from vflsec.trace.columns import (
    AMOUNTS,
    KNOWN,
    ROWS,
    Stored,
    as_values,
    build_vector_schema,
    open_writer,
    read_batches,
    write_table,
)
from vflsec.trace.limits import Limits

__all__ = [
    "grant_of", "granted_in", "write_aux", "write_hidden", "write_known", "write_own",
    "write_targets",
]  # fmt: skip

_CHUNK = 32 << 20


def grant_of(rows: NDArray[np.int64], labels: NDArray[Any]) -> str:
    """Hash of the labels of rows, class numbers or values, in whatever order they stand."""
    order = np.argsort(rows, kind="stable")
    kind = "<f8" if labels.dtype.kind == "f" else "<i8"
    both = [rows[order].astype("<i8").tobytes(), labels[order].astype(kind).tobytes()]
    return hashlib.sha256(b"".join(both)).hexdigest()


def granted_in(folder: Path) -> str:
    """:func:`grant_of` the labelled rows that :func:`write_known` wrote there, '' of none."""
    for name, form in (("known.parquet", KNOWN), ("known-values.parquet", AMOUNTS)):
        if (folder / name).exists():
            found = pa.Table.from_batches(read_batches(folder, name, form, Limits()), form)
            return grant_of(found["row"].to_numpy(), found["y"].to_numpy())
    return ""


def _vectors(folder: Path, stem: str, rows: Tensor, x: Tensor) -> None:

    flat = x.detach().cpu().reshape(len(x), -1).numpy()
    store = {"float16": "f2", "float64": "f8"}.get(str(flat.dtype), "f4")
    stored = Stored(flat.shape[1], store)
    ids = rows.cpu().numpy()
    step = max(1, _CHUNK // stored.row_bytes)
    with open_writer(folder / f"{stem}-{store}.parquet", build_vector_schema(stored)) as out:
        for at in range(0, max(1, len(ids)), step):
            part = slice(at, at + step)
            arrays = [pa.array(ids[part], pa.int64()), as_values(flat[part], stored)]
            table = pa.Table.from_arrays(arrays, schema=build_vector_schema(stored))
            out.write_table(table, row_group_size=max(1, len(table)))


def write_own(folder: Path, x: Tensor, present: Tensor | None = None) -> None:
    """Own columns (N, ...) of the rows that are `present` (N,); all if None."""
    rows = present.nonzero().squeeze(1) if present is not None else torch.arange(len(x))
    _vectors(folder, "own", rows, x[rows])


def write_aux(folder: Path, party: str, rows: Tensor, x: Tensor) -> None:
    """Granted columns (q, ...) of another party, in order of the grant."""
    _vectors(folder, f"aux-{party}", rows, x)


def write_hidden(folder: Path, party: str, rows: Tensor, x: Tensor) -> None:
    """Columns (n, ...) of a party that the scorer knows."""
    _vectors(folder, f"columns-{party}", rows, x)


def write_known(folder: Path, known: Known) -> None:
    """Granted labelled rows, in order of the grant; values of a quantity as such."""
    columns = {"row": known.rows.cpu().numpy(), "y": known.labels.cpu().numpy()}
    if known.labels.is_floating_point():
        write_table(folder / "known-values.parquet", AMOUNTS, columns)
    else:
        write_table(folder / "known.parquet", KNOWN, columns)


def write_targets(folder: Path, split: str, rows: Tensor) -> None:
    """Row ids that are to be guessed, known ones included; attacks leave those out."""
    write_table(folder / f"targets-{split}.parquet", ROWS, {"row": rows.cpu().numpy()})
