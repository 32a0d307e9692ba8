"""Numbers and intervals as every report prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.audit.rounding import beside

__all__ = ["against", "format_bytes", "format_short", "interval", "number"]


def number(value: float | None, sign: bool = False, limit: float | None = None) -> str:
    """Three decimals, or a dash where there is no number.

    Args:
        value: what to print.
        sign: print a plus, too.
        limit: what the value is compared with; then it has the digits that this takes.
    """
    if value is None:
        return "-"
    spec = "+.3f" if sign else ".3f"
    return format(value, spec.replace(".", "z.")) if limit is None else beside(value, limit, spec)


def against(verdict: Mapping[str, Any], name: str) -> str:
    """The value or a bound of a verdict, with digits that put it on its side of the limit."""
    return number(verdict[name], limit=verdict["threshold"])


def interval(row: Mapping[str, Any], name: str, sign: bool = False) -> str:
    """``0.871 [0.850, 0.892]``; without bounds where there are none.

    What has a sign is compared with 0, so its bounds stand on the right side of that.
    """
    text = number(row.get(name), sign)
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if row.get(name) is None or low is None or high is None:
        return text
    zero = 0.0 if sign else None
    return f"{text} [{number(low, sign, zero)}, {number(high, sign, zero)}]"


def format_short(row: Mapping[str, Any], name: str) -> str:
    """Three digits, also of small errors, with bounds where there are any."""
    ends = [row.get(f"{name}{end}") for end in ("", "_low", "_high")]
    text, low, high = ("-" if x is None else f"{x:.3g}" for x in ends)
    return text if "-" in (text, low) else f"{text} [{low}, {high}]"


def format_bytes(count: float) -> str:
    """``12.8 kB``: in the unit that leaves three digits before the point."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
