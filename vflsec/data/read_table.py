"""Read one user table strictly: a bad file gives one error that says what to do.

Text is kept as text until a column's kind is known, so that ids and categories keep their spelling.
Nothing is ever unpickled, and no more is read than the limits allow (:mod:`vflsec.data.limits`).
How a text table is written is found out where it can be (:mod:`vflsec.data.dialect`).
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import re
import shlex
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.data.dates import compute_days, is_temporal, text_days
from vflsec.data.dialect import Dialect, decode, detect_dialect, find_decimal, find_header
from vflsec.data.limits import Limits, check_size, gunzip, parquet_table, too_much
from vflsec.data.number_formats import POINT_GROUPS, NumberFormat, read_column
from vflsec.data.office_tables import OFFICE, read_office
from vflsec.errors import (
    DataError,
    VflsecError,
    data_error,
    first_line,
    format_list,
    show_place,
    write_setting,
)

T = TypeVar("T")

AGGREGATE = write_setting('aggregate = { COLUMN = "mean" }', option="--aggregate COLUMN=mean")
_THERE = "be an existing file"
_SHOW_MARK = "show which mark is decimal"

MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null")
"""Texts that mean "no value" (after trimming)."""

_EXAMPLES = 6  # that a message shows
_FIRST = 200  # rows that are looked at before all others

FORMATS = (".csv", ".csv.gz", ".parquet", ".pq", *OFFICE)


@dataclass(frozen=True)
class Numbers:
    """A column as numbers.

    Attributes:
        values: (n,) float64, NaN = missing or no number.
        bad: rows whose text is no number.
        written: how the numbers are written, None if plainly.
        ambiguous: a text that could be two numbers and both of them, see
            :class:`vflsec.data.number_formats.NumberColumn`.
        doubt, wrong: why text that looks like numbers is not read so, see there.
    """

    values: NDArray[np.float64]
    bad: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    written: NumberFormat | None = None
    ambiguous: tuple[str, float, float] | None = None
    doubt: str = ""
    wrong: Sequence[str] = ()


@dataclass(frozen=True)
class Frame:
    """One table as read.

    Attributes:
        path: the file.
        columns: by name, in file order; text for CSV, typed for Parquet.
        rows: number of data rows.
        digest: sha256 of the file's bytes.
        typed: whether the file says which columns are numbers (Parquet does, CSV does not).
        dialect: how a text table was read.
        mark_known: whether its decimal mark is given, or shown by a column, and not only usual.
        first_rows: (rows,) the data row of the file that each row was first, where several became
            one; else None.
        left_out: columns that are gone since, for nothing said how their rows become one.
    """

    path: Path
    columns: dict[str, pa.Array]
    rows: int
    digest: str
    typed: bool
    dialect: Dialect = field(default_factory=Dialect)
    mark_known: bool = False
    first_rows: NDArray[np.int64] | None = None
    left_out: tuple[str, ...] = ()

    @property
    def read_as(self) -> str:
        """What it was read as: a format, or how a text is written; '' for a plain text."""
        office = OFFICE.get(self.path.suffix.lower(), "")
        return office or ("Parquet" if self.typed else self.dialect.said)

    def read_numbers(self, column: str | pa.Array, declared: bool = False) -> Numbers:
        """A column, or some of its values, as numbers with the table's decimal mark.

        Args:
            column: its name, or values.
            declared: whether the user says that it holds numbers.
        """
        array = self.columns[column] if isinstance(column, str) else column
        return read_numbers(array, self.dialect.decimal, self.mark_known, declared)

    def numbers(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The values of a column as float64 (NaN = missing), and the rows that hold no number.

        Raises:
            DataError: they are numbers, but nothing says which.
        """
        found = self.read_numbers(name)
        if found.ambiguous:
            text, point, comma = found.ambiguous
            what, got = f"column {name!r}", f"{text!r} ({point:.12g} or {comma:.12g}?)"
            remedy = f"Say {write_setting('decimal', '.', '--decimal .')}, or a comma."
            raise self.refuse(what, _SHOW_MARK, got, remedy)
        return found.values, found.bad

    def column(self, name: str, role: str) -> pa.Array:
        """A column that must be there.

        Raises:
            DataError: it is not; the message names the nearest.
        """
        if name not in self.columns:
            raise self.unknown(f"{role} column", name, self.columns)
        return self.columns[name]

    def unknown(self, what: str, got: str, known: Iterable[str]) -> VflsecError:
        """The error for a name that is none of the `known`."""
        return check.unknown(f"{show_place(self.path)}: {what}", got, known, DataError)

    def refuse(self, name: str, rule: str, got: str, remedy: str = "") -> DataError:
        """The error for something in this table, see :func:`data_error`."""
        return data_error(self.path, name, rule, got, remedy)

    def refuse_column(
        self, role: str, name: str, rule: str, got: str, remedy: str = ""
    ) -> DataError:
        """The error for a column, such as the label."""
        return self.refuse(f"{role} column {name!r}", rule, got, remedy)

    def row(self, index: int) -> str:
        """What to call a data row in a message (the header is row 1)."""
        at = index if self.first_rows is None else int(self.first_rows[index])
        return f"row {at + 2}"


def split_by_party(
    key: str, named: Mapping[str, T], frames: Mapping[str, Frame]
) -> dict[str, dict[str, T]]:
    """What is said of columns, by party: of ``party.column``, else of each that has the column.

    Args:
        key: of the ``[data]`` section that says it, for the message.
        named: what is said, by column.
        frames: the table of each party.

    Raises:
        ConfigError: no table has a column.
    """
    out: dict[str, dict[str, T]] = {}
    for name, said in named.items():
        party, _, column = name.partition(".")
        holders = {p: name for p, frame in frames.items() if name in frame.columns}
        if not holders and party in frames and column in frames[party].columns:
            holders = {party: column}
        if not holders:
            known = sorted({c for frame in frames.values() for c in frame.columns})
            raise check.unknown(f"data: {key}", name, known)
        for p, c in holders.items():
            out.setdefault(p, {})[c] = said
    return out


def change_tables(
    frames: Mapping[str, Frame], change: Callable[[Frame, Sequence[str]], Frame]
) -> dict[str, Frame]:
    """Each table changed once, however many parties share it: by the table and these parties."""
    made: dict[int, Frame] = {}
    for frame in frames.values():
        if id(frame) not in made:
            made[id(frame)] = change(frame, [p for p in frames if frames[p] is frame])
    return {p: made[id(frame)] for p, frame in frames.items()}


def refuse_ambiguous(found: Iterable[tuple[Path, str, tuple[str, float, float]]]) -> None:
    """Refuse columns of numbers of which nothing says what their mark means.

    Args:
        found: of each its file, its name, and a text with the two numbers that it could be.

    Raises:
        DataError: there is one.
    """
    columns = list(found)
    if not columns:
        return
    files = list(dict.fromkeys(path for path, _, _ in columns))
    names = list(dict.fromkeys(name for _, name, _ in columns))
    said = [
        f"{text!r}" + (f" in {name!r}" if len(names) > 1 else "")
        + (f" of {path}" if len(files) > 1 else "") + f" ({point:.12g} or {comma:.12g}?)"
        for path, name, (text, point, comma) in columns
    ]  # fmt: skip
    options = " ".join(f"--numeric {shlex.quote(name)}" for name in names)
    _, point, comma = columns[0][2]
    raise data_error(
        files[0] if len(files) == 1 else "data",
        f"column{'s' if len(names) > 1 else ''} {format_list(names)}",
        _SHOW_MARK,
        "; ".join(said[:_EXAMPLES]),
        f"For {point:.12g} say {write_setting('numeric', names, options)}; for "
        f'{comma:.12g} also decimal = "," (`--decimal ,`). If it is no number, say categorical.',
    )


def refuse_doubtful(found: Iterable[tuple[Path, str, str]]) -> None:
    """Refuse columns of which most texts are numbers, and not all are of one format.

    Args:
        found: of each its file, its name, and what it holds, in words.

    Raises:
        DataError: there is one.
    """
    columns = list(found)
    if not columns:
        return
    files = list(dict.fromkeys(path for path, _, _ in columns))
    names = list(dict.fromkeys(name for _, name, _ in columns))
    options = " ".join(f"--categorical {shlex.quote(name)}" for name in names)
    raise data_error(
        files[0] if len(files) == 1 else "data",
        f"column{'s' if len(names) > 1 else ''} {format_list(names)}",
        "hold numbers of one format, or be declared",
        "; and ".join(doubt for _, _, doubt in columns[:_EXAMPLES]),
        f"To keep texts say {write_setting('categorical', names, options)}.",
    )


def _find_near(path: Path) -> str:
    """The file with nearly that name; else from where the paths of a scenario start."""
    try:
        beside = [p.name for p in path.parent.iterdir()]
    except OSError:
        beside = []
    start = "Paths in a scenario start from its folder." if path.is_absolute() else ""
    return check.nearest(path.name, beside) or start


def read_frame(
    path: str | Path, dialect: Dialect | None = None, limits: Limits | None = None
) -> Frame:
    """Read a table.

    Args:
        path: the file.
        dialect: what is known of a text table; the rest is found out.
        limits: the most that is read.

    Raises:
        DataError: the file is missing, no plain file, of another format, too large, not in its
            encoding, not parsable, empty, without data rows, or has nameless or repeated columns.
    """
    path = Path(path)
    try:
        there, plain, folder = path.exists(), path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or holds NUL
        shown = str(path) if len(str(path)) < 200 else f"{str(path)[:80]}... ({len(str(path))})"
        why = getattr(error, "strerror", None) or str(error)
        raise data_error(repr(shown), "table", _THERE, why) from None
    if not plain:
        got = "a folder" if folder else "a device or a pipe" if there else "none"
        raise data_error(path, "table", _THERE, got, "" if there else _find_near(path))
    kind = next((f for f in FORMATS if path.name.lower().endswith(f)), None)
    if kind is None:
        got = repr(path.suffix or path.name)
        rule = f"be a file of type {', '.join(FORMATS)}"
        raise data_error(path, "table", rule, got)
    limits = limits or Limits()
    try:
        size = path.stat().st_size
        if size > limits.bytes:
            raise too_much(path, f"{size:,}", limits.bytes, "max_bytes")
        raw = path.read_bytes()
    except OSError as error:
        raise DataError.unreadable(show_place(path), error) from None
    return parse_frame(path, raw, kind, dialect, limits)


def parse_frame(
    path: Path, raw: bytes, kind: str = ".csv", dialect: Dialect | None = None,
    limits: Limits | None = None,
) -> Frame:  # fmt: skip
    """Read a table from bytes; `path` is what messages name.

    Raises:
        DataError: as :func:`read_frame`.
    """
    dialect, limits = dialect or Dialect(), limits or Limits()
    if not raw:
        raise _no_rows(path)
    given, digest = dialect.decimal, hashlib.sha256(raw).hexdigest()
    typed = _parquet(path, raw, limits) if kind in (".parquet", ".pq") else None
    if kind in OFFICE:
        found = read_office(path, raw, kind, limits)
        if isinstance(found, bytes):
            raw, kind, dialect = found, ".csv", replace(dialect, separator="\t", encoding="utf-8")
        else:
            typed = found
    if typed is not None:
        table, dialect, sound = typed, Dialect(decimal=given or "."), False
    else:
        table, dialect, sound = _csv(path, raw, kind, dialect, limits)
    names = [n.strip() for n in table.schema.names]
    check_names(path, names)
    if table.num_rows == 0:
        raise _no_rows(path)
    columns = {n: _plain(path, n, column, sound) for n, column in zip(names, table.columns)}
    if not dialect.decimal:
        decimal = find_decimal(columns.values(), dialect.separator)
        dialect = replace(dialect, decimal=decimal)
    known = bool(given) or dialect.decimal == ","
    return Frame(path, columns, table.num_rows, digest, typed is not None, dialect, known)


def _csv(
    path: Path, raw: bytes, kind: str, dialect: Dialect, limits: Limits
) -> tuple[pa.Table, Dialect, bool]:
    """The table, how it is written, and whether no value holds a NUL."""
    if kind == ".csv.gz":
        try:
            raw = gunzip(path, raw, limits)
        except (OSError, EOFError, zlib.error) as error:
            raise data_error(path, "table", "be a gzip file", f"{error}", _TEXT) from None
    _refuse_binary(path, raw)
    text, dialect = decode(path, raw, dialect)
    text, dialect = detect_dialect(text, dialect)
    what = f"text separated by {dialect.separator!r}"
    try:
        header = find_header(text, dialect.separator)
    except csv.Error as error:
        raise data_error(path, "table", f"be {what}", f"{error}") from None
    if not any(n.strip() for n in header):
        raise _no_rows(path)
    held = len(header) - next(i for i, n in enumerate(reversed(header)) if n.strip())
    check_names(path, [n.strip() for n in header[:held]])
    rows = text.count("\n") or text.count("\r")  # line breaks within fields count too: no more
    check_size(path, rows, len(header), limits, "about ")
    try:
        table = pa.csv.read_csv(
            io.BytesIO(text.encode()),
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise _no_rows(path) from None
        got = first_line(str(error).removeprefix("CSV parse error: "))
        rule = f"be {what} with as many fields in each row as the header"
        remedy = f"Quote such fields, or name the {write_setting('separator', ';')}."
        raise data_error(path, "table", rule, got, remedy) from None
    return _trimmed(path, table, held), dialect, "\0" not in text


def _trimmed(path: Path, table: pa.Table, held: int) -> pa.Table:
    """Without the nameless columns and the rows that spreadsheets write behind the last value.

    Only `held` columns have names; those behind them must be empty.
    """
    for column in table.columns[held:]:
        if pc.any(pc.not_equal(pc.utf8_trim_whitespace(column), "")).as_py():
            check_names(path, [n.strip() for n in table.schema.names])
    table = table.select(range(held))
    rows = table.num_rows
    while rows and not any(column[rows - 1].as_py().strip() for column in table.columns):
        rows -= 1
    return table.slice(0, rows)


_BINARY = {
    b"PAR1": ("a Parquet file", "Name it .parquet."),
    b"\x1f\x8b": ("a gzip file", "Name it .csv.gz."),
    b"PK\x03\x04": ("a zip archive or Excel workbook", "Unpack it, or name it .xlsx."),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", "Export it as CSV."),
}


def _refuse_binary(path: Path, raw: bytes) -> None:
    """Name what is no text, before it is taken for text in another encoding."""
    for start, (what, remedy) in _BINARY.items():
        if raw.startswith(start):
            raise data_error(path, "table", "be text", what, remedy)


def _parquet(path: Path, raw: bytes, limits: Limits) -> pa.Table:
    try:
        table = parquet_table(path, raw, limits)
        return table.drop_columns([n for n in table.schema.names if _INDEX.fullmatch(n)])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise data_error(path, "table", "be a Parquet file", first_line(error), _TEXT) from None


_TEXT = "If it is text, name it .csv."
_INDEX = re.compile(r"__index_level_\d+__")
"""How pandas calls an index without a name, which is no column."""


def _no_rows(path: Path) -> DataError:
    return data_error(path, "table", "have rows below its header", "none")


_NAMELESS = "Name it in the first line; an index that pandas wrote is left out by index=False."


def check_names(path: object, names: list[str]) -> None:
    """Refuse columns without a name of their own that can be shown."""
    for i, name in enumerate(names):
        if not name.strip():
            raise data_error(path, f"column {i + 1}", "have a name", repr(name), _NAMELESS)
        bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs")), "")
        if bad:
            got = f"{name[:60]!r} with {bad!r}"
            raise data_error(path, f"column name {i + 1}", "be printable", got)
    twice = [n for n, k in Counter(names).items() if k > 1]
    if twice:
        got = f"{format_list(twice)} twice"
        if all(re.fullmatch(r"[-+]?[0-9]+([.,][0-9]+)?", n.strip()) for n in names):
            got += ": a file without a line of names?"
        raise data_error(path, "each column name", "appear once", got)


def _plain(path: Path, name: str, column: pa.ChunkedArray, sound: bool) -> pa.Array:
    """One array of text (trimmed, missing as null), bool, dates or times, or numbers.

    Text that is `sound` is known to be UTF-8 without NUL.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # pyarrow < 17 for zero or many chunks
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if pa.types.is_dictionary(kind):
        _check_text(path, name, array.dictionary)
        array = array.cast(kind.value_type)
        kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        array = array.cast(pa.string())
        kind = array.type
    if pa.types.is_string(kind):
        if not sound:
            _check_text(path, name, array)
        array = pc.utf8_trim_whitespace(array)
        gone = pc.is_in(array, value_set=pa.array(MISSING))
        return pc.if_else(gone, pa.scalar(None, pa.string()), array)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or is_temporal(kind):
        return array
    if pa.types.is_decimal(kind):
        try:
            return array.cast(pa.int64())  # keys of databases: whole numbers beyond 2^53
        except pa.ArrowInvalid:
            return array.cast(pa.float64())
    if pa.types.is_floating(kind):
        kind = pa.float64() if pa.types.is_float16(kind) else kind
        array = array.cast(kind)
        return pc.if_else(pc.is_nan(array), pa.scalar(None, kind), array)
    what, got = f"column {name!r}", f"the type {kind}"
    raise data_error(path, what, "hold numbers, text, booleans or dates", got)


def _check_text(path: Path, name: str, array: pa.Array) -> None:
    """Refuse text that is none: bytes that are not UTF-8, and NUL."""
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        what = f"column {name!r}"
        raise data_error(path, what, "hold UTF-8 text", first_line(error)) from None
    nul = pc.match_substring(array, "\0")
    if pc.any(nul).as_py():
        at = pc.index(nul, True).as_py()
        got = f"a NUL byte in {array[at].as_py()[:40]!r}"
        raise data_error(path, f"column {name!r}", "hold text", got)


def as_texts(array: pa.Array) -> pa.Array:
    """The values as text, missing as null; whole numbers are written as their digits."""
    if pa.types.is_duration(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_floating(array.type):  # written as text, 1e12 is "1e+12"
        with contextlib.suppress(pa.ArrowInvalid):
            array = array.cast(pa.int64())
    if not pa.types.is_string(array.type):
        array = array.cast(pa.string())
    if pc.all(pc.match_substring_regex(array, r"^[+-]?\p{Nd}+\.0*$")).as_py():
        array = pc.replace_substring_regex(array, r"\.0*$", "")
    return array


def read_numbers(
    array: pa.Array, decimal: str = ".", known: bool = False, declared: bool = False
) -> Numbers:
    """The values as numbers; dates of a typed table are days, see :mod:`vflsec.data.dates`.

    Text is read as :func:`vflsec.data.number_formats.read_column` does.
    """
    if pa.types.is_string(array.type):
        slow = decimal == "," or (not (known or declared) and _may_group(array))
        at_once = None if slow else _plain_floats(array)
        if at_once is not None:
            return Numbers(at_once)
        coded = array.dictionary_encode()
        found = read_column(coded.dictionary.to_pylist(), decimal, known=known, declared=declared)
        lookup = np.array([np.nan if v is None else v for v in found.values] + [np.nan])
        bad = np.array([v is None for v in found.values] + [False])
        codes = coded.indices.fill_null(len(found.values)).to_numpy(zero_copy_only=False)
        return Numbers(
            lookup[codes], np.flatnonzero(bad[codes]), found.written, found.ambiguous,
            found.doubt, found.wrong,
        )  # fmt: skip
    if is_temporal(array.type):
        array = compute_days(array)
    values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return Numbers(values.astype(np.float64))


def _may_group(array: pa.Array) -> bool:
    """Whether points in these texts may group thousands."""
    for some in (array[:_FIRST], array):
        if not pc.all(pc.match_substring_regex(some, POINT_GROUPS)).as_py():
            return False
    return bool(pc.any(pc.match_substring(array, ".")).as_py())


def _plain_floats(array: pa.Array) -> NDArray[np.float64] | None:
    """The values at once if all are finite numbers as Arrow reads them; :func:`float` agrees."""
    try:
        found = pc.cast(array, pa.float64())
    except pa.ArrowInvalid:
        return None
    if not pc.all(pc.is_finite(found)).as_py():
        return None
    return found.fill_null(np.nan).to_numpy(zero_copy_only=False).astype(np.float64)


def read_dates(array: pa.Array) -> tuple[NDArray[np.float64] | None, str]:
    """The days that a text column says (NaN = missing), or None and why it is no date."""
    if not pa.types.is_string(array.type):
        return None, ""
    first = next((v for v in array[:50].to_pylist() if v is not None), "")
    if not first[:1].isdigit():
        return None, ""
    coded = array.dictionary_encode()
    found, why = text_days(coded.dictionary.to_pylist())
    if found is None:
        return None, why
    codes = coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return np.append(found, np.nan)[codes], ""
