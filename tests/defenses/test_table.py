"""The page of defenses is what the registry says."""

from __future__ import annotations

import runpy
from pathlib import Path

from vflsec.plugins import registry


def test_the_page_is_up_to_date(root: Path) -> None:
    """Run ``python .ci/docs_pages.py`` if this fails."""
    page = runpy.run_path(str(root / ".ci" / "docs_pages.py"))["make_page"]("defenses.md")
    assert (root / "docs" / "defenses.md").read_text(encoding="utf-8") == page


def test_every_defense_is_on_it_and_says_what_it_does_not_stop(root: Path) -> None:
    text = (root / "docs" / "defenses.md").read_text(encoding="utf-8")
    for name, entry in registry.defenses.entries().items():
        assert f"[{name}](reference/defenses.md#{name})" in text
        assert "not stop" in " ".join(entry.doc.split()), name
