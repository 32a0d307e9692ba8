"""Runs resume: nothing is lost, nothing is done twice, and the results are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_fakes import SCENARIO, Notes, Trainer, backend
from printed import junit_xml, workflow_commands

import vflsec
from vflsec.audit.result import Audit
from vflsec.engine import run
from vflsec.engine.run import Interrupted
from vflsec.errors import ConfigError
from vflsec.report.exports import load_summary
from vflsec.runtime.progress_protocol import Reporter
from vflsec.storage.results_folder import OUR_FILES

CONTRACT = {
    "cell", "dataset", "algorithm", "defense", "strength", "phase", "seed", "adversary", "attack",
    "target", "split", "metric", "value", "low", "high", "n", "control", "advantage", "chance",
    "status",
}  # fmt: skip


def audit(out: Path, trainer: Any = None, **how: Any) -> Audit:
    sections = how.pop("sections", tomllib.loads(SCENARIO))
    return vflsec.run_audit(
        sections, out, device="cpu", backend=backend(trainer or Trainer()), **how
    )


def table(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "results.parquet")


def test_results_are_tidy_and_complete(tmp_path: Path) -> None:
    result = audit(tmp_path)
    frame = table(tmp_path)
    assert set(frame.columns) >= CONTRACT
    pd.testing.assert_frame_equal(frame, result.results)
    # 6 audited cells: a main-task figure and 2 attacks by 2 parties; 3 reference cells
    assert len(frame) == 6 * (1 + 4) + 3
    assert (frame["status"] == "ok").all()
    row = frame[(frame["attack"] == "norm") & (frame["seed"] == 2)].iloc[0]
    assert row["control"] == "scratch"  # the better one by cross-validation
    assert row["advantage"] == pytest.approx(row["value"] - 0.55)
    assert set(frame[frame["role"] == "reference"]["algorithm"]) == {"local"}
    csv = pd.read_csv(tmp_path / "results.csv", keep_default_na=False, na_values=["NaN"])
    assert list(csv.columns) == list(frame.columns)
    assert len(csv) == len(frame)


def test_the_summary_says_what_was_run_and_what_it_cost(tmp_path: Path) -> None:
    result = audit(tmp_path)
    assert len(json.loads((tmp_path / "summary.json").read_text())["seal"]) == 24
    summary = load_summary(tmp_path)
    assert summary == result.summary
    assert summary["schema_version"] == 2
    assert summary["cells"] == {"planned": 9, "finished": 9}
    assert summary["complete"] is True
    assert summary["cost"]["training_seconds"] == pytest.approx(4.5)
    assert set(summary["versions"]) == {
        "vflsec", "python", "torch", "numpy", "scikit-learn", "code",
    }  # fmt: skip
    assert list(summary["data"]) == ["breast_cancer"]
    traffic = summary["cost"]["points"][0]["traffic"]
    assert traffic[0]["bytes"] == 12800
    assert traffic[0]["rounds"] == 10
    curve = summary["curves"][0]
    assert curve["strengths"] == [0.0, 5.0]
    assert 0 < curve["cap"] < 1
    loaded = vflsec.load_scenario(tmp_path / "scenario.resolved.toml")
    assert loaded.hash == summary["scenario_hash"]


@pytest.mark.slow
def test_versions_and_device_are_those_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an update of torch the signed page named the new one for trainings of the old."""
    from vflsec.engine import audit_record, cohort

    real = audit_record.list_versions()
    updated = {**real, "torch": "9.9.9", "code": "0" * 12}

    def trainer(now: dict[str, str]) -> Any:
        def train(*args: Any, **how: Any) -> list[Any]:
            out = Trainer()(*args, **how)
            for result in out:
                result.facts = replace(result.facts, versions=now)
            return out

        return train

    first, second = Notes(), Notes()
    audit(tmp_path, trainer(real), progress=first)
    assert first.said == []
    for module in (audit_record, cohort):
        monkeypatch.setattr(module, "list_versions", lambda: updated)
    assert audit(tmp_path, trainer(updated), progress=second).summary["versions"] == real
    (said,) = second.said
    assert f"was made with torch {real['torch']} (9.9.9 now), other code of vflsec" in said
    assert "--fresh" in said
    third = Notes()  # a job that goes on from a cache is not the first to do so
    again = audit(tmp_path, trainer(updated), progress=third).summary
    assert third.said == second.said
    made = f"torch {real['torch']} (9.9.9 now), other code of vflsec"
    assert again["made_before"] == made
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    kept = f"Trainings of {made}; --fresh trains again."
    assert kept in junit_xml(again)
    assert any("::notice title=vflsec::Trainings of torch" in c
               for c in workflow_commands(again))  # fmt: skip
    assert "Kept from before: torch" in (tmp_path / "report.html").read_text()
    assert "other code of vflsec; --fresh" in (tmp_path / "summary.md").read_text()
    more = audit(tmp_path, trainer(updated), seeds=4).summary
    both = {k: ", ".join(sorted([real[k], updated[k]])) for k in ("torch", "code")}
    assert more["versions"] == {**real, **both}
    assert more["device"] == "cpu"
    assert f"torch {real['torch']}, 9.9.9" in (tmp_path / "statement.html").read_text()
    monkeypatch.setattr(audit_record, "list_versions", lambda: real)
    trained = {
        "data": {"name": "breast_cancer"}, "algorithm": {"name": "splitnn", "epochs": 1},
        "audit": {"seeds": 1, "references": [], "positive_control": False},
    }  # fmt: skip
    found = vflsec.run_audit(trained, tmp_path / "real", device="cpu").summary
    assert found["versions"] == updated  # of the trainer, which the record knows nothing of


def test_only_our_files_are_in_the_folder(tmp_path: Path) -> None:
    audit(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} <= set(OUR_FILES)


def test_more_seeds_and_attacks_train_only_what_is_missing(tmp_path: Path) -> None:
    audit(tmp_path)
    before = table(tmp_path)
    trainer = Trainer()
    audit(tmp_path, trainer, seeds=4)
    assert len(trainer.trained) == 2 + 1
    assert {c.seed for cells, _ in trainer.calls for c in cells} == {3}
    sections = tomllib.loads(SCENARIO)
    sections["attack"].append({"name": "direction", "adversary": "passive1"})
    trainer = Trainer()
    audit(tmp_path, trainer, sections=sections)
    assert [[a.name for a in attacks] for _, attacks in trainer.calls] == [["direction"]]
    after = table(tmp_path)
    kept = after[after["attack"] != "direction"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before)


def test_replicas_bound_the_cells_of_one_call(tmp_path: Path) -> None:
    trainer = Trainer()
    audit(tmp_path, trainer, replicas=4)
    assert [len(cells) for cells, _ in trainer.calls] == [3, 3, 3]


def test_unfinished_results_are_exported_between_works_and_not_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    trainer = Trainer()
    monkeypatch.setattr(run._Exports, "maybe", lambda self: asked.append(len(trainer.calls)))
    audit(tmp_path, trainer)
    assert len(trainer.calls) == 2  # the cohort and its reference
    assert asked == [1]  # after the second everything is judged and exported anyway


def test_ctrl_c_keeps_what_is_finished_and_says_how_much(tmp_path: Path) -> None:
    def stop(call: int) -> None:
        if call == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        audit(tmp_path, Trainer(stop), replicas=2)
    assert (caught.value.done, caught.value.total) == (4, 9)
    trainer = Trainer()
    resumed = audit(tmp_path, trainer)
    assert len(trainer.trained) == 5
    whole = audit(tmp_path / "whole")
    pd.testing.assert_frame_equal(resumed.results, whole.results)


def test_a_failing_trainer_loses_only_its_own_cells(tmp_path: Path) -> None:
    def fail(call: int) -> None:
        if call == 1:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        audit(tmp_path, Trainer(fail), replicas=3)
    trainer = Trainer()
    audit(tmp_path, trainer)
    assert len(trainer.trained) == 6


def test_fresh_removes_our_files_and_nothing_else(tmp_path: Path) -> None:
    audit(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    trainer = Trainer()
    audit(tmp_path, trainer, fresh=True)
    assert len(trainer.trained) == 9
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    trainer = Trainer()
    with pytest.raises(ConfigError, match="is a file"):
        audit(file, trainer)
    assert trainer.calls == []


def test_what_cannot_run_has_a_row_with_the_reason(tmp_path: Path) -> None:
    sections = tomllib.loads(SCENARIO)
    sections["attack"].append({"name": "norm", "adversary": "active"})
    trainer = Trainer()
    frame = audit(tmp_path, trainer, sections=sections).results
    refused = frame[frame["status"] != "ok"]
    assert len(refused) == 6
    assert set(refused["status"]) == {"not-observable"}
    assert refused["value"].isna().all()
    assert refused["reason"].str.contains("receives none").all()
    assert all(a.adversary != ("active",) for _, attacks in trainer.calls for a in attacks)


def gated(limit: float) -> dict[str, Any]:
    sections = tomllib.loads(SCENARIO)
    sections["gate"] = [{"metric": "utility", "min": limit, "algorithm": "splitnn"}]
    return sections


@pytest.mark.slow
def test_gates_decide_the_exit_code(tmp_path: Path) -> None:
    assert audit(tmp_path).exit_code == 0
    assert audit(tmp_path, sections=gated(0.1)).exit_code == 0
    assert audit(tmp_path, sections=gated(1.5)).exit_code == 1
    assert audit(tmp_path, sections=gated(0.7)).exit_code == 3
    verdicts = audit(tmp_path, sections=gated(1.5)).summary["gates"]
    assert {v["verdict"] for v in verdicts} == {"FAIL"}
    assert {v["strength"] for v in verdicts} == {0.0, 5.0}


def test_progress_is_told_in_order(tmp_path: Path) -> None:
    class Diary(Reporter):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def plan(self, plan: Any, folder: Path, works: Any) -> None:
            self.lines.append(f"plan {len(works)}")

        def begin(self, work: Any) -> None:
            self.lines.append("begin")

        def step(self, work: Any, event: str, fraction: float) -> None:
            self.lines.append(f"step {event} {fraction:g}")

        def finish(self, work: Any) -> None:
            self.lines.append("finish")

        def close(self) -> None:
            self.lines.append("close")

    diary = Diary()
    audit(tmp_path, progress=diary)
    one = ["begin", "step train 1", "finish"]
    assert diary.lines == ["plan 2", *one, *one, "close"]


SLOW = """
import sys, tomllib
sys.path.insert(0, {tests!r})
import vflsec
from engine_fakes import SCENARIO, Trainer, backend
vflsec.run_audit(tomllib.loads(SCENARIO), {out!r}, device="cpu", replicas=1, jobs={jobs},
                 backend=backend(Trainer(wait={wait}, log={log!r})))
"""


def start(out: Path, log: Path, wait: float, jobs: int = 1) -> subprocess.Popen[bytes]:
    code = SLOW.format(
        tests=str(Path(__file__).parent), out=str(out), wait=wait, log=str(log), jobs=jobs
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", code], env=env)


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def wait_for(log: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 60
    while len(lines(log)) < count:
        assert time.monotonic() < limit, "the run did not get going"
        assert process.poll() is None, "the run ended early"
        time.sleep(0.02)


@pytest.mark.slow
def test_kill_nine_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    process = start(out, log, wait=0.15)
    wait_for(log, 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = {line.split()[1] for line in lines(log)}
    trainer = Trainer()
    resumed = audit(out, trainer)
    again = set(trainer.trained)
    assert len(begun) >= 5
    assert len(again & begun) <= 1  # the one that was under way
    assert len(again | begun) == 9
    assert len(again) < 9
    whole = audit(tmp_path / "whole")
    pd.testing.assert_frame_equal(resumed.results, whole.results)
    left = {p.name for p in out.iterdir() if p.name.startswith(".")}
    assert left == set()


@pytest.mark.slow
@pytest.mark.long
def test_workers_share_the_work_and_their_death_is_survived(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    process = start(out, log, wait=0.3, jobs=2)
    wait_for(log, 3, process)
    worker = int(lines(log)[-1].split()[0])
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    whole = audit(tmp_path / "whole")
    pd.testing.assert_frame_equal(table(out), whole.results)
    assert len({line.split()[0] for line in lines(log)}) >= 3  # two workers and a successor


def test_an_error_in_an_attack_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    class Failing(Trainer):
        def __call__(self, *args: Any, **how: Any) -> Any:
            results = super().__call__(*args, **how)
            for r in results:
                r.measures = [
                    replace(m, status="error", reason="diverged", value=None)
                    if m.attack == "norm"
                    else m
                    for m in r.measures
                ]
            return results

    frame = audit(tmp_path, Failing()).results
    bad = frame[frame["attack"] == "norm"]
    assert set(bad["status"]) == {"error"}
    assert bad["value"].isna().all()
    trainer = Trainer()
    frame = audit(tmp_path, trainer).results
    assert {a.name for _, attacks in trainer.calls for a in attacks} == {"norm"}
    assert set(frame["status"]) == {"ok"}
