"""Two sections of one algorithm that differ in the settings of a phase only stay two everywhere."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vflsec.config.scenario import load_scenario
from vflsec.engine.dry_run import make_plan
from vflsec.engine.run import run_audit

SCENARIO = """\
data = { name = "breast_cancer", aligned = 60 }
attack = [{ name = "cluster", names = "known", known_rows = 6 }]
audit = { seeds = 2, references = [], positive_control = false }

[[algorithm]]
name = "oneshot"
epochs = 2
hidden = [6]
cut = 4
[algorithm.phases.local]
epochs = 1

[[algorithm]]
name = "oneshot"
epochs = 2
hidden = [6]
cut = 4
[algorithm.phases.local]
epochs = 3
"""


def test_cells_names_and_rows_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "phases.toml"
    path.write_text(SCENARIO)
    plan = make_plan(load_scenario(path))
    titles = ["oneshot(local_epochs=1)", "oneshot(local_epochs=3)"]
    assert [g.title for g in plan.groups] == titles
    assert [g.cells[0].params["local_epochs"] for g in plan.groups] == [1, 3]
    assert len(plan.cells) == 4
    audit = run_audit(path, out=tmp_path / "out")
    frame = pd.read_parquet(audit.folder / "results.parquet")
    assert sorted(frame.algorithm.unique()) == titles
    assert frame.groupby("algorithm").cell.nunique().tolist() == [2, 2]
    both = [frame[frame.algorithm == t].drop(columns=["cell", "algorithm"]) for t in titles]
    clusters = [f[f.attack.str.startswith("cluster") & (f.status == "ok")] for f in both]
    for of in clusters:  # the download comes before local training, so it is the same
        assert of.value.tolist() == clusters[0].value.tolist()
        assert len(of) > 0
    main = [f[(f.attack == "") & (f.metric == "auc")].value.tolist() for f in both]
    assert main[0] != main[1]
    for name in ("report.html", "summary.md"):
        text = (audit.folder / name).read_text(encoding="utf-8").replace("\\", "")
        assert all(t in text for t in titles)
