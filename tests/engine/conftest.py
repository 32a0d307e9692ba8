"""What tests of the engine leave out, and what they ask of claims."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def no_reports() -> Iterator[None]:
    """One small file in place of the reports, a third of a small audit's time."""
    from vflsec.report import exports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            exports, "write_reports", lambda to, _: (to / "junit.xml").write_text("vflsec")
        )
        yield
