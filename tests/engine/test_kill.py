"""Twenty runs killed at random moments: each resumes to what an unbroken run finds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

SCENARIO = """
data = { name = "breast_cancer" }
algorithm = { name = "splitnn", epochs = 3 }
defense = [{ name = "iso", strength = [0, 1] }]
attack = [{ name = "norm" }]
audit = { seeds = 3, references = [], positive_control = false }
"""


def command(scenario: Path, out: Path) -> list[str]:
    """One cell at a time, so that there is something between the first and the last."""
    return [sys.executable, "-m", "vflsec", "audit", str(scenario), "--out", str(out),
            "--device", "cpu", "--replicas", "1"]  # fmt: skip


def found(out: Path) -> pd.DataFrame:
    frame = pd.read_parquet(out / "results.parquet")
    keys = ["cell", "attack_key", "phase", "split", "metric"]
    return frame.sort_values(keys).reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.long
def test_twenty_killed_runs_resume_to_the_same_results(tmp_path: Path, root: Path) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    whole = tmp_path / "whole"
    started = time.monotonic()
    subprocess.run(command(scenario, whole), env=env, check=True, capture_output=True)
    duration = time.monotonic() - started
    want = found(whole)
    assert len(want) > 0
    moments, interrupted = random.Random(0), 0
    for k in range(20):
        out = tmp_path / f"killed{k}"
        process = subprocess.Popen(
            command(scenario, out), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        begun = time.monotonic()
        try:
            process.wait(moments.uniform(0.2, 1.0) * duration)
            duration = min(duration, time.monotonic() - begun)  # the first run met a busier machine
        except subprocess.TimeoutExpired:
            interrupted += 1
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run(command(scenario, out), env=env, check=True, capture_output=True)
        pd.testing.assert_frame_equal(found(out), want)
    assert interrupted >= 10, "most kills must have met a living process"
