"""Processes that are stopped, starved or started twice: nothing is lost, nothing is mixed up."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCENARIO = """
data = { name = "breast_cancer" }
algorithm = { name = "splitnn", epochs = 2 }
defense = [{ name = "iso", strength = [0, 1] }]
attack = [{ name = "norm" }]
audit = { seeds = 3, references = [], positive_control = false }
gate = [{ max = LIMIT }]
"""


def command(scenario: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "vflsec", "audit", str(scenario), "--out", str(out),
            "--device", "cpu", "--replicas", "1"]  # fmt: skip


def finish(
    scenario: Path, out: Path, env: dict[str, str], **how: Any
) -> subprocess.CompletedProcess[str]:
    """An audit that nobody disturbs."""
    return subprocess.run(
        command(scenario, out), env=env, capture_output=True, text=True, check=False, **how
    )


@pytest.fixture
def env(root: Path) -> dict[str, str]:
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def scenario(folder: Path, name: str, limit: float) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(SCENARIO.replace("LIMIT", str(limit)))
    return path


def stored(out: Path) -> int:
    """How many trainings are in the store; 0 before there is one."""
    try:
        db = sqlite3.connect(f"{(out / 'results.sqlite').as_uri()}?mode=ro", uri=True)
        try:
            return int(db.execute("select count(*) from cells").fetchone()[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0


def until_it_trains(process: subprocess.Popen[str], out: Path) -> None:
    end = time.monotonic() + 120
    while process.poll() is None and stored(out) < 1 and time.monotonic() < end:
        time.sleep(0.02)


def as_at_a_terminal() -> None:
    """Signals that `nohup`, or a shell in the background, has told the tests to ignore."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_a_signal_loses_nothing(name: str, tmp_path: Path, env: dict[str, str]) -> None:
    path, out = scenario(tmp_path, "case", -0.9), tmp_path / "out"
    process = subprocess.Popen(
        command(path, out), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=as_at_a_terminal,
    )  # fmt: skip
    until_it_trains(process, out)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if name == "SIGKILL" else 130)
    assert ("Resume: vflsec" in err) == (name != "SIGKILL")
    assert "Traceback" not in err
    before = stored(out)
    assert before >= 1
    done = finish(path, out, env)
    assert done.returncode in (1, 3), done.stderr
    assert stored(out) == 6


def test_two_processes_in_one_folder(tmp_path: Path, env: dict[str, str]) -> None:
    """The second is refused and told who holds the folder; the first keeps its verdict."""
    strict, lax = scenario(tmp_path, "strict", -0.9), scenario(tmp_path, "lax", 0.4)
    out = tmp_path / "out"
    first = subprocess.Popen(
        command(strict, out), env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until_it_trains(first, out)
    first.send_signal(signal.SIGSTOP)  # it holds the folder, however slow this machine is
    try:
        second = finish(lax, out, env)
    finally:
        first.send_signal(signal.SIGCONT)
    said, err = first.communicate(timeout=300)
    assert second.returncode == 2, second.stderr
    assert f"process {first.pid} on" in second.stderr
    assert first.returncode == 1, err
    assert "FAIL" in said
    assert "<= 0.4" not in said


def test_a_file_that_may_not_grow_is_told(tmp_path: Path, env: dict[str, str]) -> None:
    path, out = scenario(tmp_path, "case", 0.1), tmp_path / "out"

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    done = finish(path, out, env, preexec_fn=small)
    assert done.returncode == 2, done.stderr
    assert str(out) in done.stderr
    assert "Traceback" not in done.stderr
    whole = finish(path, out, env)
    assert whole.returncode in (0, 1, 3), whole.stderr


def test_an_exit_handler_does_not_change_the_exit_code(tmp_path: Path, env: dict[str, str]) -> None:
    """It runs when the verdict is out already, and turned 1 into 0."""
    (tmp_path / "mine.py").write_text(
        "import atexit, os, torch\natexit.register(lambda: os._exit(0))\n"
        "def Net(schema, out): return torch.nn.Linear(schema.shape[0], out)\n"
    )
    path = tmp_path / "case.toml"
    text = SCENARIO.replace("LIMIT", "-0.9") + '[parties.passive]\nmodule = "mine:Net"\n'
    path.write_text(text)
    done = finish(path, tmp_path / "out", env, cwd=tmp_path)
    assert done.returncode == 1, done.stderr


def test_a_thread_that_is_left_running_cannot_end_the_audit_with_0(
    tmp_path: Path, env: dict[str, str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, threading, torch\n"
        "timer = threading.Timer(1.0, lambda: os._exit(0))\ntimer.daemon = True\ntimer.start()\n"
        "def Net(schema, out): return torch.nn.Linear(schema.shape[0], out)\n"
    )
    text = SCENARIO.replace("LIMIT", "0.45").replace("epochs = 2", "epochs = 500")
    path = tmp_path / "case.toml"
    path.write_text(text + '[parties.passive]\nmodule = "mine:Net"\n')
    done = finish(path, tmp_path / "out", env, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "os._exit(0)" in done.stderr
