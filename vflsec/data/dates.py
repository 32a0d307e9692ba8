"""Dates as numbers: days since 1970-01-01, with a fraction for the time of day.

One rule for all tables. Parquet's dates and times say what they are. A text column is a date if
every value is ISO 8601 (``2024-01-31``, ``2024-01-31 14:05``, ``2024-01-31T14:05:09.5Z``) or every
value is ``31.1.2024`` (day first). ``31/1/2024`` and ``1/31/2024`` are read if some value can be
read one way only; where every value could be both, the column stays text and a note says so. A time
zone is an offset from UTC; a time without one is taken as UTC. Durations and times of day are days.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_DAY = 86_400.0
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_CLOCK = r"(?:[T ](\d{2}):(\d{2})(?::(\d{2}(?:[.,]\d{1,9})?))?\s?(Z|[+-]\d{2}:?\d{2})?)?"
_ISO = re.compile(r"(\d{4})-(\d{2})-(\d{2})" + _CLOCK)
_DOTS = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})" + _CLOCK)
_SLASHES = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})" + _CLOCK)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def is_temporal(kind: pa.DataType) -> bool:
    """Whether a Parquet type is a date, a time or a duration."""
    return bool(pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)


def compute_days(array: pa.Array) -> pa.Array:
    """A temporal array as float64 days."""
    kind = array.type
    if pa.types.is_date32(kind):
        return array.cast(pa.int32()).cast(pa.float64())
    if pa.types.is_date64(kind):
        return pc.divide(array.cast(pa.int64()).cast(pa.float64(), safe=False), _DAY * 1e3)
    whole = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    return pc.divide(whole.cast(pa.float64(), safe=False), _DAY * _PER_SECOND[kind.unit])


def text_days(values: Sequence[str]) -> tuple[NDArray[np.float64] | None, str]:
    """Days of distinct texts, or None and why not ('' where they are no dates at all)."""
    if not values:
        return None, ""
    for pattern, order in ((_ISO, "ymd"), (_DOTS, "dmy")):
        if pattern.fullmatch(values[0]):
            return _all(values, pattern, order), ""
    if not _SLASHES.fullmatch(values[0]):
        return None, ""
    both = [_all(values, _SLASHES, order) for order in ("dmy", "mdy")]
    if both[0] is not None and both[1] is not None:
        if not np.array_equal(both[0], both[1]):
            return None, "day and month cannot be distinguished"
        return both[0], ""
    return (both[0] if both[0] is not None else both[1]), ""


def _all(values: Sequence[str], pattern: re.Pattern[str], order: str) -> NDArray[np.float64] | None:
    out = np.empty(len(values))
    for i, text in enumerate(values):
        match = pattern.fullmatch(text)
        found = _one(match, order) if match else None
        if found is None:
            return None
        out[i] = found
    return out


def _one(match: re.Match[str], order: str) -> float | None:
    part = dict(zip(order, (int(g) for g in match.groups()[:3]), strict=True))
    hour, minute, second, zone = match.groups()[3:]
    try:
        day = datetime.date(part["y"], part["m"], part["d"]).toordinal() - _EPOCH
    except ValueError:
        return None
    clock = int(hour or 0) * 3600 + int(minute or 0) * 60 + float((second or "0").replace(",", "."))
    if int(hour or 0) > 24 or int(minute or 0) > 59 or clock > _DAY:
        return None
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        clock -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return day + clock / _DAY
