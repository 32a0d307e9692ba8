"""An attack made after every epoch is a curve of its own, and no further finding or gate."""

from __future__ import annotations

from pathlib import Path

import pytest

import vflsec
from vflsec.errors import ConfigError
from vflsec.report import figures
from vflsec.report.exports import load_summary


def test_a_curve_over_epochs(tmp_path: Path) -> None:
    scenario = {
        "data": {"name": "leaky"},
        "algorithm": {"name": "splitnn", "epochs": 4},
        "attack": [{"name": "direction", "over_time": True}],
        "audit": {"seeds": 3, "references": [], "positive_control": False},
        "gate": [{"metric": "advantage", "max": 0.1}],
    }
    audit = vflsec.run_audit(scenario, tmp_path, device="cpu")
    phases = set(audit.results[audit.results.attack != ""].phase)
    assert phases == {"train", "train@0", "train@1", "train@2", "train@3"}
    summary = load_summary(tmp_path)
    assert {p["phase"] for p in summary["points"]} == {"train"}
    timed = [r for r in summary["over_time"] if r["metric"] == "auc"]
    assert [r["phase"] for r in timed] == ["train@0", "train@1", "train@2", "train@3"]
    final = next(p for p in summary["points"] if p["metric"] == "auc" and p["attack"])
    assert timed[-1]["value"] == pytest.approx(final["value"])
    assert len(audit.verdicts) == 1
    leaks = [f for f in summary["findings"] if f["kind"] == "leak"]
    assert [f["place"]["attack"] for f in leaks] == ["direction"]
    drawn = figures.leakage_over_epochs(summary).get_lines()
    (line,) = (a for a in drawn if len(a.get_xdata()) > 2)
    assert list(line.get_xdata()) == [1, 2, 3, 4]
    assert "Leakage over the epochs" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_over_time_is_one_error() -> None:
    with pytest.raises(ConfigError, match="Set over_time = true"):
        figures.leakage_over_epochs({"over_time": []})
