"""What stands in a folder when an audit is cut off: never a verdict that it did not give."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from audited import LEAKY, SEALED, Killed, Planted, gate, go, scenario
from sampled import sampled

from vflsec.audit.summary import read_summary
from vflsec.engine import run as engine
from vflsec.engine.evaluate_store import judge
from vflsec.engine.read_results import read_any, read_audit
from vflsec.engine.run import run_audit
from vflsec.errors import ConfigError
from vflsec.report import exports
from vflsec.storage import results_folder
from vflsec.storage.results_folder import LOCK_NAME, WRITTEN, claim
from vflsec.storage.store import Store

STRICT, LAX = gate(max=0.1), gate(max=0.4)


def test_exports_between_works_pass_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended in an error is tried again when all else is there: `summary.json` said 0, complete
    and no gate, until that was done, and for good where the audit was killed meanwhile.
    """
    path, out = scenario(tmp_path, "case", STRICT), tmp_path / "out"
    failing = Planted(LEAKY, fails=("norm",))
    assert go(failing, "audit", path, "--out", out, "-q", "--replicas", 1) == 1
    monkeypatch.setattr(engine, "FIRST", 0.0)

    class Cut(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.trained:
                raise KeyboardInterrupt
            return super().__call__(*args, **kwargs)

    assert go(Cut(LEAKY), "audit", path, "--out", out, "-q", "--replicas", 1) == 130
    said = json.loads((out / "summary.json").read_text())
    assert (said["exit_code"], said["complete"], said["gates"]) == (3, False, [])


@pytest.mark.parametrize("asked", [(), ("--max", 0.1), ("--baseline", "earlier")])
def test_what_an_interrupted_audit_measured_fails_nothing(
    tmp_path: Path, asked: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Some seeds of a leak were judged by `vflsec gate`, at the error level of all of them."""
    path, out, earlier = scenario(tmp_path, "case", STRICT), tmp_path / "out", tmp_path / "earlier"
    assert go(Planted(SEALED), "audit", path, "--out", earlier, "-q") != 1

    class Cut(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.trained) == 4:
                raise KeyboardInterrupt
            return super().__call__(*args, **kwargs)

    assert go(Cut(LEAKY), "audit", path, "--out", out, "-q", "--replicas", 1) == 130
    asked = tuple(earlier if word == "earlier" else word for word in asked)
    to = tmp_path / "report"
    assert go(Planted(SEALED), "report", earlier, "--to", to) == 0
    assert go(Planted(LEAKY), "gate", out, *asked, "--report", to) == 3
    assert list(to.iterdir()) == []
    assert "UNFINISHED" in capsys.readouterr().out
    found = read_audit(out)
    said = found.summary
    assert (found.exit_code, said["complete"], said["gates"]) == (3, False, [])
    assert said["points"]
    assert (said["findings"], said["leaks"], said["strongest"], said["grid"]) == ([], [], [], [])
    assert read_summary(said).claims == ()
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 1
    assert go(Planted(LEAKY), "gate", out, *asked) == 1
    assert read_audit(out).summary["leaks"]


def test_killed_between_its_files_an_export_leaves_no_summary_of_other_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary of some trainings stood beside the points of more, and was taken for edited."""
    path, out = scenario(tmp_path, "case", STRICT), tmp_path / "out"
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 1
    write = exports.write_atomic

    def killed(to: Path, writer: Any) -> None:
        write(to, writer)
        if to.name == exports.POINTS:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, Store(out) as store:
        patch.setattr(exports, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            judge(store, partial=True)
    assert (out / exports.POINTS).exists()
    assert not (out / "summary.json").exists()
    assert go(Killed(LEAKY), "audit", path, "--out", out, "-q") == 1
    assert exports.load_summary(out)["complete"]


def test_killed_between_its_files_a_judgement_leaves_none_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a new report that failed stood the JUnit and the PDF of a judgement that passed."""
    path, out, to = scenario(tmp_path, "case", STRICT), tmp_path / "out", tmp_path / "report"
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 1
    assert go(Planted(LEAKY), "gate", out, "--max", 0.4, "--report", to) != 1
    (to / "report.pdf").write_bytes((to / "report.html").read_bytes())
    write = exports.write_atomic

    def killed(file: Path, writer: Any) -> None:
        write(file, writer)
        raise KeyboardInterrupt

    for again in (("gate", out, "--report", to), ("report", out, "--to", to)):
        with monkeypatch.context() as patch:
            patch.setattr(exports, "write_atomic", killed)
            assert go(Planted(LEAKY), *again) == 130
        assert [p.name for p in to.iterdir()] == ["report.html"]


def test_a_whole_audit_is_a_baseline_and_one_that_lacks_something_is_none(tmp_path: Path) -> None:
    path, out = scenario(tmp_path, "case", STRICT), tmp_path / "out"
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 1
    assert len(read_any(out)) > 0
    more = ("--set", "audit.seeds=6")
    assert go(Killed(LEAKY), "audit", path, "--out", out, "-q", *more) == 130
    with pytest.raises(ConfigError, match="whole audit"):
        read_any(out)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``case.toml`` and its whole audit in ``out``."""
    folder = tmp_path_factory.mktemp("standing")
    path = scenario(folder, "case", LAX)
    assert go(Planted(LEAKY), "audit", path, "--out", folder / "out", "-q") == 0
    return folder


@pytest.mark.parametrize(
    "changed",
    ["nothing", "summary.md", "results.sqlite", "gate", "seeds", "killed", "report.html"],
)
def test_an_audit_that_stands_is_read_back(
    standing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """It is judged and drawn anew if anything that was asked or written is not as it was."""
    shutil.copytree(standing, tmp_path, dirs_exist_ok=True)
    path, out = tmp_path / "case.toml", tmp_path / "out"
    if changed == "nothing":
        was = run_audit(path, out, backend=Planted(LEAKY).backend())  # given one, it never is
        assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 0
    judged: list[int] = []
    monkeypatch.setattr(engine, "judge", lambda *a, **k: judged.append(1) or judge(*a, **k))
    words: list[object] = []
    if changed in WRITTEN:
        with (out / changed).open("ab") as file:
            file.write(b" ")
    elif changed == "gate":
        path = scenario(tmp_path, "case", STRICT)
    elif changed == "seeds":
        words = ["--seeds", 2]
    elif changed == "killed":
        assert go(Killed(LEAKY), "audit", path, "--out", out, "-q", "--seeds", 9) == 130
    before = [p.stat().st_mtime_ns for name in WRITTEN if (p := out / name).exists()]
    code = go(Planted(LEAKY), "audit", path, "--out", out, "-q", *words)
    assert code == (1 if changed == "gate" else 3 if changed == "seeds" else 0)
    assert judged == ([] if changed == "nothing" else [1])
    if changed == "nothing":
        assert [(out / name).stat().st_mtime_ns for name in WRITTEN] == before
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "default_backend", Planted(LEAKY).backend)
            found = run_audit(path, out)
        pd.testing.assert_frame_equal(found.results, was.results)
        assert list(found.verdicts) == list(was.verdicts)


def test_nothing_of_another_attacker_is_judged_while_settings_are_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vflsec gate` passed on the audit before, which the killed one was to take the place of."""
    case, out = scenario(tmp_path, "case", LAX), tmp_path / "out"
    assert go(Planted(LEAKY), "audit", case, "--out", out, "-q") == 0
    assert go(Planted(LEAKY), "gate", out) == 0
    assert go(Killed(LEAKY), "audit", case, "--out", out, "-q", "--attacker", "strong") == 130
    assert not any((out / name).exists() for name in ("summary.json", "report.html", "junit.xml"))
    capsys.readouterr()
    assert go(Planted(LEAKY), "gate", out) == 2
    assert "Run the same `vflsec audit` again" in capsys.readouterr().err
    again = Planted(LEAKY)
    assert go(again, "audit", case, "--out", out, "-q") == 0
    assert again.trained == []
    assert go(Planted(LEAKY), "gate", out) == 0


def in_another_process(*command: object) -> int:
    """The exit code of a command in a process that holds no folder."""
    child = os.fork()
    if child == 0:
        results_folder._held.clear()
        code = 9
        try:
            code = go(Planted(LEAKY), *command)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("lost", sampled(["folder", "lock"]))
def test_an_audit_whose_folder_was_taken_from_it_writes_no_verdict_there(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder, or the lock in it, was removed while an audit ran, and another one began there:
    reports of the first stood beside the results of the second.
    """
    strict, lax = scenario(tmp_path, "strict", STRICT), scenario(tmp_path, "lax", LAX)
    out, codes = tmp_path / "out", list[int]()

    class Meanwhile(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not codes:
                if lost == "lock":
                    (out / LOCK_NAME).unlink()
                else:
                    shutil.rmtree(out)
                codes.append(in_another_process("audit", strict, "--out", out))
            return super().__call__(*args, **kwargs)

    assert go(Meanwhile(LEAKY), "audit", lax, "--out", out, "-q") == 2
    assert codes == [1]
    err = capsys.readouterr().err
    assert str(out) in err
    assert "during this audit" in err
    assert json.loads((out / "summary.json").read_text())["exit_code"] == 1
    assert b"<failure" in (out / "junit.xml").read_bytes()
    assert go(Planted(LEAKY), "audit", strict, "--out", out, "-q") == 1


def test_a_lock_knows_whether_it_still_holds(tmp_path: Path) -> None:
    with claim(tmp_path) as lock:
        lock.forget()
        lock.held()
        (tmp_path / LOCK_NAME).rename(tmp_path / "aside")
        with pytest.raises(ConfigError, match=r"results\.lock"):
            lock.held()
        (tmp_path / LOCK_NAME).write_bytes(b"")
        with pytest.raises(ConfigError, match=r"results\.lock"):
            lock.held()


_ORPHANS = """
import os, sys, time
from vflsec.engine.worker_pools import Processes

def busy(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        open(f"{path} interrupted", "w").close()

workers = Processes(2)
executor = workers.executor()
futures = [executor.submit(busy, sys.argv[1]) for _ in range(2)]
time.sleep(600)
"""


@pytest.fixture
def started(tmp_path: Path, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    script = tmp_path / "orphans.py"
    script.write_text(_ORPHANS)
    command = [sys.executable, str(script), str(tmp_path / "pids")]
    process = subprocess.Popen(command, env=env, start_new_session=True)
    yield process
    for pid in (process.pid, *_pids(tmp_path / "pids")):
        if _lives(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who lives")
def test_workers_end_with_the_process_that_asked_them(
    started: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """After kill -9 they finished what they had begun, for hours perhaps, beside the audit that
    resumed, and wrote kept views and shared controls into its folder.
    """
    end = time.monotonic() + 120
    while len(_pids(tmp_path / "pids")) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    workers = _pids(tmp_path / "pids")
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGINT)  # as a terminal tells all: they printed tracebacks
    time.sleep(0.5)
    assert all(map(_lives, workers))
    assert not (tmp_path / "pids interrupted").exists()
    started.kill()
    started.wait()
    end = time.monotonic() + 15
    while any(map(_lives, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(_lives, workers))


_LAST = """
import signal, sys, time
from vflsec.cli import main as cli
from vflsec.plugins.loading import seal_exit

cli._end_in_order()
seal_exit(1)
print("sealed", flush=True)
try:
    time.sleep(60)
finally:
    print("went on")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_all_is_said_a_signal_ends_the_process_at_once(number: int, root: Path) -> None:
    """A second Ctrl-C, while workers were joined, printed a traceback under the last sentence."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", _LAST], env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "sealed\n"
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -number
