"""Any two audits can be compared: what both have, and what only one has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audited import SCENARIO, Planted, audited

from vflsec import cli
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
    assert cli.main(["compare", str(one), str(two), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    both = {(r["attack"], r["strength"]): r for r in found["rows"]}
    assert set(both) == {("norm", 0.0), ("", 0.0)}  # undefended, whatever the defense is called
    assert abs(both["norm", 0.0]["change"]) < 0.02
    assert {(r["defense"], r["strength"]) for r in found["new"]} == {("noise", 2.0)}
    gone = {(r["attack"], r["defense"], r["strength"]) for r in found["gone"]}
    assert ("model_completion", "iso", 0.0) in gone
    assert ("norm", "iso", 5.0) in gone
    assert cli.main(["compare", str(one), str(two)]) == 0
    said = capsys.readouterr().out
    assert "gone: norm by shop (breast_cancer, splitnn, iso 5, train rows)" in said
    assert "new: norm by shop (breast_cancer, splitnn, noise 2, train rows)" in said
