"""What no scenario may hold: nesting and numbers without end, dates."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping

from vflsec.config.problems import Problem, Written
from vflsec.config.toml_text import Path
from vflsec.core import check
from vflsec.runtime.plain_values import Plain, Table

DEEPEST = 20


def describe_beyond(error: Exception) -> str:
    """Why a text that may be TOML is not read: Python has limits that TOML has not."""
    if isinstance(error, RecursionError):
        return f"must not be nested deeper than {DEEPEST}."
    return "must be an integer of 64 bits."


def find_deep_key(raw: Table) -> str:
    """The key below which values are nested too deep; '' where none is. Does not recurse."""
    for key, value in raw.items():
        level: list[Plain] = [value]
        for _ in range(DEEPEST):
            inner = [v.values() if isinstance(v, Mapping) else v for v in level
                     if isinstance(v, Mapping | list)]  # fmt: skip
            level = [v for values in inner for v in values]
            if not level:
                break
        else:
            return key
    return ""


def find_bad_values(tree: Written, value: Plain, path: Path = ()) -> list[Problem]:
    """Numbers that are not finite or too large for TOML, and dates, wherever they stand."""
    if isinstance(value, Mapping | list):
        if len(path) > DEEPEST:
            return [tree.problem(path[:4], describe_beyond(RecursionError()), "...")]
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [p for k, v in inner for p in find_bad_values(tree, v, (*path, k))]
    if isinstance(value, float) and not math.isfinite(value):
        return [tree.problem(path, check.must("be a finite number", value), value)]
    if isinstance(value, int) and abs(value) >= 2**63:
        return [tree.problem(path, describe_beyond(ValueError()), 0)]
    if isinstance(value, datetime.date | datetime.time):
        return [tree.problem(path, check.must("not be a date", str(value)), str(value))]
    return []
