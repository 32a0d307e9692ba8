"""Figures as texts that say of a limit what the figures say: 0.1004 is not "0.100, above 0.1"."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MORE = 7  # most digits that are added; what lies closer stands with the usual ones


def show(x: float, limit: float, spec: str = ".3f") -> str:
    """`x` with as many more digits than `spec` as it takes to stand on its own side of `limit`.

    Args:
        x: the figure.
        limit: what it is compared with, and what is shown as it is.
        spec: ``[+].DIGITS(f|g)``, as of :func:`format`; zero has no minus.
    """
    texts = [format(x, finer) for finer in _finer(spec)]
    return next((t for t in texts if _side(float(t), limit) == _side(x, limit)), texts[0])


def show_both(x: float, limit: float, spec: str = ".3f", of_limit: str = ".3f") -> tuple[str, str]:
    """`x` and a `limit` that is rounded too, with digits that keep their order.

    Args:
        x, limit, spec: as of :func:`show`.
        of_limit: the like of `spec` for the limit.
    """
    pairs = zip(_finer(spec), _finer(of_limit), strict=True)
    texts = [(format(x, mine), format(limit, other)) for mine, other in pairs]
    true = _side(x, limit)
    return next((t for t in texts if _side(float(t[0]), float(t[1])) == true), texts[0])


def show_exact(x: float) -> str:
    """The shortest text that is this number again: what is pasted must not be another one."""
    short = f"{x:g}"
    return short if float(short) == x else str(float(x))


def _side(x: float, limit: float) -> int:
    return (x > limit) - (x < limit)


def _finer(spec: str) -> Iterator[str]:
    found = re.fullmatch(r"(\+?)\.(\d+)([fg])", spec)
    assert found, spec
    sign, digits, kind = found.groups()
    for more in range(_MORE + 1):
        yield f"{sign}z.{int(digits) + more}{kind}"
