"""The page of attacks is what the registry says today."""

from __future__ import annotations

from pathlib import Path

import pytest

from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.report import docs_pages


def test_the_committed_page_is_current(root: Path) -> None:
    """Run ``python -m vflsec.report.docs_pages attacks`` if this fails."""
    committed = (root / "docs" / "attacks.md").read_text(encoding="utf-8")
    assert committed == docs_pages.page()


def test_every_attack_says_who_it_is_and_where_it_comes_from() -> None:
    for entry in registry.attacks.entries().values():
        if entry.module.startswith("vflsec."):
            parts = docs_pages.sections(entry.doc)
            assert parts["Attacker"], entry.name
            assert parts["source"], entry.name
            assert parts["formula"], entry.name


def test_sections_are_split_at_their_heads() -> None:
    doc = "Sum.\n\ng = 1\n\nAttacker: any.\nDoes not apply: to x.\n\nSource: A, 2020,\nsection 1.\n"
    assert docs_pages.sections(doc) == {
        "formula": "g = 1", "Attacker": "any.", "Does not": "Does not apply: to x.",
        "source": "A, 2020, section 1.",
    }  # fmt: skip


def test_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="catalogue: KIND"):
        docs_pages.main(["defences"])
