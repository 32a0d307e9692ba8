"""Train once, attack for ever: kept views answer as the training would have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from vflsec.engine.run import run_audit
from vflsec.engine.views import views_bytes
from vflsec.plugins import TIMEOUT  # noqa: F401
from vflsec.reporter import Reporter
from vflsec.train import cohort

SMALL: dict[str, Any] = {
    "data": [{"name": "breast_cancer"}],
    "algorithm": [{"name": "splitnn", "epochs": 2}],
    "defense": [{"name": "iso", "strength": [0, 1]}],
    "attack": [{"name": "norm"}],
    "audit": {"seeds": 2, "references": [], "positive_control": False},
}
MORE: list[dict[str, Any]] = [
    {"name": "direction", "positives": 5, "over_time": True},
    {"name": "model_completion", "known_rows": 30, "variants": ["logistic"]},
    {"name": "gradient_completion", "known_rows": 12},
    {"name": "embedding_inversion", "adversary": "active", "aux_rows": 40},
    {"name": "lea", "peer_model": True},
    {"name": "norm", "dosing": [0.5]},
]


class Heard(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def small(**changed: Any) -> dict[str, Any]:
    return {**SMALL, **changed}


def figures(out: Path) -> pd.DataFrame:
    frame = pd.read_parquet(out / "results.parquet")
    keys = ["cell", "attack_key", "phase", "split", "metric"]
    return frame.sort_values(keys).reset_index(drop=True)


def same(a: Path, b: Path) -> None:
    x, y = figures(a), figures(b)
    assert len(x)
    pd.testing.assert_frame_equal(x, y, check_exact=True)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a training was begun")

    monkeypatch.setattr(cohort.Training, "build", refuse)
    monkeypatch.setattr(cohort.Training, "run", refuse)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kept") / "out"
    run_audit(small(), out, keep_views=True, device="cpu")
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    run_audit(small(attack=[*SMALL["attack"], *MORE]), out, device="cpu")
    return out


def test_an_added_attack_needs_no_training_and_finds_the_same(
    kept: Path, whole: Path, tmp_path: Path, no_training: None
) -> None:
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    heard = Heard()
    run_audit(small(attack=[*SMALL["attack"], *MORE]), out, device="cpu", progress=heard)
    assert heard.notes == []
    same(out, whole)
    found = figures(out)
    assert set(found["status"]) == {"ok"}
