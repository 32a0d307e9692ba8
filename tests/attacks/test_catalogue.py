"""The page of attacks is what the registry says today."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from vflsec.plugins import registry


@pytest.fixture(scope="module")
def pages(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / ".ci" / "docs_pages.py"))


def test_the_committed_page_is_current(root: Path, pages: dict[str, Any]) -> None:
    """Run ``python .ci/docs_pages.py`` if this fails."""
    committed = (root / "docs" / "attacks.md").read_text(encoding="utf-8")
    assert committed == pages["make_page"]("attacks.md")


def test_every_attack_says_who_it_is_and_where_it_comes_from(pages: dict[str, Any]) -> None:
    for entry in registry.attacks.entries().values():
        if entry.module.startswith("vflsec."):
            parts = pages["read_sections"](entry.doc)
            assert parts["Attacker"], entry.name
            assert parts["source"], entry.name
            assert parts["formula"], entry.name


def test_sections_are_split_at_their_heads(pages: dict[str, Any]) -> None:
    doc = "Sum.\n\ng = 1\n\nAttacker: any.\nDoes not apply: to x.\n\nSource: A, 2020,\nsection 1.\n"
    assert pages["read_sections"](doc) == {
        "formula": "g = 1", "Attacker": "any.", "Does not": "Does not apply: to x.",
        "source": "A, 2020, section 1.",
    }  # fmt: skip
