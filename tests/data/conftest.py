"""Where real tables are, for the tests that need some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real tables; tests skip where there is none."""
    fallback = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("VFLSEC_TEST_DATA", fallback))
    if not folder.is_dir():
        pytest.skip("no real tables; set VFLSEC_TEST_DATA")
    return folder
