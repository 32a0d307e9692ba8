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


def test_every_attack_says_who_it_is_and_where_it_comes_from() -> None:
    """A formula, then ``Attacker:``, and ``Source:`` at the end; a reader looks for these."""
    for entry in registry.attacks.entries().values():
        if entry.module.startswith("vflsec."):
            body, _, source = entry.doc.strip().split("\n\n", 1)[1].partition("\nSource:")
            formula, _, attacker = body.partition("\nAttacker:")
            assert formula.strip(), entry.name
            assert attacker.strip(), entry.name
            assert source.strip(), entry.name
