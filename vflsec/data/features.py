"""What a table's columns mean: numeric, dated or categorical features, and sample ids."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.data.classes import in_order
from vflsec.data.number_formats import NumberFormat, may_be_placeholders, read_number
from vflsec.data.odd_values import describe_odd_values, write_missing
from vflsec.data.read_table import AGGREGATE, Frame, Numbers, as_texts, read_dates
from vflsec.errors import format_list, write_drop, write_setting

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 10_000
"""Rarer categories of one column are folded into :data:`RARE`."""

RARE = "(rare)"

_FEW = 20
_SOME = 200  # values of a column that are looked at for leading zeros
_CODE = "^0[0-9]+$"
_EXACT = 2.0**53  # from here on a float is no count
_ACCOUNTS = 5, 34  # digits of an account number; an IBAN has the most
_LONGEST, _LISTED = 64, 5  # of the texts that an error shows


@dataclass(frozen=True)
class Features:
    """Feature columns of one table.

    Attributes:
        values: (n, d) float64, NaN = missing; codes from 1 for categorical columns.
        categories: for each column None or its category names.
        folded: number of rare categories folded, by column.
        kinds: ``number``, ``date`` or ``category`` by column.
        doubtful: what in a column looks otherwise than it is read, in words.
        written: how numbers are written, by column, where it is not plainly.
        ambiguous: a text that could be two numbers, and both, by column that cannot be read.
        unsure: what a column holds that may be numbers and may be text, by column.
    """

    values: NDArray[np.float64]
    categories: tuple[tuple[str, ...] | None, ...]
    folded: dict[str, int]
    kinds: dict[str, str]
    doubtful: dict[str, str]
    written: dict[str, NumberFormat]
    ambiguous: dict[str, tuple[str, float, float]]
    unsure: dict[str, str]


class _Column(NamedTuple):
    """One feature column: ``number``, ``date`` or ``category``, and what is doubtful about it."""

    kind: str
    read: Numbers
    doubt: str = ""


def read_features(
    frame: Frame, names: Sequence[str], categorical: Collection[str], numeric: Collection[str]
) -> Features:
    """Read the feature columns `names`.

    A column is what it is declared to be. Undeclared, it is numeric if Parquet types it so or if
    all of its texts are numbers (:mod:`vflsec.data.number_formats`; plain ones in CSV only) or
    dates (:mod:`vflsec.data.dates`), else categorical.

    Raises:
        DataError: text in a numeric column, or an infinite value.
    """
    values = np.full((frame.rows, len(names)), np.nan)
    categories: list[tuple[str, ...] | None] = []
    found = Features(values, (), {}, {}, {}, {}, {}, {})
    for i, name in enumerate(names):
        column = _read_column(frame, name, name in categorical, name in numeric)
        found.kinds[name] = column.kind
        if column.kind == "category":
            values[:, i], known, rare = _coded(frame.columns[name])
            categories.append(known)
            found.folded.update({name: rare} if rare else {})
            distinct = len(known) + rare - (rare > 0)  # one stands for the rare ones
            there = frame.rows - frame.columns[name].null_count
            if not column.doubt and is_nearly_unique(distinct, there):
                doubt = f"{distinct} different texts in {there} rows{_ask_whether_id(name)}"
                column = column._replace(doubt=doubt)
        else:
            _check_finite(frame, name, column.read.values)
            values[:, i] = column.read.values
            categories.append(None)
        _note(found, name, column, declared=name in categorical or name in numeric)
    return replace(found, categories=tuple(categories))


def _note(found: Features, name: str, column: _Column, declared: bool) -> None:
    """Keep how a column is written, and what is doubtful about one that nobody declared."""
    if column.read.ambiguous:
        found.ambiguous[name] = column.read.ambiguous
    if column.read.written and column.kind == "number":
        found.written[name] = column.read.written
    unsure = _describe_unsure(name, column.read)
    if unsure and column.kind == "category" and not declared:
        found.unsure[name] = unsure
    elif column.doubt and not declared:
        found.doubtful[name] = column.doubt


def _describe_unsure(name: str, read: Numbers) -> str:
    """Why text that looks like numbers is not read so, in words; '' if there is nothing."""
    if not read.wrong:
        return read.doubt
    shown = [text[:_LONGEST] for text in read.wrong[:_LISTED]]
    return f"numbers but for texts such as {shown[0]!r}; leave these empty: " + write_missing(
        name, shown
    )


def _ask_whether_id(name: str) -> str:
    return f": an id? Leave it out: {write_drop([name])}"


def is_nearly_unique(distinct: int, there: int) -> bool:
    """Whether of `there` values nearly each is another one, as ids and free text are."""
    return distinct > max(_FEW, 0.8 * there)


def _read_column(frame: Frame, name: str, categorical: bool, numeric: bool) -> _Column:
    """A column as numbers or dates if it holds these and is no declared category."""
    array = frame.columns[name]
    if categorical or pa.types.is_boolean(array.type):
        return _Column("category", Numbers(np.empty(0)))
    found = frame.read_numbers(name, numeric)
    if len(found.bad):
        return _dated(frame, name, found, numeric)
    is_text = pa.types.is_string(array.type)
    if frame.typed and is_text and not (numeric or found.written):
        some = "numbers written as text; declare it numeric if so"
        return _Column("category", found, some if array.null_count < frame.rows else "")
    if pa.types.is_temporal(array.type):
        return _Column("date", found)
    return _Column("number", found, "" if numeric else _doubt_number(name, array, found))


def _doubt_number(name: str, array: pa.Array, found: Numbers) -> str:
    """That numbers look like codes or ids, or that few hide all others, in words."""
    text = pa.types.is_string(array.type)
    if text and pc.any(pc.match_substring_regex(array[:_SOME], _CODE)).as_py():
        option = f"--categorical {shlex.quote(name)}"
        codes = write_setting("categorical", [name], option)
        return f"numbers that begin with 0; if they are codes say {codes}"
    count = 0 if found.written and found.written.unit else _count_ids(found.values)
    if count:
        there = len(array) - array.null_count
        return f"{count} different whole numbers in {there} rows{_ask_whether_id(name)}"
    return describe_odd_values(name, found.values)


def _dated(frame: Frame, name: str, found: Numbers, declared: bool) -> _Column:
    """A column of texts that are not all numbers: dates, or a category with its doubt."""
    array, bad = frame.columns[name], found.bad
    day, why = read_dates(array)
    if day is not None:
        return _Column("date", Numbers(day))
    wrong = array[int(bad[0])].as_py()
    if declared:
        comma, unsure = read_number(wrong, ",") is not None, _describe_unsure(name, found)
        empty = "" if unsure else _write_empty(name, array, bad)
        raise frame.refuse(
            f"column {name!r}", "hold numbers (it is declared numeric)",
            f"{wrong!r} in {frame.row(int(bad[0]))}", "Correct it, or declare it categorical."
            + (f" For a decimal comma add {write_setting('decimal', ',')}." if comma else "")
            + (f" It holds {unsure}." if unsure and not comma else "")
            + (f" If it means no value, say {empty}." if empty and not comma else ""),
        )  # fmt: skip
    if why:
        doubt = f"dates whose {why}; write YYYY-MM-DD to have numbers"
    elif len(bad) < 0.1 * (frame.rows - array.null_count):
        shown = f"{len(bad)} values, such as {wrong!r}"
        empty = _write_empty(name, array, bad)
        doubt = f"{shown}, that are no numbers; if these are codes, set "
        doubt += f"{write_setting('categorical', [name])}; " + (
            f"if they mean no value, say {empty}" if empty else
            f"else correct them and set {write_setting('numeric', [name])}"
        )  # fmt: skip
    else:
        doubt = ""
    return _Column("category", found, doubt)


def _write_empty(name: str, array: pa.Array, bad: NDArray[np.int64]) -> str:
    """The setting that leaves the texts in the rows `bad` empty; '' for many, or for codes."""
    texts = pc.unique(as_texts(array.take(pa.array(bad)))).to_pylist()
    short = len(texts) <= _LISTED and max(map(len, texts)) <= _LONGEST
    return write_missing(name, texts) if short and may_be_placeholders(texts) else ""


def _count_ids(found: NDArray[np.float64]) -> int:
    """How many different whole numbers there are if they look like ids, else 0.

    Every row has another one, as row numbers, or nearly every row has and all are as long, as
    account numbers; amounts are not.
    """
    there = found[~np.isnan(found)]
    if len(there) <= _FEW or np.isinf(there).any() or not np.array_equal(there, np.trunc(there)):
        return 0
    distinct, low, high = len(np.unique(there)), int(there.min()), int(there.max())
    each = distinct == len(found) and max(-low, high) < _EXACT
    shortest, longest = _ACCOUNTS
    alike = low > 0 and shortest <= len(str(low)) == len(str(high)) <= longest
    return distinct if each or (alike and is_nearly_unique(distinct, len(there))) else 0


def _check_finite(frame: Frame, name: str, values: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        got = f"{values[bad[0]]} in {frame.row(int(bad[0]))}"
        raise frame.refuse(f"column {name!r}", "hold finite numbers", got)


def _coded(array: pa.Array) -> tuple[NDArray[np.float64], tuple[str, ...], int]:
    """Codes from 1 (NaN = missing), the category names, and how many were folded."""
    coded = as_texts(array).dictionary_encode()
    names = coded.dictionary.to_pylist()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    kept, rare = in_order(names), 0
    if len(names) > MOST_CATEGORIES:
        counts = np.bincount(codes[codes >= 0], minlength=len(names))
        by_count = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))
        kept = [*in_order([names[i] for i in by_count[:MOST_CATEGORIES]]), RARE]
        rare = len(names) - MOST_CATEGORIES
    place = {n: i + 1.0 for i, n in enumerate(kept)}
    lookup = np.array([place.get(n, float(len(kept))) for n in names] + [np.nan])
    return lookup[codes], tuple(kept), rare


def read_ids(frame: Frame, name: str) -> pd.Index:
    """Sample ids as trimmed text; ``1``, ``"1"`` and ``1.0`` in a column of whole numbers match.

    Raises:
        DataError: an id is missing or occurs twice, or is of a type of numbers in which another
            may have become the same.
    """
    import pandas as pd

    _check_exact(frame, name)
    array = as_texts(frame.column(name, "id"))
    missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    if len(missing):
        got = f"none in {frame.row(int(missing[0]))} ({len(missing)} in all)"
        remedy = "Delete the rows without one, or give them ids."
        raise frame.refuse_column("id", name, "have a value in every row", got, remedy)
    control = pc.match_substring_regex(array, r"[\x00-\x1f\x7f]")
    if pc.any(control).as_py():
        at = pc.index(control, True).as_py()
        got = f"{array[at].as_py()[:60]!r} in {frame.row(at)}"
        raise frame.refuse_column("id", name, "hold printable characters", got)
    index = pd.Index(array.to_numpy(zero_copy_only=False), dtype=object)
    if not _rises(array) and not index.is_unique:
        twice = [i for i, k in Counter(index.tolist()).items() if k > 1]
        raise frame.refuse_column(
            "id", name, "have each id once",
            f"{len(twice)} ids more than once: {format_list(twice, 5)}",
            f"Keep one row of each: {write_setting('duplicates', 'first', '--duplicates first')} "
            f"for equal rows, else {AGGREGATE}.",
        )  # fmt: skip
    return index


_DIGITS = {pa.float32(): 24, pa.float64(): 53}
"""Bits up to which such numbers tell all whole numbers apart."""


def _check_exact(frame: Frame, name: str) -> None:
    """Refuse ids in a float type that has one number for several of them."""
    array = frame.column(name, "id")
    bits = _DIGITS.get(array.type, 0)
    large = pc.greater_equal(pc.abs(array), 2.0**bits) if bits else None
    if large is not None and pc.any(large).as_py():
        at = pc.index(large, True).as_py()
        got = f"{array[at].as_py():.0f} of the type {array.type} in {frame.row(at)}"
        rule = f"hold integers or text, or numbers below 2^{bits}"
        raise frame.refuse_column("id", name, rule, got)


def _rises(array: pa.Array) -> bool:
    """Whether each text, or the whole number it says, is larger than the one before.

    Then all differ, without hashing any.
    """
    if len(array) < 2 or pc.all(pc.less(array[:-1], array[1:])).as_py():
        return True
    try:
        found = pc.cast(array, pa.int64())
    except pa.ArrowInvalid:
        return False
    return bool(pc.all(pc.less(found[:-1], found[1:])).as_py())
