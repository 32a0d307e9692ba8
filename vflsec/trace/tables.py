"""The tables of a trace and messages in them: types, writing, reading that trusts no file."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, StringConstraints, ValidationError
from torch import Tensor

from vflsec.core import check
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, Kind, find_kinds
from vflsec.core.view import Known
from vflsec.errors import TraceError
from vflsec.nn.weights import parse
from vflsec.runtime.atomic_files import name_when_whole
from vflsec.trace.limits import FINITE, UNCOMPRESSED, Limits, open_file
from vflsec.trace.manifest import Count, Name, Route, Strict, describe_invalid

STORES = {"f2": np.float16, "f4": np.float32, "f8": np.float64}
"""How values are stored; narrower wire types are widened, which changes no number."""

MESSAGES = pa.schema(
    [
        ("msg", pa.int64()), ("t", pa.int64()), ("phase", pa.string()), ("epoch", pa.int32()),
        ("step", pa.int64()), ("micro", pa.int32()), ("kind", pa.string()), ("name", pa.string()),
        ("sender", pa.string()), ("receiver", pa.string()), ("n_rows", pa.int32()),
        ("shape", pa.list_(pa.int32())), ("wire_dtype", pa.string()), ("wire_bytes", pa.int64()),
        ("loss_reduction", pa.string()), ("grad_scale", pa.float64()), ("pair", pa.int64()),
        ("protection", pa.string()), ("has_values", pa.bool_()), ("store", pa.string()),
        ("status", pa.string()),
    ]
)  # fmt: skip
ROWS = pa.schema([("row", pa.int64())])
LABELS = pa.schema([("row", pa.int64()), ("y", pa.int64())])
AMOUNTS = pa.schema([("row", pa.int64()), ("y", pa.float64())])
"""Labels that are a quantity."""
GRANTED = {False: ("known.parquet", LABELS), True: ("known-values.parquet", AMOUNTS)}
"""By whether labels are a quantity, the file of those that were granted, and its columns."""


@dataclass(frozen=True, order=True)
class Stored:
    """Payload rows of one width and number type, which share a file."""

    width: int
    store: str
    pattern: ClassVar[str] = r"^d[1-9][0-9]{0,6}-f[248]$"

    @classmethod
    def parse(cls, text: str) -> Stored | None:
        """``"d64-f4"`` as 64 numbers of 4 bytes; None if it is not written so."""
        if not re.fullmatch(cls.pattern, text) or text.endswith("\n"):
            return None
        width, store = text[1:].split("-")
        return cls(int(width), store)

    def __str__(self) -> str:
        return f"d{self.width}-{self.store}"

    @property
    def numpy(self) -> Any:
        """The NumPy type of the numbers."""
        return STORES[self.store]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory, with its numbers."""
        return self.width * np.dtype(self.numpy).itemsize + 24


def _list(stored: Stored) -> pa.DataType:
    return pa.list_(pa.from_numpy_dtype(np.dtype(stored.numpy)), stored.width)


@lru_cache(maxsize=64)
def build_tensor_schema(stored: Stored) -> pa.Schema:
    """One row for each sample of each message: ``msg``, ``pos``, ``row`` (null = unknown)."""
    return pa.schema(
        [("msg", pa.int64()), ("pos", pa.int32()), ("row", pa.int64()), ("value", _list(stored))]
    )


def build_vector_schema(stored: Stored) -> pa.Schema:
    """One row for each sample: its row id and its numbers."""
    return pa.schema([("row", pa.int64()), ("value", _list(stored))])


def as_values(x: NDArray[Any], stored: Stored) -> pa.Array:
    """(n, width) numbers as an Arrow array."""
    flat = np.ascontiguousarray(x, dtype=stored.numpy).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), stored.width)


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Uncompressed and with page checksums, which readers of a trace insist on."""
    return pq.ParquetWriter(
        path, schema, compression="NONE", use_dictionary=_texts(schema), write_statistics=False,
        write_page_checksum=True, store_schema=True,
    )  # fmt: skip


def write_table(path: Path, schema: pa.Schema, columns: Mapping[str, ArrayLike]) -> None:
    """Write a small table in one go."""
    arrays = [
        c if isinstance(c, pa.Array) else pa.array(c, f.type)
        for f, c in ((f, columns[f.name]) for f in schema)
    ]
    with name_when_whole(path) as new, open_writer(new, schema) as out:
        out.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _texts(schema: pa.Schema) -> list[str]:
    return [f.name for f in schema if pa.types.is_string(f.type)]


def read_batches(
    folder: Path, name: str, schema: pa.Schema, limits: Limits, row_bytes: int = 256
) -> Iterator[pa.RecordBatch]:
    """The row groups of a Parquet file, each checked before it is decoded.

    Args:
        folder, name: of the trace, and the file in it.
        schema: the columns it must have, in this order; further columns are not read.
        row_bytes: what one decoded row may take.

    Raises:
        TraceError: no such table, or one that decodes to more than it may.
    """
    source: Any
    with open_file(folder, name) as source:
        source.seek(0, 2)
        size = source.tell()
        source.seek(max(0, size - 8))
        tail = source.read(8)
        if (
            size < 12
            or tail[4:] != b"PAR1"
            or int.from_bytes(tail[:4], "little") > min(size, 16 * limits.header_bytes)
        ):
            raise TraceError.damaged(name, "no end of a Parquet file")
        how: dict[str, Any] = {
            "page_checksum_verification": True, "pre_buffer": False,
            "thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1_000_000,
        }  # fmt: skip
        try:
            source.seek(0)
            _fits(pq.ParquetFile(source, **how), name, schema, limits, row_bytes)
            source.seek(0)
            file = pq.ParquetFile(source, read_dictionary=_texts(schema), **how)
            for group in range(file.metadata.num_row_groups):
                table = file.read_row_group(group, columns=schema.names, use_threads=False)
                table = table.select(schema.names).combine_chunks()
                table.validate(full=True)
                if len(table) != file.metadata.row_group(group).num_rows:
                    raise TraceError.damaged(name, f"row group {group} lacks rows")
                yield from table.to_batches()
        except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as why:
            if isinstance(why, TraceError):
                raise
            raise TraceError.damaged(name, why) from None


class Rows(NamedTuple):
    """A small table: row ids (n,), each once, and beside them numbers (n,) or (n, width)."""

    ids: NDArray[np.int64]
    values: NDArray[Any]


def read_rows(
    folder: Path,
    name: str,
    form: pa.Schema | Stored,
    limits: Limits,
    n: int | None = None,
    *,
    where: str = "",
    gaps: bool = False,
) -> Rows:
    """A whole small table, whose first column holds row ids; its values are the ids if it is alone.

    Args:
        form: its columns, or how its vectors are stored.
        n: row ids are 0..n-1.
        where: what errors call it.
        gaps: NaN is allowed where there is no number.

    Raises:
        TraceError: nulls, numbers that are none, or row ids that repeat or are outside.
    """
    where, total, parts = where or name, 0, []
    vectors = isinstance(form, Stored)
    schema = build_vector_schema(form) if isinstance(form, Stored) else form
    size = form.row_bytes if isinstance(form, Stored) else 32
    for batch in read_batches(folder, name, schema, limits, size):
        total += len(batch)
        if n is not None and total > max(n, 1):
            raise TraceError(f"{where}: has more rows than the {n} of the trace.")
        parts.append(batch)
    table = pa.Table.from_batches(parts, schema=schema)
    columns = [table.column(i).combine_chunks() for i in range(len(schema))]
    columns += [columns[-1].flatten()] if vectors else []
    if any(c.null_count for c in columns):
        raise TraceError.must(where, "hold values", "nulls")
    ids, x = (np.array(c.to_numpy(zero_copy_only=False)) for c in (columns[0], columns[-1]))
    if n is not None:
        check_rows(where, ids, n)
    if len(np.unique(ids)) < len(ids):
        raise TraceError.must(where, "name each row once", "one twice")
    if x.dtype.kind == "f" and not (np.isfinite(x) | (gaps & np.isnan(x))).all():
        raise TraceError.must(where, FINITE, "others")
    return Rows(ids, x.reshape(-1, form.width) if vectors else x)


def check_rows(where: str, ids: NDArray[np.int64] | Tensor, n: int) -> None:
    """Refuse row ids outside a trace of `n` rows.

    Raises:
        TraceError: one is.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < n:
        got = f"{int(ids.min())} to {int(ids.max())}"
        raise TraceError.between(f"{where}: row ids", 0, n - 1, got)


def _fits(
    file: pq.ParquetFile, name: str, schema: pa.Schema, limits: Limits, row_bytes: int
) -> None:
    there = file.schema_arrow
    for field in schema:
        i = there.get_field_index(field.name)
        if i < 0:
            raise TraceError.must(name, f"have the column {field.name!r}", there.names)
        found = there.field(i).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        if found != field.type:
            raise TraceError.must(f"{name}: column {field.name!r}", f"be {field.type}", found)
    if len(there) > len(schema) + 32:
        raise TraceError.at_most(f"{name}: columns", len(schema) + 32, len(there))
    meta = file.metadata
    limits.hold(name, "rows", meta.num_rows)
    for g in range(meta.num_row_groups):
        group = meta.row_group(g)
        if group.num_rows < 0:
            raise TraceError.damaged(name, f"group {g} of {group.num_rows} rows")
        limits.hold(f"{name}: group {g}", "batch_bytes", group.num_rows * row_bytes)
        for c in range(group.num_columns):
            if (how := group.column(c).compression) != "UNCOMPRESSED":
                raise TraceError.must(name, UNCOMPRESSED, how)


_CHUNK = 32 << 20


def hash_grant(rows: NDArray[np.int64], labels: NDArray[Any]) -> str:
    """Hash of the labels of rows, class numbers or values, in whatever order they stand."""
    order = np.argsort(rows, kind="stable")
    kind = "<f8" if labels.dtype.kind == "f" else "<i8"
    both = [rows[order].astype("<i8").tobytes(), labels[order].astype(kind).tobytes()]
    return hashlib.sha256(b"".join(both)).hexdigest()


def write_vectors(folder: Path, stem: str, rows: Tensor, x: Tensor) -> None:
    """Columns (n, ...) by row id, in the file `stem` with their number type."""
    flat = x.detach().cpu().reshape(len(x), -1).numpy()
    store = {"float16": "f2", "float64": "f8"}.get(str(flat.dtype), "f4")
    stored = Stored(flat.shape[1], store)
    ids = rows.cpu().numpy()
    step = max(1, _CHUNK // stored.row_bytes)
    path, schema = folder / f"{stem}-{store}.parquet", build_vector_schema(stored)
    with name_when_whole(path) as new, open_writer(new, schema) as out:
        for at in range(0, max(1, len(ids)), step):
            part = slice(at, at + step)
            arrays = [pa.array(ids[part], pa.int64()), as_values(flat[part], stored)]
            table = pa.Table.from_arrays(arrays, schema=schema)
            out.write_table(table, row_group_size=max(1, len(table)))


def write_own(folder: Path, x: Tensor, present: Tensor | None = None) -> None:
    """Own columns (N, ...) of the rows that are `present` (N,); all if None."""
    rows = present.nonzero().squeeze(1) if present is not None else torch.arange(len(x))
    write_vectors(folder, "own", rows, x[rows])


def write_known(folder: Path, known: Known) -> None:
    """Granted labelled rows, in order of the grant; values of a quantity as such."""
    columns = {"row": known.rows.cpu().numpy(), "y": known.labels.cpu().numpy()}
    name, form = GRANTED[known.labels.is_floating_point()]
    write_table(folder / name, form, columns)


def write_targets(folder: Path, split: str, rows: Tensor) -> None:
    """Row ids that are to be guessed, known ones included; attacks leave those out."""
    write_table(folder / f"targets-{split}.parquet", ROWS, {"row": rows.cpu().numpy()})


def read_weights(folder: Path, name: str, limits: Limits) -> dict[str, Tensor]:
    """Tensors by name.

    Raises:
        TraceError: not such a file, or numbers overlap, leave gaps, or are not finite.
    """
    with open_file(folder, name) as file:
        return parse(file, name, limits.header_bytes, limits.batch_bytes, TraceError)


Short = Annotated[str, StringConstraints(max_length=80)]


class Fields(Strict):
    """What is recorded of a message: a row of ``messages`` (``docs/trace_format.md``)."""

    msg: int
    t: Count | None
    phase: Name
    epoch: Count | None
    step: Count | None
    micro: Count | None
    kind: Short
    name: Short
    sender: str
    receiver: str
    n_rows: Count | None
    shape: Annotated[list[Count], Field(max_length=8)]
    wire_dtype: str | None = None
    wire_bytes: Count | None
    loss_reduction: Short
    grad_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    pair: Count | None
    protection: Short
    has_values: bool
    store: Annotated[str, StringConstraints(pattern=Stored.pattern)]
    status: Short

    @property
    def route(self) -> Route:
        """Which messages this one belongs to."""
        return Route(self.kind, self.sender, self.receiver, self.phase)

    @property
    def stored(self) -> Stored:
        """Width and number type of its rows."""
        return Stored.parse(self.store) or Stored(1, "f4")


Found = tuple[Fields, pa.RecordBatch | None]
"""What is recorded of a message, and the rows of its payload."""


@dataclass(frozen=True)
class Recorded:
    """One message of a trace.

    Attributes:
        fields: what is recorded beside the payload; also attributes of the message itself.
        values: payload of the recorded shape, or None if only its size was recorded.
        rows: (n,) trace row ids, or None where the message has none or they are not known.
    """

    fields: Fields
    values: NDArray[Any] | None
    rows: NDArray[np.int64] | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fields, name)

    @property
    def scale(self) -> float:
        """What makes rows of different batches compare: batch size of a mean loss, AMP undone."""
        f = self.fields
        if f.kind != "gradient":
            return 1.0
        factor = float(f.n_rows) if f.loss_reduction == "mean" and f.n_rows else 1.0
        return factor if f.grad_scale in (None, 1.0) else factor / f.grad_scale

    def message(self) -> Message | None:
        """As a message of a live channel with one replica; None if it has no use there."""
        f = self.fields
        if f.kind not in KINDS or f.status != "complete":
            return None
        if self.values is None:
            if not KINDS[f.kind].is_encrypted:
                return None
            tensor = torch.zeros(()).expand(1, *f.shape)  # its size is all there is
        else:
            wide = np.float32 if self.values.dtype == np.float16 else self.values.dtype
            tensor = torch.from_numpy(np.array(self.values, dtype=wide, order="C")).unsqueeze(0)
        if f.n_rows is not None and self.rows is None and self.values is not None:
            return None  # rows that nobody can name are of no use to an attack
        rows = None if self.rows is None else torch.from_numpy(self.rows).unsqueeze(0)
        answers = (f.kind, f.phase) == ("prediction", "eval")
        return Message(
            cast(Kind, f.kind), f.sender, f.receiver, tensor, rows,
            "predict" if answers else f.phase, f.epoch or 0,
            f.step or 0, f.name, self.scale,
        )  # fmt: skip


def read_fields(
    meta: Mapping[str, object], parties: tuple[str, ...], observer: str, limits: Limits, where: str
) -> Fields:
    """The fields of a message as it is written in a file.

    Raises:
        TraceError: they contradict the format or each other; says which field, what it must be and
            what it is.
    """
    where = f"{where}: message {meta.get('msg')!r:.20}"
    try:
        found = Fields.model_validate(meta)
    except ValidationError as why:
        raise TraceError(f"{where}: {describe_invalid(why)}") from None
    for end, party in (("sender", found.sender), ("receiver", found.receiver)):
        if party not in parties:
            raise check.unknown(f"{where}: {end}", party[:40], parties, TraceError)
    if observer not in (found.sender, found.receiver) or found.sender == found.receiver:
        got = f"{found.sender} to {found.receiver}"
        raise TraceError.must(where, f"pass between {observer} and another party", got)
    limits.hold(where, "epochs", found.epoch or 0)
    _check_shape(found, limits, where)
    return found


def _check_shape(found: Fields, limits: Limits, where: str) -> None:
    shape, n, stored = found.shape, found.n_rows, found.stored
    if n is not None and (not shape or shape[0] != n):
        raise TraceError.must(f"{where}: n_rows", "fit shape", f"{n} and {shape}")
    limits.hold(where, "batch_rows", n or 0)
    if not found.has_values:
        return
    limits.hold(where, "width", stored.width)
    width = math.prod(shape if n is None else shape[1:])
    if width != stored.width:
        raise TraceError.must(f"{where}: shape", f"fit {stored}", shape)


_GAPS = find_kinds(lambda kind: kind.has_gaps)


def find_finite(kind: str, x: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers of a message are finite, or say that there is none."""
    finite = np.isfinite(x)
    return finite | np.isnan(x) if kind in _GAPS else finite


def from_batch(
    found: Fields, batch: pa.RecordBatch | None, rows: int, where: str
) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None]:
    """(payload of the recorded shape, its row ids) from the rows of a tensor table.

    Args:
        found: what is recorded beside the payload.
        batch: its rows, in order; None or empty without payload.
        rows: number of row ids of the trace.

    Raises:
        TraceError: rows are missing, doubled, null in part, or outside the trace.
    """
    where = f"{where}: message {found.msg}"
    there = 0 if batch is None else len(batch)
    n = found.n_rows
    expected = (n if n is not None else 1) if found.has_values else 0
    if there != expected:
        raise TraceError.must(where, f"have {expected} rows", there)
    if not found.has_values or batch is None:
        return None, None
    pos = batch.column("pos")
    if pos.null_count or not np.array_equal(pos.to_numpy(), np.arange(there)):
        raise TraceError.must(where, "count pos from 0", "other numbers")
    column = batch.column("value")
    if column.null_count or column.flatten().null_count:
        raise TraceError.must(where, "hold values", "nulls")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    x = flat.astype(found.stored.numpy, copy=False).reshape(found.shape)
    ids = batch.column("row")
    if n is None or ids.null_count == there:
        return x, None
    if ids.null_count:
        raise TraceError.must(where, "give all row ids or none", f"{ids.null_count} without")
    row = ids.to_numpy()
    check_rows(where, row, rows)
    return x, row.astype(np.int64)
