"""Numbers and intervals as every report prints them."""

from __future__ import annotations

from vflsec.audit.point import Estimate
from vflsec.audit.rounding import show


def format_number(value: float | None, sign: bool = False, limit: float | None = None) -> str:
    """Three decimals, or a dash where there is no number.

    Args:
        value: what to print.
        sign: print a plus, too.
        limit: what the value is compared with; then it has the digits that this takes.
    """
    if value is None:
        return "-"
    spec = "+.3f" if sign else ".3f"
    return format(value, spec.replace(".", "z.")) if limit is None else show(value, limit, spec)


def format_bounded(
    value: float | None, low: float | None, high: float | None, sign: bool = False
) -> str:
    """``0.871 [0.850, 0.892]``; without bounds where there are none.

    What has a sign is compared with 0, so its bounds stand on the right side of that.
    """
    text = format_number(value, sign)
    if value is None or low is None or high is None:
        return text
    zero = 0.0 if sign else None
    return f"{text} [{format_number(low, sign, zero)}, {format_number(high, sign, zero)}]"


def format_interval(of: Estimate, sign: bool = False) -> str:
    """A mean with its bounds, see :func:`format_bounded`."""
    return format_bounded(of.mean, of.low, of.high, sign)


def format_short(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Three digits, also of small errors, with bounds where there are any."""
    text, *ends = ("-" if x is None else f"{x:.3g}" for x in (value, low, high))
    return text if "-" in (text, *ends) else f"{text} [{', '.join(ends)}]"


def format_duration(seconds: float) -> str:
    """``75 s``, ``12 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(count: float) -> str:
    """``12.8 kB``: in the unit that leaves three digits before the point."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
