"""What the page of trees says of each system's defaults is what was measured."""

from __future__ import annotations

from pathlib import Path


def read_rows(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [[c.strip() for c in line.strip("| ").split("|")] for line in lines if line[:1] == "|"]


def test_each_default_is_a_row_of_the_evidence(root: Path) -> None:
    docs = root / "docs"
    found = {
        tuple(r[1:5:3]) + (r[2],): r for r in read_rows(docs / "evidence" / "trees.md")
        if r[0] == "credit_default"
    }  # fmt: skip
    rows = [r for r in read_rows(docs / "howto" / "trees.md") if len(r) == 6 and "`" in r[0]]
    assert len(rows) == 4
    profiles = {"FATE": "fate-2", "SecretFlow": "paper", "XGBoost": "xgboost-open"}
    for system, _, *figures in rows:
        name, attack, _ = system.split("`")
        bare, alone, flipped = (
            found[profiles[name.rstrip(" (")], attack, d]
            for d in ("none", "local_trees 1", "label_dp 1")
        )
        assert figures == [bare[5], bare[7], alone[8], flipped[8]]
