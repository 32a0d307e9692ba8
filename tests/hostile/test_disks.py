"""Real file systems that are full or read-only, lost logs: an error, or the same results."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from audited import LEAKY, Planted, gate, go, scenario

from vflsec.storage.store import Store

STRICT = gate(max=0.1)


def table(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "results.parquet")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenario(tmp_path_factory.mktemp("scenario"), "case", STRICT)


@pytest.fixture(scope="module")
def whole(path: Path) -> pd.DataFrame:
    """Results of an audit that nothing disturbs."""
    assert go(Planted(LEAKY), "audit", path, "--out", path.parent / "whole", "-q") == 1
    return table(path.parent / "whole")


Mount = Callable[[str], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Mount]]:
    """A small file system of its own, and what mounts it again with other options."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    try:
        mount("size=64m")
    except (AssertionError, OSError) as error:
        pytest.skip(f"no file system may be mounted here: {str(error).strip()[:80]}")
    try:
        yield folder, lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    "kilobytes", [96, *(pytest.param(k, marks=pytest.mark.slow) for k in (16, 160, 224, 352))]
)
def test_a_full_disk_is_told_and_loses_nothing(
    kilobytes: int, disk: tuple[Path, Mount], path: Path, whole: pd.DataFrame,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Wherever it fills up: the lock, the store, an export."""
    folder, remount = disk
    remount(f"size={kilobytes}k")
    planted = Planted(LEAKY)
    args = ("audit", path, "--out", folder / "out", "-q", "--replicas", 1)
    code = go(planted, *args)
    err = capsys.readouterr().err
    assert code == 2, err
    assert str(folder) in err
    assert "Traceback" not in err
    assert "internal" not in err
    stored = len(planted.trained)
    remount("size=64m")
    again = Planted(LEAKY)
    assert go(again, *args) == 1, capsys.readouterr().err
    assert len(again.trained) >= 15 - stored
    pd.testing.assert_frame_equal(table(folder / "out"), whole)


@pytest.mark.parametrize("kilobytes", [12, 32])
def test_a_draft_is_written_whole_or_what_was_there_stays(
    kilobytes: int, disk: tuple[Path, Mount], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of it is a scenario, too, without the gates; and --force had emptied the old one."""
    folder, remount = disk
    rows = "".join(f"{i},{i % 7},{i % 5},{i % 2}\n" for i in range(200))
    (tmp_path / "t.csv").write_text(f"id,a,b,y\n{rows}")
    remount(f"size={kilobytes}k")
    out, args = folder / "s.toml", ("init", tmp_path / "t.csv", "--label", "y", "--out")
    (folder / "rest").write_bytes(b"x" * 4096)  # with 32 the scenario's schema still fits
    assert go(Planted(LEAKY), *args, out) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not out.exists()
    (folder / "rest").unlink()
    out.write_text("mine = 1\n")
    assert go(Planted(LEAKY), *args, out, "--force") == 2
    assert out.read_text() == "mine = 1\n"


def test_a_full_disk_is_no_defect_of_a_recording(
    disk: tuple[Path, Mount], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries that write do not name the file; what was recorded is not taken for whole."""
    folder, remount = disk
    remount("size=400k")
    assert go(Planted(LEAKY), "trace", "record", path, "--out", folder / "traces") == 2
    assert "No space left on device" in capsys.readouterr().err
    remount("size=64m")
    for trace in (folder / "traces").iterdir():
        assert go(Planted(LEAKY), "trace", "audit", trace, "--out", folder / "out") in (2, 3)


def test_a_read_only_folder_is_refused_and_can_be_judged(
    disk: tuple[Path, Mount], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, remount = disk
    out = folder / "out"
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 1
    remount("ro")
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    capsys.readouterr()
    for target in (out, folder / "new"):
        planted = Planted(LEAKY)
        assert go(planted, "audit", path, "--out", target, "-q") == 2
        assert planted.trained == []
        err = capsys.readouterr().err
        assert "Read-only file system" in err
        assert str(target) in err
    assert go(Planted(LEAKY), "gate", out) == 1
    assert go(Planted(LEAKY), "report", out) == 0
    assert go(Planted(LEAKY), "compare", out, out) == 0
    assert go(Planted(LEAKY), "gate", out, "--report", folder / "to") == 2
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_meanwhile_is_told(
    disk: tuple[Path, Mount], path: Path, whole: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = disk
    out = folder / "out"

    class Pulls(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.trained) == 3:
                # files are open for writing, so the kernel asks for force
                subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
                command = ["mount", "-o", "remount,bind,ro", str(folder)]
                subprocess.run(command, check=True)
            return super().__call__(*args, **kwargs)

    args = ("audit", path, "--out", out, "-q", "--replicas", 1)
    try:
        code = go(Pulls(LEAKY), *args)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
    assert code in (1, 2)
    err = capsys.readouterr().err
    assert code == 1 or str(out) in err
    assert "Traceback" not in err
    assert go(Planted(LEAKY), *args) == 1
    pd.testing.assert_frame_equal(table(out), whole)


@pytest.mark.parametrize("left", [0.0, pytest.param(0.6, marks=pytest.mark.slow)])
def test_a_log_that_is_lost_or_cut_costs_trainings_and_no_more(
    left: float, path: Path, whole: pd.DataFrame, tmp_path: Path
) -> None:
    """The folder as a kill leaves it, without its write-ahead log or with a part of it."""
    out, found = tmp_path / "out", tmp_path / "found"

    class Copies(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.trained) == 7:
                shutil.copytree(out, found)
            return super().__call__(*args, **kwargs)

    assert go(Copies(LEAKY), "audit", path, "--out", out, "-q", "--replicas", 1) == 1
    log = found / "results.sqlite-wal"
    assert log.stat().st_size > 10_000
    data = log.read_bytes()
    log.write_bytes(data[: int(left * len(data))])
    if not left:
        log.unlink()
    (found / "results.sqlite-shm").unlink(missing_ok=True)
    again = Planted(LEAKY)
    assert go(again, "audit", path, "--out", found, "-q") == 1
    assert 8 <= len(again.trained) <= 15
    pd.testing.assert_frame_equal(table(found), whole)


LAX = gate(max=0.4)


def _killed_after_a_pass(folder: Path) -> Path:
    """The store and its log as kill -9 leaves them: of a strict audit, after a lax one passed."""
    lax, strict = scenario(folder, "lax", LAX), scenario(folder, "strict", STRICT)
    out = folder / "out"
    assert go(Planted(LEAKY), "audit", lax, "--out", out, "-q") == 0
    found = folder / "found"
    found.mkdir()

    class Copies(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            for name in ("results.sqlite", "results.sqlite-wal"):
                if not (found / name).exists():
                    shutil.copyfile(out / name, found / name)
            return super().__call__(*args, **kwargs)

    args = ("audit", strict, "--out", out, "-q", "--replicas", 1, "--set", "audit.seeds=6")
    assert go(Copies(LEAKY), *args) == 1
    return found


def test_without_its_log_a_store_still_says_which_audit_began_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vflsec gate` passed on the audit before, for the record of the next was in the log alone."""
    found = _killed_after_a_pass(tmp_path)
    (found / "results.sqlite-wal").unlink()
    capsys.readouterr()
    assert go(Planted(LEAKY), "gate", found) in (1, 3)
    assert "Gates of strict.toml" in capsys.readouterr().out


def test_a_log_counts_where_nothing_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There SQLite reads a log only beside its index, and was told that there is none: what was
    stored last, and the record of the last audit, were passed over.
    """
    found = _killed_after_a_pass(tmp_path)
    real = sqlite3.connect

    def connect(place: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        if str(found) in str(place) and "mode=ro" in str(place):
            raise sqlite3.OperationalError("unable to open database file")
        return real(place, *args, **kwargs)

    with Store(found, readonly=True) as store:
        wanted = store.record().scenario_toml
    before = sorted(p.name for p in found.iterdir())
    monkeypatch.setattr(sqlite3, "connect", connect)
    with Store(found, readonly=True) as store:
        assert store.record().scenario_toml == wanted
        assert "max = 0.1" in wanted
    assert go(Planted(LEAKY), "gate", found) in (1, 3)
    assert sorted(p.name for p in found.iterdir()) == before
    capsys.readouterr()
    (found / "results.sqlite-wal").unlink()
    (found / "results.sqlite-wal").mkdir()
    assert go(Planted(LEAKY), "gate", found) == 2
    assert "results.sqlite" in capsys.readouterr().err


def test_a_clock_that_jumps_back_meanwhile_changes_nothing(
    path: Path, whole: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    start = time.time()
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: start - 3600.0 * next(jumps))
    assert go(Planted(LEAKY), "audit", path, "--out", tmp_path / "out", "-q") == 1
    pd.testing.assert_frame_equal(table(tmp_path / "out"), whole)
