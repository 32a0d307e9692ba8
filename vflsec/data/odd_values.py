"""Values that can hardly be meant: far beyond all others, codes, or the same one everywhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.data.number_formats import read_number
from vflsec.data.read_table import Frame, as_texts, change_tables, split_by_party
from vflsec.data.source import PartyData
from vflsec.errors import DataError, format_count, write_setting

FAR = 10.0
"""Ranges of the other values from which on a value is far away."""

_SCALE = 1e6  # ranges of the middle half, from which on any number of values is far away, and their
# spread hides all others
_SAMPLE = 2000  # values that are looked at first
_LEAST = 20
_CORE = 3  # different values that the others must have
_MOST = 3  # different values at either end that may be far away


def describe_odd_values(name: str, values: NDArray[np.float64]) -> str:
    """That few values can hardly be meant, in words with what leaves them empty; or ''.

    They lie far beyond all others, such as 999999 or 1e30, and flatten these, since columns are
    scaled by mean and standard deviation; or they look like the codes of missing values, such as
    99 in a column of ages.

    Args:
        name: of the column.
        values: (n,) its values, NaN = missing.
    """
    there = values[~np.isnan(values)]
    if len(there) < _LEAST or np.isinf(there).any():
        return ""
    ends = np.array([there.min(), there.max()])
    sample = np.unique(np.append(there[:: -(-len(there) // _SAMPLE)], ends))
    if not any(_count_far(sample)) and not any(_is_code(v) for v in ends):
        return ""
    distinct, rows = np.unique(there, return_counts=True)
    low, high = _count_far(distinct)
    core = slice(low, len(distinct) - high)
    codes = _find_codes(distinct[core], rows[core])
    odd = np.concatenate([distinct[:low], codes, distinct[len(distinct) - high :]])
    if not len(odd):
        return ""
    count, shown = int(rows[np.isin(distinct, odd)].sum()), [_write(v) for v in odd[:_MOST]]
    rest = distinct[~np.isin(distinct, odd)]
    where = "far beyond" if low + high else "apart from"
    more = ", ..." if len(odd) > _MOST else ""
    return (
        f"{format_count(count, 'value')} ({', '.join(shown)}{more}) {where} all others "
        f"({rest[0]:g} to {rest[-1]:g}): missing values or errors? Leave them empty: "
        + write_missing(name, shown)
    )


def refuse_flattened(name: str, values: NDArray[np.float64], what: str, remedy: str = "") -> None:
    """Refuse a column in which some values are so far away that scaling makes one of all others.

    A long tail, or a share that is near 0 in most rows, is a column as any other.

    Args:
        name: of the column.
        values: (n,) its values, NaN = missing.
        what: it is, in the error.
        remedy: what may be done beside leaving these values empty.

    Raises:
        DataError: the middle half of the different values is less than a millionth of their
            standard deviation wide, and would not be without those that are far away.
    """
    there = values[~np.isnan(values)]
    if len(there) < _LEAST or np.isinf(there).any():
        return
    share = _compute_width(there)
    if share * _SCALE >= 1:
        return
    distinct = np.unique(there)
    low, high = _count_far(distinct)
    core = there[(there >= distinct[low]) & (there <= distinct[-1 - high])]
    if not low + high or _compute_width(core) * _SCALE < 1:
        return
    raise DataError.must(
        what, "have values that differ once they are scaled",
        f"half of them within {share:.1g} standard deviations",
        f"{describe_odd_values(name, values).rstrip('.')}. {remedy}".rstrip(),
    )  # fmt: skip


def _compute_width(values: NDArray[np.float64]) -> float:
    """How many standard deviations wide the middle half of different values is; inf of few."""
    scaled = values / (np.abs(values).max() or 1.0)  # lest a square overflows
    sample = np.unique(scaled[:: -(-len(scaled) // _SAMPLE)])
    if len(sample) < _LEAST:
        return np.inf
    return float(np.subtract(*np.quantile(sample, (0.75, 0.25))) / scaled.std())


def write_missing(name: str, texts: Sequence[str]) -> str:
    """The setting, and the option, that leave the values `texts` of a column empty."""
    options = " ".join(f"--missing {shlex.quote(f'{name}={text}')}" for text in texts)
    section = f"missing = {{ {json.dumps(name)} = {json.dumps(list(texts))} }}"
    return write_setting(section, None, options)


def leave_empty(
    frames: Mapping[str, Frame], missing: Mapping[str, Sequence[str]]
) -> dict[str, Frame]:
    """The tables by party without the values that are said to mean none.

    Args:
        frames: by party; parties may share one.
        missing: by ``column`` or ``party.column`` what means "no value"; a number is found however
            it is written.

    Raises:
        ConfigError: no table has the column.
        DataError: the column has no such value.
    """
    of_party = split_by_party("missing", missing, frames)

    def change(frame: Frame, parties: Sequence[str]) -> Frame:
        said = {c: texts for p in parties for c, texts in of_party.get(p, {}).items()}
        emptied = {c: _without(frame, c, texts) for c, texts in said.items()}
        return replace(frame, columns=frame.columns | emptied)

    return change_tables(frames, change)


def _without(frame: Frame, name: str, texts: Sequence[str]) -> pa.Array:
    array, values = frame.columns[name], frame.read_numbers(name).values
    gone = np.zeros(frame.rows, bool)
    for text in texts:
        number = read_number(text, frame.dialect.decimal)
        found = pc.equal(as_texts(array), text).fill_null(False).to_numpy(zero_copy_only=False)
        found = found | (False if number is None else values == number)
        if not found.any():
            raise frame.refuse(f"column {name!r}", "hold what `missing` says", f"no {text!r}")
        gone |= found
    return pc.if_else(pa.array(gone), pa.scalar(None, array.type), array)


def _count_far(distinct: NDArray[np.float64]) -> tuple[int, int]:
    """How many of the sorted values lie far below and far above all others.

    A gap of ten ranges of the others sets them apart, at most three each, or any number of them a
    million times as far as the middle half is wide: a long tail has no gap.
    """
    with np.errstate(all="ignore"):
        first, third = np.quantile(distinct, (0.25, 0.75))
        reach = _SCALE * (third - first)
        many = int((distinct < first - reach).sum()), int((distinct > third + reach).sum())
    counts = [(low, high) for low in range(_MOST + 1) for high in range(_MOST + 1)]
    for low, high in [many, *sorted(counts, key=sum)]:
        core = distinct[low : len(distinct) - high]
        if len(core) < _CORE:
            break
        with np.errstate(all="ignore"):
            reach = FAR * (core[-1] - core[0])
            below = not low or core[0] - distinct[low - 1] > reach
            above = not high or distinct[-high] - core[-1] > reach
        if low + high and below and above:
            return low, high
    return 0, 0


def _is_code(value: float) -> bool:
    """Whether a number is one that stands for missing values: -1, or nothing but nines."""
    return value == -1 or set(_write(abs(value))) == {"9"}


def _find_codes(distinct: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the sorted values the first and last one if it is a code of missing values.

    It is as common as a usual value, and stands apart: by twice the widest gap between others, or
    as the only negative value.
    """
    found = []
    for end, inner in ((0, slice(1, None)), (-1, slice(None, -1))):
        others = distinct[inner]
        if len(others) <= _CORE or not _is_code(distinct[end]) or rows[end] < 2:
            continue
        gaps, gap = np.diff(others), np.abs(distinct[end] - others[end])
        apart = gap > 2 * gaps.max() or distinct[end] < 0 <= others[0]
        if apart and rows[end] >= np.median(rows[inner]):
            found.append(distinct[end])
    return np.array(found)


def _write(value: float) -> str:
    """A value as a table would hold it."""
    return f"{value:.0f}" if value % 1 == 0 and abs(value) < 1e15 else f"{value:g}"


def find_constants(data: PartyData) -> list[str]:
    """Columns of a party that have one value in all rows."""
    if data.values.ndim != 2 or not data.values.size:
        return []
    names = data.names or tuple(map(str, range(data.values.shape[1])))
    columns = zip(names, data.values.T, data.categories, strict=True)
    return [name for name, column, kind in columns if _is_constant(column, kind is not None)]


def _is_constant(column: NDArray[Any], category: bool) -> bool:
    """Whether all values are one; a missing category is a value of its own."""
    there = column[~np.isnan(column)]
    alike = not len(there) or there.min() == there.max()
    return bool(alike and (not category or len(there) in (0, len(column))))
