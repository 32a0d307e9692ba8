"""The one phrasing of argument errors: ``where: name must be rule, got value. remedy``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any, TypeGuard

from vflsec.errors import ConfigError


def fail(name: str, rule: str, value: Any, remedy: str = "") -> ConfigError:
    """The error to raise when `name` breaks `rule`."""
    tail = f" {remedy}" if remedy else ""
    return ConfigError(f"{name} must be {rule}, got {shown(value)}.{tail}")


def shown(value: Any) -> str:
    """A value as it is shown in a message; a long one is cut."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is an integer or a float, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(name: str, value: Any, remedy: str = "") -> float:
    """`value` as a float, if it is a finite number.

    Raises:
        ConfigError: it is not.
    """
    if not is_number(value) or not math.isfinite(value):
        raise fail(name, "a finite number", value, remedy)
    return float(value)


def positive(name: str, value: Any, remedy: str = "") -> float:
    """`value` as a float, if it is a finite number above 0."""
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise fail(name, "a finite number > 0", value, remedy)
    return float(value)


def non_negative(name: str, value: Any, remedy: str = "") -> float:
    """`value` as a float, if it is a finite number of at least 0."""
    if not is_number(value) or not math.isfinite(value) or value < 0:
        raise fail(name, "a finite number >= 0", value, remedy)
    return float(value)


def in_unit(name: str, value: Any, *, low_open: bool = False, high_open: bool = False) -> float:
    """`value` as a float, if it lies in the unit interval (ends excluded on demand)."""
    ok = is_number(value) and math.isfinite(value) and 0 <= value <= 1
    if not ok or (low_open and value == 0) or (high_open and value == 1):
        rule = f"a number in {'(' if low_open else '['}0, 1{')' if high_open else ']'}"
        raise fail(name, rule, value)
    return float(value)


def integer(name: str, value: Any, *, low: int = 1, high: int | None = None) -> int:
    """`value`, if it is an integer in [low, high]."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= low
    if not ok or (high is not None and value > high):
        rule = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
        raise fail(name, rule, value)
    return int(value)


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """`value`, if it is one of `allowed`; else an error that names the nearest."""
    options = list(allowed)
    if value not in options:
        listed = ", ".join(repr(o) for o in options)
        raise fail(name, f"one of {listed}", value, nearest(value, options))
    return value


def nearest(value: Any, options: Iterable[Any]) -> str:
    """``Did you mean 'x'?`` or the empty string.

    What is written alike but for case and marks comes first, then what is spelt nearly so, then the
    only name of which `value` is a part.
    """
    names = [o for o in options if isinstance(o, str)]
    alike = [n for n in names if _folded(n) == _folded(str(value)) != ""]
    match = alike or difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    part = _folded(str(value))
    if not match and len(part) > 2:
        holding = [n for n in names if part in _folded(n)]
        match = holding if len(holding) == 1 else []
    return f"Did you mean {match[0]!r}?" if match else ""


def _folded(name: str) -> str:
    """A name without case, spaces and marks: ``Customer ID`` is ``customer_id``."""
    return "".join(c for c in name.casefold() if c.isalnum())
