"""The tables of a trace: their columns, their types, and Parquet reading that trusts no file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vflsec.errors import TraceError
from vflsec.trace.limits import Limits, open_file

__all__ = [
    "AMOUNTS",
    "KNOWN",
    "LABELS",
    "MESSAGES",
    "ROWS",
    "STORES",
    "Stored",
    "as_values",
    "build_tensor_schema",
    "build_vector_schema",
    "open_writer",
    "read_batches",
    "write_table",
]  # fmt: skip

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
KNOWN = pa.schema([("row", pa.int64()), ("y", pa.int64())])
LABELS = KNOWN
AMOUNTS = pa.schema([("row", pa.int64()), ("y", pa.float64())])
"""Labels that are a quantity."""

_STORED = re.compile(r"d([1-9][0-9]{0,6})-(f[248])")


@dataclass(frozen=True, order=True)
class Stored:
    """Payload rows of one width and number type, which share a file."""

    width: int
    store: str

    @classmethod
    def parse(cls, text: str) -> Stored | None:
        """``"d64-f4"`` as 64 numbers of 4 bytes; None if it is not written so."""
        found = _STORED.fullmatch(text)
        return cls(int(found[1]), found[2]) if found else None

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


def write_table(path: Path, schema: pa.Schema, columns: dict[str, Any]) -> int:
    """A small table in one go; returns its rows."""
    arrays = [
        c if isinstance(c, pa.Array) else pa.array(c, f.type)
        for f, c in ((f, columns[f.name]) for f in schema)
    ]
    with open_writer(path, schema) as out:
        out.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return len(arrays[0])


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
    with open_file(folder, name) as source:
        yield from _batches(source, name, schema, limits, row_bytes)


def _batches(
    source: Any, name: str, schema: pa.Schema, limits: Limits, row_bytes: int
) -> Iterator[pa.RecordBatch]:
    source.seek(0, 2)
    size = source.tell()
    source.seek(max(0, size - 8))
    tail = source.read(8)
    if (
        size < 12
        or tail[4:] != b"PAR1"
        or int.from_bytes(tail[:4], "little") > min(size, 16 * limits.header_bytes)
    ):
        raise TraceError(f"{name}: is no whole Parquet file (its end is missing or damaged).")
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
                raise TraceError(f"{name}: row group {group} lacks rows that its footer promises.")
            yield from table.to_batches()
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as why:
        if isinstance(why, TraceError):
            raise
        text = str(why).splitlines()[0][:160] if str(why) else type(why).__name__
        raise TraceError(f"{name}: is damaged ({text}).") from None


def _fits(
    file: pq.ParquetFile, name: str, schema: pa.Schema, limits: Limits, row_bytes: int
) -> None:
    there = file.schema_arrow
    for field in schema:
        i = there.get_field_index(field.name)
        if i < 0:
            raise TraceError(
                f"{name}: the column {field.name!r} is missing; a table like this has "
                f"{', '.join(schema.names)}."
            )
        found = there.field(i).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        if found != field.type:
            raise TraceError(
                f"{name}: the column {field.name!r} must be {field.type}, got {found}."
            )
    if len(there) > len(schema) + 32:
        raise TraceError(f"{name}: has {len(there)} columns; at most {len(schema) + 32} are read.")
    meta = file.metadata
    if meta.num_rows > limits.rows:
        raise TraceError(f"{name}: {meta.num_rows} rows; at most {limits.rows} are read.")
    for g in range(meta.num_row_groups):
        group = meta.row_group(g)
        if group.num_rows < 0 or group.num_rows * row_bytes > limits.batch_bytes:
            raise TraceError(
                f"{name}: row group {g} decodes to {group.num_rows * row_bytes} bytes; at most "
                f"{limits.batch_bytes} are read. Write smaller row groups."
            )
        for c in range(group.num_columns):
            if group.column(c).compression != "UNCOMPRESSED":
                raise TraceError(
                    f"{name}: is compressed ({group.column(c).compression}); a trace is not, so "
                    "that a small file cannot become a large one. Write it uncompressed."
                )
