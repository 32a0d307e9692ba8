"""Numbers as people write them, read by one format for a whole column.

A column may have one constant unit (``%``, ``‰``, a currency sign or ISO code before or after the
digits, any other word behind them), thousands separators (comma, point, apostrophe, blanks),
brackets or a trailing minus for negative values. ``25.7 %`` is 25.7.

All values together decide which mark is decimal: ``1,234.50`` in one row settles ``1,234`` in
another. Where none does, the column is :attr:`NumberColumn.ambiguous`; where few texts are no
numbers, or units differ, it has a :attr:`NumberColumn.doubt`. Both are asked, and nobody guesses.
"""

from __future__ import annotations

import calendar
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

COMMA_NUMBER = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)?(,\d*)?([eE][+-]?\d+)?$"
"""A number with a decimal comma, whose points group thousands."""

GROUPS = r"^[+-]?\d{1,3}(,\d{3})+$"
"""1,234 may be 1.234 or 1234."""

POINT_GROUPS = r"^[+-]?([1-9]\d{0,2}(\.\d{3})?|0)$"
"""1.234 beside 512 may be 1.234 or 1234."""

_LONGEST, _LONGEST_SIGN = 64, 4
_SAMPLE = 200
_ENOUGH = 0.9  # of the texts must be numbers of one format
_FEW = 20
_MOST_UNITS = 4
_CODE_DIGITS = 7

_ISO = """
AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP
BYN BZD CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP
GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR
KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK
MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR
SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS
UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWL
"""
_BEFORE = {*_ISO.split(), "%", "‰", "kr", "kr.", "Rs", "Rs.", "Fr", "Fr.", "zł", "Kč"}

_NO_UNITS = {name.lower() for name in (*calendar.month_name, *calendar.month_abbr)} - {""}
_NO_UNITS |= {"am", "pm", "a.m", "p.m", "e"}  # 1e is half a number

_ALIKE = str.maketrans(
    {**dict.fromkeys("\u00a0\u2007\u2009\u202f", " "), "’": "'", "−": "-", "–": "-", "—": "-"}
)
_NO_CENTS = re.compile(r"(?<=[0-9])[.,]--?(?![0-9])")  # 5,- and 5.-- are 5
_CODE = re.compile(r"[^\W\d_]\d|\d[^\W\d_]")
_SPELLED = re.compile(
    r"(?P<open>\(?) ?(?P<sign>[+-]?) ?(?P<before>[^0-9+(),.' -][^0-9+(),']*?)? ?(?P<inner>[+-]?) ?"
    r"(?P<opened>\(?) ?"
    r"(?P<body>(?:(?<![^\W\d_])[.,])?[0-9](?:[0-9.,' ]*[0-9])?[.,]?)(?P<power>[eE][+-]?[0-9]+)? ?"
    r"(?P<closed>\)?) ?(?P<behind>-?) ?(?P<after>[^0-9+() -][^0-9()]*?)? ?(?P<last>-?) ?"
    r"(?P<close>\)?)"
)


class NumberFormat(NamedTuple):
    """How the numbers of a column are written.

    Attributes:
        unit: as it is spelled, for example ``%`` or ``EUR``; '' for none.
        decimal: ``.`` or ``,``.
        thousands: what groups digits: ``,`` ``.`` ``'`` or a blank; '' for nothing.
    """

    unit: str
    decimal: str
    thousands: str


@dataclass(frozen=True)
class NumberColumn:
    """The distinct texts of a column as numbers.

    Attributes:
        values: of each text its number, or None where it is none.
        written: the format; None for plain numbers and for text.
        ambiguous: the text that could be two numbers and both of them, with a decimal point first;
            then no value is a number.
        doubt: why text that looks like numbers is not read so, in words; '' if there is nothing.
        wrong: the few texts that are no numbers where all others are, as placeholders are.
    """

    values: list[float | None]
    written: NumberFormat | None = None
    ambiguous: tuple[str, float, float] | None = None
    doubt: str = ""
    wrong: Sequence[str] = ()


class _Number(NamedTuple):
    """A text cut into what it says; `body` holds the digits and marks, `sign` is + - or (."""

    unit: str
    sign: str
    body: str
    power: str

    def value(self, written: NumberFormat, pattern: re.Pattern[str]) -> float | None:
        """The number in a format, of which `pattern` is the body; None if not written so."""
        if not pattern.fullmatch(self.body):
            return None
        digits = self.body.replace(written.thousands, "") if written.thousands else self.body
        size = float(digits.replace(written.decimal, ".") + self.power)
        return {"-": -size, "(": 0.0 - size}.get(self.sign, size)


_Readings = dict[NumberFormat, list[float | None]]


def read_number(text: str, decimal: str) -> float | None:
    """The number that a plain text says, or None."""
    if decimal == ",":
        if not re.match(COMMA_NUMBER, text) or not any(c.isdigit() for c in text):
            return None
        text = text.replace(".", "").replace(",", ".")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def read_column(
    spelled: Sequence[str], decimal: str = ".", *, known: bool = False, declared: bool = False
) -> NumberColumn:
    """The distinct texts of a column as numbers.

    Plain numbers come first: those with the table's decimal mark, or with points where that makes
    more sense. Else the format is sought in which most texts are written, nine of ten at least.

    Args:
        spelled: the texts, each once.
        decimal: the table's decimal mark.
        known: whether that mark is given or shown by other columns, and not only the usual one.
        declared: whether the user says that the column holds numbers.
    """
    plain = _read_plain(spelled, decimal)
    wrong, sure = _find_wrong(spelled, plain), known or declared
    if wrong and _look_written(wrong[:_SAMPLE]):
        return _read_written(spelled, decimal, plain, sure=sure, known=known)
    if not (wrong or sure or decimal == ",") and (text := _find_point_groups(spelled)):
        none: list[float | None] = [None] * len(spelled)
        return NumberColumn(none, ambiguous=(text, float(text), float(text.replace(".", ""))))
    return NumberColumn(plain, wrong=_find_few(wrong, len(spelled)))


def _read_written(
    spelled: Sequence[str], decimal: str, plain: list[float | None], *, sure: bool, known: bool
) -> NumberColumn:
    """A column by the format in which most of its texts are written; `plain` if there is none."""
    cut = [_cut(text) for text in spelled]
    units = Counter(number.unit for number in cut if number)
    unit = units.most_common(1)[0][0]
    mine = [number if number and number.unit == unit else None for number in cut]
    readings = _find_readings(mine, unit)
    if not readings:
        return NumberColumn(plain, doubt=_say_units(units, len(spelled)))
    written, values = _choose(readings, decimal)
    if len(readings) > 1 and None not in values and not sure:
        return NumberColumn([None] * len(spelled), ambiguous=_example(spelled, readings))
    doubt = "" if unit else _doubt_bare(written, [number for number in mine if number], sure, known)
    if doubt or plain.count(None) <= values.count(None):
        return NumberColumn(plain, doubt=doubt)
    return NumberColumn(
        values, written, wrong=_find_few(_find_wrong(spelled, values), len(spelled))
    )


def _find_wrong(spelled: Sequence[str], values: Sequence[float | None]) -> list[str]:
    """The texts that are no numbers."""
    return [text for text, value in zip(spelled, values, strict=True) if value is None]


def _find_point_groups(spelled: Sequence[str]) -> str:
    """A text whose point groups thousands or is a decimal mark; '' if some text shows which."""
    marked = [text for text in spelled if "." in text]
    if not marked or len(marked) == len(spelled):  # of all: one scale or another, no more
        return ""
    return marked[0] if all(re.match(POINT_GROUPS, text) for text in spelled) else ""


def _look_written(texts: Sequence[str]) -> bool:
    """Whether there are texts and half of them have a number in them."""
    return bool(texts) and 2 * sum(_cut(text) is not None for text in texts) >= len(texts)


def _find_few(wrong: Sequence[str], texts: int) -> Sequence[str]:
    """The texts that are no numbers if all others of a column are; V57 and 12a are codes."""
    few = texts > _FEW and len(wrong) <= (1 - _ENOUGH) * texts
    return wrong if few and may_be_placeholders(wrong) else ()


def may_be_placeholders(texts: Sequence[str]) -> bool:
    """Whether texts among numbers may mean that there is no value; codes such as V57 do not."""
    return not any(map(_CODE.search, texts))


def _read_plain(spelled: Sequence[str], decimal: str) -> list[float | None]:
    found = [read_number(text, decimal or ".") for text in spelled]
    if decimal == "," and None in found:
        points = [read_number(text, ".") for text in spelled]
        found = points if points.count(None) < found.count(None) else found
    return found


def _cut(text: str) -> _Number | None:
    """A text as sign, unit and digits; None if it is no number of any format."""
    if len(text) > _LONGEST:
        return None
    found = _SPELLED.fullmatch(_NO_CENTS.sub("", text.translate(_ALIKE)))
    if not found:
        return None
    sign = "".join(found[part] for part in ("sign", "inner", "behind", "last"))
    opened, closed = found["open"] + found["opened"], found["closed"] + found["close"]
    unit = _unit_of(found["before"] or "", found["after"] or "")
    if unit is None or len(opened) != len(closed) or len(sign + opened) > 1:
        return None
    return _Number(unit, sign + opened, found["body"], found["power"] or "")


@lru_cache(1024)
def _unit_of(before: str, after: str) -> str | None:
    """The unit that stands before and behind the digits; None if that is none."""
    if before and before not in _BEFORE and not _is_sign_of_money(before):
        return None
    if after and (after.lower().rstrip(".") in _NO_UNITS or not _is_unit(after)):
        return None
    return f"{before} {after}".strip()


def _is_sign_of_money(text: str) -> bool:
    return len(text) <= _LONGEST_SIGN and "Sc" in map(unicodedata.category, text)


def _is_unit(text: str) -> bool:
    """Whether a text is made of letters, of signs such as % and $, and of marks within."""
    signs = [c.isalpha() or c in "%‰‱°" or unicodedata.category(c) == "Sc" for c in text]
    return signs[0] and all(sign or c in " /.·^²³-" for sign, c in zip(signs, text, strict=True))


def _find_readings(numbers: Sequence[_Number | None], unit: str) -> _Readings:
    """The values in each format in which most texts are numbers; one format for equal values."""
    marks = {c for number in numbers if number for c in number.body if not c.isdigit()}
    found: _Readings = {}
    least = int((1 - _ENOUGH) * len(numbers))
    for written in _list_formats(unit, marks):
        values = _read_as(written, numbers[:_SAMPLE])
        if 2 * values.count(None) > len(values):
            continue
        values += _read_as(written, numbers[_SAMPLE:])
        if values.count(None) <= least and values not in found.values():
            found[written] = values
            least = values.count(None)
    return {written: values for written, values in found.items() if values.count(None) == least}


def _read_as(written: NumberFormat, numbers: Sequence[_Number | None]) -> list[float | None]:
    """The values in one format."""
    pattern = _body_pattern(written)
    return [number.value(written, pattern) if number else None for number in numbers]


def _list_formats(unit: str, marks: set[str]) -> list[NumberFormat]:
    """The formats that numbers with these marks may have."""
    found = []
    for thousands in ("", *sorted(marks)):
        decimals = [m for m in ".," if m in marks and m != thousands]
        usual = "," if thousands == "." else "."
        found += [NumberFormat(unit, decimal, thousands) for decimal in decimals or [usual]]
    return found


def _body_pattern(written: NumberFormat) -> re.Pattern[str]:
    """Digits and marks of a format; no leading zero, as codes have."""
    whole = "0|[1-9][0-9]*"
    if written.thousands:
        mark = re.escape(written.thousands)
        whole += f"|[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+"
        whole += f"|[1-9][0-9]?(?:{mark}[0-9]{{2}})+{mark}[0-9]{{3}}"  # lakh and crore
    return re.compile(f"(?:{whole})?(?:{re.escape(written.decimal)}[0-9]*)?")


def _choose(readings: _Readings, decimal: str) -> tuple[NumberFormat, list[float | None]]:
    """The reading with the table's decimal mark, or the only one."""
    with_mark = [item for item in readings.items() if item[0].decimal == decimal]
    return (with_mark or list(readings.items()))[0]


def _example(spelled: Sequence[str], readings: _Readings) -> tuple[str, float, float]:
    """A text that could be two numbers, and both, with a decimal point first."""
    point, comma = sorted(readings.items(), key=lambda item: item[0].decimal == ",")[:2]
    for text, one, other in zip(spelled, point[1], comma[1], strict=True):
        if one is not None and other is not None and one != other:
            return text, one, other
    raise AssertionError("equal readings")


def _doubt_bare(written: NumberFormat, numbers: Sequence[_Number], sure: bool, known: bool) -> str:
    """That numbers without a unit look like lists or phone numbers, in words.

    Few such as 1,5 may be lists of two whatever the column is declared to be.
    """
    bodies = [number.body for number in numbers]
    if not known and written[1:] == (",", "") and len(bodies) <= _FEW:
        return 'numbers with commas; if decimal marks, add decimal = "," under [data]'
    if sure or written.thousands not in (" ", ".") or written.decimal in "".join(bodies):
        return ""
    lengths = {sum(map(str.isdigit, body)) for body in bodies}
    alike = len(lengths) == 1 and min(lengths) >= _CODE_DIGITS
    dialled = written.thousands == " " and "+" in {number.sign for number in numbers}
    if not (alike or dialled):
        return ""
    return "digits in groups, as in phone numbers; declare it numeric if it is a number"


def _say_units(units: Counter[str], texts: int) -> str:
    """That numbers come in several units or in no one format, in words; '' if neither."""
    if units.total() < _ENOUGH * texts:
        return ""
    said = ", ".join(f"{unit or 'none'} {count}" for unit, count in units.most_common())
    if 2 <= len(units) <= _MOST_UNITS and texts > 2 * len(units):
        return f"numbers in several units ({said}); write them in one"
    if len(units) == 1 and max(units):
        return f"numbers in {said.rpartition(' ')[0]} that are not written alike"
    return ""
