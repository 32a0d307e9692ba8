"""What is opened is closed where the block fails, and only there."""

from __future__ import annotations

import io

import pytest

from vflsec.runtime.atomic_files import or_closed


def test_open_after_success_and_closed_after_failure() -> None:
    with or_closed(io.StringIO("x")) as kept:
        pass
    assert kept.read() == "x"
    with pytest.raises(KeyError, match="why"), or_closed(kept):
        raise KeyError("why")
    assert kept.closed
