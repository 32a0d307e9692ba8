"""The page on claims is what its script makes of its figures, and they are what it promises."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats


@pytest.fixture
def script(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("evidence_claims")


def test_the_page_and_its_figures(script: Any, root: Path) -> None:
    folder = root / "docs" / "evidence"
    with (folder / "claims.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert (folder / "claims.md").read_text(encoding="utf-8") == script.page(rows)
    pairs = [r for r in rows if r["algorithm"] != script.BROKEN]
    assert {r["algorithm"] for r in pairs} == set(script.ALGORITHMS)
    tested = [r for r in pairs if r["tested"]]
    beyond = sum(int(r["contradicted"]) for r in tested)
    looks = sum(int(r["tested"]) for r in tested)
    assert looks > 1000
    assert stats.binom.sf(beyond - 1, looks, 0.01) > 0.01
    found = {r["defense"]: r for r in rows if r["algorithm"] == script.BROKEN}
    assert len(found) == 8
    for name, row in found.items():
        assert int(row["tested"]) == 20
        hits = int(row["contradicted"])
        assert hits <= 2 if "a true claim" in name else hits >= 19, name


def test_a_contradiction_is_counted_and_a_claim_that_is_not_tested_is_untested(script: Any) -> None:
    row = dict.fromkeys(script.FIELDS, "") | {
        "algorithm": "splitnn", "defense": "label_dp", "strength": "1", "releases": "1",
        "epsilon": "1", "delta": "0", "tested": "20", "measured": "1.5", "median": "0.2",
        "contradicted": "3",
    }  # fmt: skip
    bare = {**row, "algorithm": "local", "tested": "0", "measured": "", "contradicted": "0"}
    text = script.page([row, bare])
    assert "**3 of 20 measured bounds lie above their claim**" in text
    assert "| local | label_dp, 1 | 1 (not predicted) | 1 | untested |  |" in text
