"""One training audited as it runs and from its traces: the same figures, the same families."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pandas as pd
from printed import coverage

from vflsec.cli.main import main
from vflsec.report.exports import load_summary

SCENARIO = """
[data]
name = "control_gaussian"
params = { rows = 160, test_rows = 80 }
[algorithm]
name = "splitnn"
epochs = 2
[audit]
seeds = 1
positive_control = false
"""
ATTACKS = ("norm", "direction", "similarity", "gradient_completion", "model_completion")
SAME = ["value", "n", "advantage", "control", "control_value", "controls"]
KEY = ["seed", "adversary", "attack", "phase", "split", "metric"]


def figures(folder: Path) -> pd.DataFrame:
    found = pd.read_parquet(folder / "results.parquet")
    found = found[(found.attack != "") & (found.adversary == "passive")]
    return found.set_index(KEY).sort_index()[SAME]


def trained(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """What crossed in training."""
    (point,) = [p for p in summary["cost"]["points"] if p["role"] == "audit"]
    return [t for t in point["traffic"] if t["phase"] == "train"]


def test_a_trace_of_both_parties_of_two_gives_the_figures_of_the_audit(tmp_path: Path) -> None:
    """Both sides of two parties see the same messages, which was refused as a copy of itself."""
    scenario = tmp_path / "s.toml"
    asked = "".join(f'[[attack]]\nname = "{a}"\nknown_rows = 20\n' for a in ATTACKS)
    scenario.write_text(SCENARIO + asked)
    main(["audit", str(scenario), "--out", str(tmp_path / "live")])
    assert main(["trace", "record", str(scenario), "--out", str(tmp_path / "traces")]) == 0
    (trace,) = (tmp_path / "traces").iterdir()
    assert {p.name for p in (trace / "view").iterdir()} == {"active", "passive"}
    wanted = [w for a in ATTACKS for w in ("--attack", a)]
    assert main(["trace", "audit", str(trace), "--out", str(tmp_path / "o"), *wanted]) == 0
    live, found = figures(tmp_path / "live"), figures(tmp_path / "o")
    every = pd.read_parquet(tmp_path / "live" / "results.parquet")
    main_task = {"auc", "accuracy", "balanced_accuracy", "f1", "tpr_at_1pct_fpr"}
    assert set(every.metric[(every.attack == "") & (every.seed == 0)]) == main_task
    assert set(found.index.get_level_values("attack")) == set(ATTACKS)
    assert len(found) == 6 * 7  # the completion answers for test rows too
    pd.testing.assert_frame_equal(live, found, check_exact=True)
    one, other = (load_summary(tmp_path / f) for f in ("live", "o"))
    assert one["families"] == other["families"]
    assert trained(one) == trained(other)
    assert len(trained(other)) == 5
    seal = hashlib.sha256((trace / "seal.json").read_bytes()).hexdigest()
    assert other["data"] == {"control_gaussian, defense none, seed 0": seal}
    said = (tmp_path / "o" / "statement.html").read_text()
    assert "recorded 1 time" in said
    assert "what was not recorded was not audited" in said
    assert "random splits" not in said
    assert "No table of a user" not in said
    unread = {m.kind: m.state for m in coverage.list_messages(other)}
    assert unread["gradient"] == coverage.State.TESTED
    assert unread["embedding"] == coverage.State.NOT_TESTED
