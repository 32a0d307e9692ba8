"""Cases of a test of which a sample runs always, and all of them with ``make test-slow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], keep: int = 1) -> list[Any]:
    """The cases, all but the first `keep` of them marked slow.

    Args:
        cases: values of one parameter, or tuples of several.
        keep: how many run always.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if i < keep else pytest.mark.slow,
        )
        for i, case in enumerate(cases)
    ]
