"""Output that nobody reads, or that must not be read as something else."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from audited import SCENARIO, Planted, gate
from command_line import Cli
from sampled import sampled

from vflsec.cli import main
from vflsec.engine import run as engine

LEAKS = {"norm": 0.3, "model_completion": 0.2}


class Broken(io.StringIO):
    """A stream that takes some text and then nothing."""

    def __init__(self, error: int, after: int = 0) -> None:
        super().__init__()
        self.error, self.left = error, after

    def write(self, text: str) -> int:
        if self.left <= 0:
            raise OSError(self.error, os.strerror(self.error))
        self.left -= 1
        return super().write(text)

    def flush(self) -> None:
        if self.left <= 0:
            raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("error", sampled([errno.EPIPE, errno.ENOSPC]))
@pytest.mark.parametrize("after", sampled([0, 2]))
@pytest.mark.parametrize(("limit", "code"), [(0.4, 0), (0.1, 1)])
def test_lost_output_never_changes_a_verdict(
    error: int, after: int, limit: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed pipe ended the audit with 1 and nothing trained."""
    planted = Planted(LEAKS)
    monkeypatch.setattr(engine, "default_backend", planted.backend)
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + gate(max=limit))
    monkeypatch.setattr(sys, "stdout", Broken(error, after))
    assert main.main(["audit", str(path), "--out", str(tmp_path / "out")]) == code
    assert len(planted.trained) == 15
    assert (tmp_path / "out" / "report.html").stat().st_size > 0


def test_a_full_disk_under_a_listing_is_an_error_and_a_closed_pipe_is_none(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken(errno.ENOSPC))
        assert cli("list", "attacks") == 2
    assert "cannot be written: No space left" in cli.err
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Broken(errno.EPIPE))
        assert cli("list", "attacks") == 0


@pytest.mark.parametrize("name", sampled(["[/]", "[red]x", "[link=file:]x", ":smile:", "a b"], 2))
def test_markup_in_a_name_is_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    monkeypatch.chdir(tmp_path)
    Path("case.toml").write_text(SCENARIO)
    out = cli.says("audit", "case.toml", "--out", name)
    assert f"into {name}." in out
    assert f"Results: {name}" in out


def test_no_color_means_no_escape_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + gate(max=0.1))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in cli.says("audit", path, "--out", tmp_path / "out", code=1)
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" in cli.says("gate", tmp_path / "out", code=1)


@pytest.mark.parametrize("closed", [False, True])
def test_a_terminal_without_letters_or_a_closed_one_changes_nothing(
    closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + gate(max=0.1))
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, encoding="ascii", write_through=True)
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main.main(["audit", str(path), "--out", str(tmp_path / "é")]) == 1
    assert closed or b"Results:" in held.getvalue()


@pytest.mark.slow
def test_a_real_closed_pipe(root: Path) -> None:
    command = f"{sys.executable} -m vflsec list attacks | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=root, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """What waits for the other end of a pipe fails instead of stopping all tests."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_waiting")
def test_what_has_no_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """A pipe that nobody writes or reads, and a device that never ends."""
    pipe, out = tmp_path / "summary.json", tmp_path / "out"
    os.mkfifo(pipe)
    monkeypatch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pipe))
    (tmp_path / "case.toml").write_text(SCENARIO + gate(max=0.1))
    assert cli("audit", tmp_path / "case.toml", "--out", out, "-q") == 1
    assert f"GITHUB_STEP_SUMMARY: {pipe}: cannot be written" in cli.err
    for args in (
        ["report", str(tmp_path)],
        ["gate", str(out), "--baseline", str(pipe)],
        ["gate", str(out), "--baseline", "/dev/zero"],
    ):
        assert "it is a device, a pipe or a folder" in cli.refuses(*args)
