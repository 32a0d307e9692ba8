"""Read one user table, CSV or Parquet, strictly: a bad file gives one error that says what to do.

Text is kept as text until a column's kind is known, so that ids and categories keep their spelling.
Nothing is ever unpickled.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from vflsec import check
from vflsec.errors import DataError

__all__ = ["MISSING", "Frame", "data_error", "numbers", "parse_frame", "read_frame", "texts"]

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null")
"""Texts that mean "no value" (after trimming)."""

FORMATS = (".csv", ".csv.gz", ".parquet", ".pq")


def data_error(where: object, name: str, rule: str, got: str, remedy: str = "") -> DataError:
    """The one phrasing of table errors: ``where: name must be rule, got value. remedy``."""
    return DataError(f"{where}: {name} must {rule}, got {got}.{' ' + remedy if remedy else ''}")


@dataclass(frozen=True)
class Frame:
    """One table as read.

    Attributes:
        path: the file.
        columns: by name, in file order; text for CSV, typed for Parquet.
        rows: number of data rows.
        digest: sha256 of the file's bytes.
        typed: whether the file says which columns are numbers (Parquet does, CSV does not).
    """

    path: Path
    columns: dict[str, pa.Array]
    rows: int
    digest: str
    typed: bool

    def column(self, name: str, role: str) -> pa.Array:
        """A column that must be there.

        Raises:
            DataError: it is not; the message names the nearest.
        """
        if name not in self.columns:
            raise data_error(
                self.path,
                f"{role} column {name!r}",
                "be in the table",
                f"the columns {listed(self.columns)}",
                check.nearest(name, list(self.columns)) or "Correct the name or add the column.",
            )
        return self.columns[name]

    def row(self, index: int) -> str:
        """What to call a data row in a message (the header is row 1)."""
        return f"row {index + 2}"


def listed(names: Iterable[object], most: int = 12) -> str:
    """Up to `most` names in quotes, and how many more there are."""
    items = [repr(str(n)) for n in names]
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def read_frame(path: str | Path) -> Frame:
    """Read a table.

    Raises:
        DataError: the file is missing, a folder, of another format, not UTF-8, not parsable, empty,
            without data rows, or has nameless or repeated columns.
    """
    path = Path(path)
    if not path.exists():
        raise data_error(path, "table", "be an existing file", "no such file", "Check the path.")
    if path.is_dir():
        raise data_error(path, "table", "be a file", "a folder", "Name the file in it.")
    kind = next((f for f in FORMATS if path.name.lower().endswith(f)), None)
    if kind is None:
        raise data_error(
            path,
            "table",
            f"be a file of type {', '.join(FORMATS)}",
            repr(path.suffix or path.name),
            "Export it as CSV or Parquet; other formats, pickles above all, are not read.",
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise data_error(path, "table", "be readable", error.strerror or str(error)) from None
    return parse_frame(path, raw, kind)


def parse_frame(path: Path, raw: bytes, kind: str = ".csv") -> Frame:
    """Read a table from bytes; `path` is what messages name.

    Raises:
        DataError: as :func:`read_frame`.
    """
    if not raw:
        raise data_error(path, "table", "have a header and rows", "an empty file")
    typed = kind in (".parquet", ".pq")
    table = _parquet(path, raw) if typed else _csv(path, raw, kind)
    names = [n.strip() for n in table.schema.names]
    _check_names(path, names)
    if table.num_rows == 0:
        raise data_error(path, "table", "have data rows", "a header only")
    columns = {n: _plain(path, n, table.column(i)) for i, n in enumerate(names)}
    return Frame(path, columns, table.num_rows, hashlib.sha256(raw).hexdigest(), typed)


def _csv(path: Path, raw: bytes, kind: str) -> pa.Table:
    if kind == ".csv.gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise data_error(path, "table", "be a gzip file", f"{error}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise data_error(
            path,
            "table",
            "be UTF-8 text",
            f"byte {raw[error.start]:#04x} in line {line}",
            "Save it again with the encoding UTF-8.",
        ) from None
    try:
        header = next((row for row in csv.reader(io.StringIO(text)) if row), [])
    except csv.Error as error:
        raise data_error(path, "table", "be comma-separated text", f"{error}") from None
    if not any(header):
        raise data_error(path, "table", "have a header and rows", "an empty file")
    _check_names(path, [n.strip() for n in header])
    try:
        return pa.csv.read_csv(
            io.BytesIO(text.encode()),
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise data_error(path, "table", "have data rows", "a header only") from None
        raise data_error(
            path,
            "table",
            "be comma-separated text with as many fields in each row as the header",
            str(error).removeprefix("CSV parse error: ").splitlines()[0].rstrip(".")[:200],
            "Quote fields that hold a comma or a line break.",
        ) from None


def _parquet(path: Path, raw: bytes) -> pa.Table:
    try:
        return pa.parquet.read_table(io.BytesIO(raw), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0].rstrip(".")[:200]
        raise data_error(path, "table", "be a Parquet file", first) from None


def _check_names(path: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        if not name.strip():
            raise data_error(
                path,
                f"column {i + 1}",
                "have a name",
                repr(name),
                "Name it; if it is a row index, write the table without it.",
            )
    twice = [n for n, k in Counter(names).items() if k > 1]
    if twice:
        raise data_error(
            path, "each column name", "appear once", f"{listed(twice)} twice", "Rename one."
        )


def _plain(path: Path, name: str, column: pa.ChunkedArray) -> pa.Array:
    """One array of text (trimmed, missing as null), bool, or numbers."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # pyarrow < 17 for zero or many chunks
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.cast(kind.value_type)
        kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        array = array.cast(pa.string())
        kind = array.type
    if pa.types.is_string(kind):
        array = pc.utf8_trim_whitespace(array)
        gone = pc.is_in(array, value_set=pa.array(MISSING))
        return pc.if_else(gone, pa.scalar(None, pa.string()), array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
        return pc.if_else(pc.is_nan(array), pa.scalar(None, pa.float64()), array)
    raise data_error(
        path,
        f"column {name!r}",
        "hold numbers, text or booleans",
        f"the type {kind}",
        "Convert it or leave it out with `drop`.",
    )


def texts(array: pa.Array) -> pa.Array:
    """The values as text, missing as null; whole numbers are written without a fraction."""
    if not pa.types.is_string(array.type):
        array = array.cast(pa.string())
    distinct = [v for v in pc.unique(array).to_pylist() if v is not None]
    whole = re.compile(r"[+-]?\d+\.0*")
    if distinct and all(whole.fullmatch(v) for v in distinct):
        array = pc.replace_substring_regex(array, r"\.0*$", "")
    return array


def numbers(array: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The values as float64 (NaN = missing), and the rows whose text is no number."""
    if pa.types.is_string(array.type):
        coded = array.dictionary_encode()
        found = [_number(t) for t in coded.dictionary.to_pylist()]
        lookup = np.array([np.nan if v is None else v for v in found] + [np.nan])
        bad = np.array([v is None for v in found] + [False])
        codes = coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
        return lookup[codes], np.flatnonzero(bad[codes])
    values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values.astype(np.float64), np.empty(0, dtype=np.int64)


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
