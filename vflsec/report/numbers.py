"""Numbers and intervals as every report prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["interval", "number"]


def number(value: float | None, sign: bool = False) -> str:
    """Three decimals, or a dash where there is no number."""
    if value is None:
        return "-"
    return f"{value:+.3f}" if sign else f"{value:.3f}"


def interval(row: Mapping[str, Any], name: str, sign: bool = False) -> str:
    """``0.871 [0.850, 0.892]``; without bounds where there are none."""
    text = number(row.get(name), sign)
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if row.get(name) is None or low is None or high is None:
        return text
    return f"{text} [{number(low, sign)}, {number(high, sign)}]"
