"""What no scenario may hold: nesting and numbers without end, names that cannot be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.config.problems import Origin, Problem
from vflsec.config.toml_text import Path as KeyPath
from vflsec.data.names import unshowable

__all__ = ["beyond", "find_bad_names", "find_deep_key"]

_DEEPEST = 20


def beyond(error: Exception) -> str:
    """Why a text that may be TOML is not read: Python has limits that TOML has not."""
    if isinstance(error, RecursionError):
        return f"must nest tables and lists at most {_DEEPEST} deep, got more. Flatten it."
    return "must hold integers of at most 64 bits, got one of thousands of digits. Correct it."


def find_deep_key(raw: Mapping[str, Any]) -> str:
    """The key below which values are nested too deep; '' where none is. Does not recurse."""
    for key, value in raw.items():
        level = [value]
        for _ in range(_DEEPEST):
            level = [
                v
                for item in level
                if isinstance(item, Mapping | list)
                for v in (item.values() if isinstance(item, Mapping) else item)
            ]
            if not level:
                break
        else:
            return key
    return ""


def find_bad_names(origin: Origin, normal: Mapping[str, Any]) -> list[Problem]:
    """Names that reports and ``results.csv`` show: one printable line that is no formula."""
    named: list[tuple[KeyPath, Any]] = [(("name",), normal.get("name"))]
    sections = normal.get("data")
    for i, data in enumerate(sections if isinstance(sections, list) else ()):
        if isinstance(data, Mapping):
            named.append((("data", i, "name"), data.get("name")))
    out = []
    for path, name in named:
        if isinstance(name, str) and (why := unshowable(name)):
            shown = name if len(name) < 80 else f"{name[:60]}... ({len(name)} characters)"
            out.append(origin.problem(path, f"must {why}, got {shown!r}. Choose another.", name))
    return out
