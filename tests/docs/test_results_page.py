"""The page on results in pandas: its blocks run on an audit, and read what that holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "results.md"


def test_the_blocks_of_the_page_read_an_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    found = audited(tmp_path, Planted(LEAKY, SEALED), gate(max=0.1))
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "audit").symlink_to(found.folder.resolve())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    seeds = found.results.seed.nunique()
    assert names["utility"].shape == (2, seeds)
    assert names["utility"].to_numpy().min() > 0.8
    assert names["leakage"].shape == (4, seeds)  # two attacks at two strengths
    means = names["leakage"].mean(axis=1)
    drawn = names["by_strength"].set_index(["attack", "adversary", "defense", "strengths"])
    for at, gain in means.items():
        assert drawn.loc[at].advantages == pytest.approx(gain)
    assert len(names["claims"]) == 2
    assert sorted(names["gates"].verdict) == ["FAIL", "PASS"]
    assert names["passed"] is False
