"""How much of a file is read at most, so that a small file cannot fill the memory.

A compressed file may be a thousand times larger than it looks. Gzip is therefore unpacked piece by
piece, and Parquet, whose header may lie, batch by batch; what goes beyond the limit is an error
that says how to raise it.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from vflsec.errors import DataError, write_setting

_PIECE = 1 << 20
_BATCH_CELLS = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The most that is read of one table.

    Attributes:
        bytes: of the unpacked file; 2 GiB by default.
        cells: rows x columns; 200 million by default.
        columns: 50,000 by default; each takes time of its own, however few rows there are.
    """

    bytes: int = 2 * 2**30
    cells: int = 200_000_000
    columns: int = 50_000


def too_much(path: object, got: str, most: int, key: str) -> DataError:
    """The error for a file that is larger than a limit."""
    return DataError.must(
        f"{path}: table", f"have at most {most:,} {key.removeprefix('max_')}", got,
        f"If that is right: {write_setting(f'{key} = NUMBER')}.",
    )  # fmt: skip


def check_size(path: object, rows: int, columns: int, limits: Limits, about: str = "") -> None:
    """Refuse a table of so many rows and columns beyond the limits.

    Args:
        about: said before the number of cells where rows are counted as lines.

    Raises:
        DataError: beyond a limit.
    """
    if columns > limits.columns:
        raise too_much(path, f"{columns:,}", limits.columns, "max_columns")
    if rows * columns > limits.cells:
        lines = "lines" if about else "rows"
        got = f"{about}{rows * columns:,} ({rows:,} {lines}, {columns:,} columns)"
        raise too_much(path, got, limits.cells, "max_cells")


def gunzip(path: Path, raw: bytes, limits: Limits) -> bytes:
    """Unpack gzip (several members too) up to the limit.

    Raises:
        DataError: beyond the limit.
        zlib.error, EOFError, OSError: no gzip, or cut short.
    """
    out, size = [], 0
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        while piece := file.read(_PIECE):
            out.append(piece)
            size += len(piece)
            if size > limits.bytes:
                got = f"more ({len(raw):,} packed)"
                raise too_much(path, got, limits.bytes, "max_bytes")
    return b"".join(out)


def parquet_table(path: Path, raw: bytes, limits: Limits) -> pa.Table:
    """Read Parquet up to the limits; text keeps the file's dictionary until its size is known.

    Raises:
        DataError: beyond a limit.
        pyarrow.ArrowException, OSError: no Parquet file.
    """
    file = pa.parquet.ParquetFile(io.BytesIO(raw), memory_map=False)
    found, names = file.metadata, file.schema_arrow.names
    check_size(path, found.num_rows, len(names), limits)
    said = sum(found.row_group(i).total_byte_size for i in range(found.num_row_groups))
    if said > limits.bytes:
        raise too_much(path, f"{said:,} unpacked", limits.bytes, "max_bytes")
    kinds = file.schema_arrow.types
    coded = [n for n, t in zip(names, kinds) if _is_text(t)]
    if len(set(names)) == len(names):
        file = pa.parquet.ParquetFile(io.BytesIO(raw), read_dictionary=coded)
    batches, size = [], 0
    for batch in file.iter_batches(max(_BATCH_CELLS // max(len(names), 1), 1), use_threads=False):
        size += sum(_unpacked(column) for column in batch.columns)
        if size > limits.bytes:
            raise too_much(path, "more", limits.bytes, "max_bytes")
        batches.append(batch)
    if not batches:
        return file.schema_arrow.empty_table()
    return pa.Table.from_batches(batches)


def _unpacked(column: pa.Array) -> int:
    """Bytes of a column once its dictionary is written out."""
    if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
        lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
        return int(pc.sum(lengths).as_py() or 0) + 4 * len(column)
    return int(column.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
