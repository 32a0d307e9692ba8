"""How a text table is written: encoding, separator, decimal mark. Found out, and said.

Found out without being told: the separator (``,`` ``;`` tab ``|``), a byte-order mark, Excel's line
``sep=;``, and decimal commas in files that are not separated by commas. An encoding cannot be told
from another by looking, so text that is not UTF-8 is an error that names the likely encoding and
the option that reads it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from vflsec.core import check
from vflsec.data.number_formats import COMMA_NUMBER, GROUPS
from vflsec.errors import DataError, data_error, write_setting

SEPARATORS = (",", ";", "\t", "|")
_SAMPLE_CHARS, _SAMPLE_RECORDS = 1 << 18, 100


@dataclass(frozen=True)
class Dialect:
    """What is known of a text table; '' = to be found out.

    Attributes:
        separator: one character between fields.
        decimal: ``.`` or ``,``; with a comma, points may group thousands (``1.234,5``).
        encoding: of the bytes, for example ``utf-8``, ``latin-1``, ``utf-16``.
    """

    separator: str = ""
    decimal: str = ""
    encoding: str = ""

    def __post_init__(self) -> None:
        wrong = len(self.separator) != 1 or self.separator in '"\r\n\0'
        if self.separator and (wrong or not self.separator.isascii()):
            rule = "one ASCII character, such as ','"
            raise check.fail("data: separator", rule, self.separator)
        if self.decimal not in ("", ".", ","):
            raise check.fail("data: decimal", "'.' or ','", self.decimal)
        if self.encoding:
            try:
                known = codecs.lookup(self.encoding)
            except (LookupError, ValueError):
                known = None
            if known is None or not getattr(known, "_is_text_encoding", True):
                rule = "a text encoding, such as 'utf-8'"
                raise check.fail("data: encoding", rule, self.encoding)

    @property
    def said(self) -> str:
        """What was found out and is not the plain form, in words; '' for plain CSV."""
        words = {"\t": "tabs", "|": "'|'", ";": "';'", ",": "','"}
        parts = []
        if self.separator not in ("", ","):
            parts.append(f"separated by {words.get(self.separator, repr(self.separator))}")
        if self.decimal == ",":
            parts.append("decimal commas")
        if self.encoding not in ("", "utf-8"):
            parts.append(f"encoding {self.encoding}")
        return ", ".join(parts)


def decode(path: Path, raw: bytes, dialect: Dialect) -> tuple[str, Dialect]:
    """The text and its encoding, without byte-order mark.

    Raises:
        DataError: the bytes are not in the encoding (UTF-8 if none is given), or hold NUL.
    """
    encoding = "utf-8-sig" if dialect.encoding in ("", "utf-8") else dialect.encoding
    try:
        text = raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, raw, error, dialect.encoding) from None
    except UnicodeError as error:
        raise _wrong_encoding(path, dialect.encoding, str(error)) from None
    at = text.find("\0")
    if at >= 0:
        line = text.count("\n", 0, at) + 1
        remedy = f"If it is UTF-16, add {write_setting('encoding', 'utf-16')}."
        raise data_error(path, "table", "be text", f"a NUL byte in line {line}", remedy)
    return text, replace(dialect, encoding=dialect.encoding or "utf-8")


def _wrong_encoding(path: Path, given: str, got: str) -> DataError:
    return data_error(
        path, "table", f"be text in the encoding {given!r}", got, "Leave it out for UTF-8."
    )


def _not_utf8(path: Path, raw: bytes, error: UnicodeDecodeError, given: str) -> DataError:
    line = raw[: error.start].count(b"\n") + 1
    byte = raw[error.start : error.start + 1]
    got = f"byte {byte[0]:#04x} in line {line}" if byte else f"its end in line {line}"
    if given:
        return _wrong_encoding(path, given, got)
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        name = "utf-32"
    elif raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    elif any(0x80 <= b <= 0x9F for b in raw[error.start : error.start + 4096]):
        name = "windows-1252"
    else:
        name = "latin-1"
    hint = f"In {name} it is {byte.decode(name, 'replace')!r}"
    hint = f"It begins like {name}" if name.startswith("utf") else hint
    return data_error(
        path, "table", "be UTF-8 text", got, f"{hint}: if that is right, add "
        f"{write_setting('encoding', name, f'--encoding {name}')}, else save it again.",
    )  # fmt: skip


def detect_dialect(text: str, dialect: Dialect) -> tuple[str, Dialect]:
    """The text without Excel's first line, and the separator.

    A separator must cut the first records into equally many fields, at least two; of several the
    one that makes most. Where none does, it is that of the header, and reading says what is wrong.
    """
    told = re.match(r"sep=(.)\r?\n", text)
    if told:
        text = text[told.end() :]
    if dialect.separator:
        return text, dialect
    if told:
        return text, replace(dialect, separator=told.group(1))
    widths = {s: _widths(text, s) for s in SEPARATORS}
    even = {s: w[0] for s, w in widths.items() if w and w[0] > 1 and set(w) == {w[0]}}
    first = even or {s: w[0] for s, w in widths.items() if w and w[0] > 1}
    if not even and widths[","] and widths[","][0] > 1:
        return text, replace(dialect, separator=",")
    return text, replace(dialect, separator=max(first, key=lambda s: first[s], default=","))


def _widths(text: str, separator: str) -> list[int]:
    """Fields of each of the first records; records without any are left out."""
    sample = text[:_SAMPLE_CHARS]
    if len(text) > _SAMPLE_CHARS:
        sample = sample[: sample.rfind("\n") + 1] or sample
    out: list[int] = []
    try:
        for record in csv.reader(io.StringIO(sample, newline=None), delimiter=separator):
            if record:
                out.append(len(record))
            if len(out) >= _SAMPLE_RECORDS:
                break
    except csv.Error:
        return out[:1]
    return out


def find_header(text: str, separator: str) -> list[str]:
    """The fields of the first record that has any.

    Raises:
        csv.Error: the text is no table.
    """
    for part in (text[: 8 * _SAMPLE_CHARS], text):
        reader = csv.reader(io.StringIO(part, newline=None), delimiter=separator)
        found = next((row for row in reader if row), [])
        if found:
            return found
    return []


def find_decimal(columns: Iterable[pa.Array], separator: str) -> str:
    """``,`` if some column holds nothing but numbers with decimal commas, else ``.``.

    A comma before exactly three digits may group thousands, so it decides nothing. In a file that
    is separated by commas nothing is guessed: a quoted ``"1,5"`` may mean anything.
    """
    if separator == ",":
        return "."
    for column in columns:
        if not pa.types.is_string(column.type):
            continue
        if not pc.any(pc.match_substring(column, ",")).as_py():
            continue
        if not pc.all(pc.match_substring_regex(column, COMMA_NUMBER)).as_py():
            continue
        with_comma = column.filter(pc.match_substring(column, ","))
        if not pc.all(pc.match_substring_regex(with_comma, GROUPS)).as_py():
            return ","
    return "."
