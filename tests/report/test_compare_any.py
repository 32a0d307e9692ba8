"""Any two audits can be compared: what both have, and what only one has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audited import SCENARIO, Planted, audited

from vflsec.cli import main
from vflsec.engine.run import run_audit

OTHER = SCENARIO
for _old, _new in (
    ('"iso"', '"noise"'), ("[0, 5]", "[0, 2]"), ("seeds = 5", "seeds = 3"), ('["local"]', "[]"),
    ('[[attack]]\nname = "model_completion"\nknown_rows = 20\n', ""),
):  # fmt: skip
    assert _old in OTHER
    OTHER = OTHER.replace(_old, _new)


def test_audits_of_different_scenarios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted = Planted({"norm": 0.3, "model_completion": 0.2})
    one = audited(tmp_path / "a", planted).folder
    (tmp_path / "other.toml").write_text(OTHER)
    two = run_audit(tmp_path / "other.toml", tmp_path / "b", backend=planted.backend()).folder
    assert main.main(["compare", str(one), str(two), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    both = {(r["attack"], r["strength"]): r for r in found["rows"]}
    assert set(both) == {("norm", 0.0), ("", 0.0)}  # undefended, whatever the defense is called
    assert abs(both["norm", 0.0]["change"]) < 0.02
    assert {(r["defense"], r["strength"]) for r in found["new"]} == {("noise", 2.0)}
    gone = {(r["attack"], r["defense"], r["strength"]) for r in found["gone"]}
    assert ("model_completion", "iso", 0.0) in gone
    assert ("norm", "iso", 5.0) in gone
    assert main.main(["compare", str(one), str(two)]) == 0
    said = capsys.readouterr().out
    assert "gone: norm by shop (breast_cancer, splitnn, iso 5, train rows)" in said
    assert "new: norm by shop (breast_cancer, splitnn, noise 2, train rows)" in said
    alone = sum(bool(r["attack"]) for r in (*found["gone"], *found["new"]))
    assert alone > 1
    assert f"Not compared: {alone} figures of attacks" in said.split("\n")[-2]


def test_the_last_line_says_what_leaks_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures that are the same in every seed are counted, the others shown and summed up."""
    folders = []
    for name, norm in (("a", 0.1), ("b", 0.3)):
        planted = Planted({"norm": norm, "model_completion": 0.2})
        folders.append(str(audited(tmp_path / name, planted).folder))
    assert main.main(["compare", *folders]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "norm by shop train" in said
    assert "model_completion by shop train" not in said
    assert said.endswith(
        "5 of 7 figures are equal. Beyond its 95 % interval leakage rose in 2 figures, most "
        "by +0.200 (norm by shop, splitnn, iso 0, train rows)."
    )
    assert main.main(["compare", *reversed(folders)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "leakage fell in 2 figures, most by -0.200" in said
    assert main.main(["compare", folders[0], folders[0]]) == 0
    assert capsys.readouterr().out.split("\n")[-2] == "7 of 7 figures are equal."
