"""Which names may stand in reports, in tables that spreadsheets open, and on a terminal."""

from __future__ import annotations

__all__ = ["FORMULA", "unshowable"]

FORMULA = "=+-@"
"""A text that begins so is a formula to spreadsheets that open ``results.csv``."""

_MOST = 200


def unshowable(name: str) -> str:
    """What a name would have to do to be shown, in words; '' if it may be shown as it is."""
    if name[:1] in tuple(FORMULA):
        return "begin with a letter or a digit (spreadsheets read results.csv as formulas)"
    if not name.isprintable():
        return "be made of printable characters"
    if len(name) > _MOST:
        return f"have at most {_MOST} characters"
    return ""
