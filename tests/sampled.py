"""Cases of a test of which a sample runs always, and all of them with ``make test-slow``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(
    cases: Iterable[Any], keep: int = 1, *, every: int = 0, of: Callable[[Any], Any] | None = None
) -> list[Any]:
    """The cases, all but a sample of them marked slow.

    Args:
        cases: values of one parameter, or tuples of several.
        keep: how many run always, from the first on.
        every: each of how many runs always, too; 0: none.
        of: what kind a case is of; the first of each kind runs always, too.
    """
    kinds: set[Any] = set()
    out = []
    for i, case in enumerate(cases):
        always = i < keep or (every > 0 and i % every == 0)
        if of is not None and of(case) not in kinds:
            kinds.add(of(case))
            always = True
        values = case if isinstance(case, tuple) else (case,)
        out.append(pytest.param(*values, marks=() if always else pytest.mark.slow))
    return out
