"""The page of defenses is what the registry says."""

from __future__ import annotations

from pathlib import Path

from vflsec.plugins import registry
from vflsec.report.defense_table import page


def test_the_page_is_up_to_date(root: Path) -> None:
    """Run ``python -m vflsec.report.defense_table docs/defenses.md`` if this fails."""
    assert (root / "docs" / "defenses.md").read_text(encoding="utf-8") == page()


def test_every_defense_is_on_it_and_says_what_it_does_not_stop() -> None:
    text = " ".join(page().split())
    for name in registry.defenses.names():
        assert f"[{name}](#{name})" in text
    assert text.count("not stop") >= len(registry.defenses.names())
