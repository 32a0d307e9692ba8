"""A baseline of other data: what it tolerates was measured elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import Planted, audited

from vflsec.cli import main
from vflsec.data.source import Source

LEAKS = {"norm": 0.3, "model_completion": 0.2}
SAID = "of other data: breast_cancer"


class Elsewhere(Planted):
    """The same names over another table."""

    def _source(self, section: Mapping[str, Any], seed: int, base: Path) -> Source:
        return replace(super()._source(section, seed, base), digest="another")


def test_a_pass_against_a_baseline_of_other_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old table leaked by itself, so that its baseline tolerated what the new one leaks."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    old = audited(tmp_path / "a", Planted(LEAKS)).folder
    same = audited(tmp_path / "b", Planted(LEAKS, shift=1)).folder
    other = audited(tmp_path / "c", Elsewhere(LEAKS)).folder
    file = tmp_path / "baseline.json"
    assert main.main(["gate", str(old), "--baseline", str(file), "--update-baseline"]) == 0
    capsys.readouterr()

    def judged(folder: Path, against: Path) -> tuple[int, list[str], str]:
        to = tmp_path / f"{folder.parent.name}-{against.name}"
        command = ["gate", str(folder), "--baseline", str(against), "--report", str(to)]
        code = main.main(command)
        seen = capsys.readouterr().out
        junit = (to / "junit.xml").read_text(encoding="utf-8")
        levels = [
            r["level"] for r in json.loads((to / "results.sarif").read_text())["runs"][0]["results"]
        ]
        assert (
            (SAID in junit)
            == (SAID in " ".join(seen.split()))
            == ("::notice title=vflsec PASS" in seen)
        )
        return code, levels, " ".join(seen.split())

    for against in (file, old):
        code, levels, said = judged(other, against)
        assert SAID in said
        assert set(levels) <= {"note", "warning"}
        assert "note" in levels
        plain, before, told = judged(same, against)
        assert plain == code
        assert SAID not in told
        assert "note" not in before
    kept = json.loads(file.read_text())
    assert kept["data"] == {"breast_cancer": "d-breast_cancer"}
