"""Exit codes need no pictures."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    from vflsec.report import html

    monkeypatch.setattr(html, "svg", lambda *_: "")
