"""An audit as an MLflow run: what is logged, where it is missing, and names that MLflow takes."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from printed import metrics, tags

from vflsec.cli import main
from vflsec.report.tracking import log_audit


class Fake(ModuleType):
    """Remembers what it was told, as MLflow's fluent interface is called."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.said: dict[str, Any] = {"files": []}

    def set_experiment(self, name: str) -> None:
        self.said["experiment"] = name

    @contextmanager
    def start_run(self, run_name: str) -> Any:
        self.said["run"] = run_name
        yield SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def set_tags(self, tags: dict[str, str]) -> None:
        self.said["tags"] = tags

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.said["metrics"] = metrics

    def log_artifact(self, path: str) -> None:
        self.said["files"].append(Path(path).name)


def test_a_run_has_verdict_figures_and_reports(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    assert main.main(["report", str(folder), "--mlflow", "privacy"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "MLflow run: r1" in said
    assert said[-1].startswith("FAIL with ")
    assert (fake.said["experiment"], fake.said["run"]) == ("privacy", "case")
    assert fake.said["tags"]["vflsec.verdict"] == "FAIL"
    assert {"report.html", "statement.html", "summary.json"} <= set(fake.said["files"])
    key = "advantage/breast_cancer/splitnn/iso 0/norm/shop/train/train"
    assert fake.said["metrics"][key] == pytest.approx(0.3, abs=0.02)
    assert fake.said["metrics"][key.replace("advantage", "advantage_low", 1)] > 0.25
    assert fake.said["metrics"]["utility/breast_cancer/splitnn/iso 5"] == pytest.approx(
        0.88, abs=0.02
    )


def test_names_are_what_mlflow_takes(summary: dict[str, Any]) -> None:
    for p in summary["points"]:
        p["attack"] = p["attack"] and f"{p['attack']}(a=1, b='x')"
        p["dataset"] = "d" * 300
    for name in [*metrics(summary), *tags(summary)]:
        assert re.fullmatch(r"[\w\-. /]{1,250}", name)


def test_without_mlflow_it_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main.main(["report", str(folder), "--mlflow", "privacy"]) == 2
    assert "pip install 'vflsec[mlflow]'" in capsys.readouterr().err


def test_a_local_store(summary: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    run = mlflow.get_run(log_audit(folder, summary, "privacy"))
    assert run.data.tags["vflsec.verdict"] == "FAIL"
    assert len(run.data.metrics) == len(metrics(summary))
