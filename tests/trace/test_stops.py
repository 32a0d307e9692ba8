"""Recorders that are stopped where nothing of a message is written, and disks that are full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import run_forked
from trace_audits import record

from vflsec.engine.trace_attacks import infer
from vflsec.errors import ConfigError, TraceError
from vflsec.trace import seal as sealing
from vflsec.trace import segments
from vflsec.trace.adapters.base import Wire
from vflsec.trace.leaves import Beside, import_leaves
from vflsec.trace.limits import TRUSTED
from vflsec.trace.reader import Trace
from vflsec.trace.seal import seal
from vflsec.trace.validate import validate

N = 12
Y = np.arange(N) % 2
HOW: dict[str, Any] = {
    "known": np.arange(4), "columns": torch.ones(N, 2), "aux": {"active": ([1], torch.ones(1, 2))},
}  # fmt: skip


def kill_at(call: int) -> Callable[..., None]:
    """Ends the process at so many calls of functions that write a trace."""
    left = [call]

    def count(frame: Any, event: str, _: object) -> None:
        if "vflsec/trace/" in frame.f_code.co_filename and event == "call":
            left[0] -= 1
            if not left[0]:
                os._exit(9)

    return count


def run_killed(folder: Path, call: int, **how: Any) -> int:
    """How a recording of no message ended that is killed there."""

    def begin() -> None:
        recording = record(folder, Y, **HOW | how)
        sys.setprofile(kill_at(call))
        recording.__enter__()
        sys.setprofile(None)
        os._exit(7)

    return run_forked(begin).returncode


def test_a_kill_at_the_start_leaves_what_is_valid_and_partial(tmp_path: Path) -> None:
    """It was sealed as whole, or sealed and then refused: own columns without their layout."""
    found, kills = set(), 0
    for call in range(20, 400, 4):
        folder = tmp_path / str(call)
        if run_killed(folder, call) == 7:
            break
        kills += 1
        if (folder / "manifest.json").exists():
            seal(folder)
            trace = Trace.open(folder)
            assert trace.manifest.status == "partial"
            assert not any(trace.observer(o).info.complete for o in trace.observers)
            found.add(tuple(validate(folder).messages.values()))
    assert {(), (0,)} >= found > set()
    assert kills > 6


def test_what_waited_of_a_process_that_wrote_nothing_is_missing(tmp_path: Path) -> None:
    folder, how = tmp_path / "t", {"resume": True, "behind": 8}

    def begin() -> None:
        rec = record(folder, Y, **how).__enter__()
        rec.writer.put = lambda *_: os._exit(9)  # type: ignore[method-assign, union-attr]
        rec.cut(torch.ones(N, 2), range(N))
        rec.wait()

    assert run_forked(begin).returncode == 9
    with record(folder, Y, **how) as rec:
        rec.cut(torch.ones(N, 2), range(N))
    trace = Trace.open(folder)
    assert (trace.manifest.status, trace.observer("bank").info.complete) == ("partial", False)


def test_a_seal_that_is_stopped_stays_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are gone by then, and with them what showed it."""
    recording = record(tmp_path / "t", Y).__enter__()
    recording.cut(torch.ones(N, 2), range(N))
    recording.writer.release()  # type: ignore[union-attr]
    with monkeypatch.context() as m:
        m.setattr(sealing, "write_seal", None)
        with pytest.raises(TypeError):
            seal(tmp_path / "t")
    assert len(seal(tmp_path / "t")) == 1
    assert Trace.open(tmp_path / "t").manifest.status == "partial"


@pytest.mark.parametrize("ended", [False, True])
def test_a_full_disk_is_no_end_of_the_run(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else can be written then, and `--ended` called such a trace whole."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    about: dict[str, Any] = {"framework": ("toy", "1"), "adapter": "toy", "role": "passive"}
    wire = Wire(tmp_path / "t", party="bank", rows=N, **about)
    wire.tell("embedding", np.ones((N, 2)), "all", sent=True, step=0)
    with monkeypatch.context() as m:
        m.setattr(segments.os, "writev", full)
        with pytest.warns(RuntimeWarning):
            wire.tell("embedding", np.ones((N, 2)), "all", sent=True, step=1)
        with pytest.warns(RuntimeWarning):
            wire.recording.end()
    seal(tmp_path / "t", ended=ended)
    trace = Trace.open(tmp_path / "t")
    assert (trace.manifest.status, trace.observer("bank").info.complete) == ("partial", False)
    assert validate(tmp_path / "t").messages == {"bank": 1}


@pytest.mark.parametrize(("how", "status"), [
    ({"behind": 64}, "partial"), ({"every_n_epochs": 2}, "sealed"), ({}, "sealed"),
])  # fmt: skip
def test_an_adapter_that_is_killed_says_what_it_did_not_write(
    how: dict[str, Any], status: str, tmp_path: Path
) -> None:
    """`--ended` called it whole: what waited to be written, or was left out, left no word."""
    about: dict[str, Any] = {"framework": ("toy", "1"), "adapter": "toy", "role": "passive"}

    def train() -> None:
        wire = Wire(tmp_path / "t", party="bank", rows=N, **about, **how)
        for step in range(40):
            wire.tell("embedding", np.ones((N, 2)), "all", sent=True, epoch=step, step=step)
        os._exit(9)

    assert run_forked(train).returncode == 9
    seal(tmp_path / "t", ended=True)
    trace = Trace.open(tmp_path / "t")
    assert (trace.manifest.status, trace.observer("bank").info.complete) == (status, not how)
    assert validate(tmp_path / "t").messages["bank"] == 40 or how


def test_a_training_that_goes_on_and_leaves_out_epochs_is_not_whole(tmp_path: Path) -> None:
    for epoch in range(2):
        with record(tmp_path / "t", Y, resume=True, every_n_epochs=2) as rec:
            rec.epoch(epoch)
            rec.cut(torch.ones(N, 2), range(N))
            if not epoch:
                rec.pause()
    assert not Trace.open(tmp_path / "t").observer("bank").info.complete


def test_a_disk_that_is_full_at_the_start_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as m:
        m.setattr("vflsec.trace.recorder.write_own", full)
        with pytest.raises(ConfigError, match="No space left"):
            record(tmp_path / "t", Y, **HOW).__enter__()
    with record(tmp_path / "t", Y, **HOW) as rec:
        rec.cut(torch.ones(N, 2), range(N))
    assert Trace.open(tmp_path / "t").manifest.status == "sealed"


@pytest.mark.parametrize("left", [b"PAR1", b""])
def test_half_a_table_of_an_older_recording_is_one_error(left: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    assert run_killed(folder, 10**6) == 7
    (folder / "view/bank/own-f4.parquet").write_bytes(left)
    with pytest.raises(TraceError, match=r"own-f4\.parquet: cannot be read"):
        seal(folder)


@pytest.mark.parametrize("gone", ["own-f4", "known", "aux-active-f4"])
def test_a_table_that_is_declared_is_there_before_a_seal(gone: str, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    assert run_killed(folder, 10**6) == 7
    (folder / f"view/bank/{gone}.parquet").unlink()
    with pytest.raises(TraceError, match=f"view/bank/{gone.removesuffix('-f4')} is missing"):
        seal(folder)
    assert not (folder / "seal.json").exists()


def test_a_second_training_does_not_join_one_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full when it was to be sealed; the messages of both were one whole trace."""

    def train() -> None:
        with record(tmp_path / "t", Y) as rec:
            rec.cut(torch.ones(N, 2), range(N))

    with monkeypatch.context() as m:
        m.setattr("vflsec.trace.recorder.seal", lambda *_, **__: None)
        train()
    with pytest.raises(ConfigError, match="has ended"):
        train()
    assert seal(tmp_path / "t") == []
    assert validate(tmp_path / "t").messages == {"bank": 1}


def test_leaves_are_not_imported_into_what_a_killed_import_left(tmp_path: Path) -> None:
    """Every tree stood there twice."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").touch()
    with pytest.raises(ConfigError, match="not empty"):
        import_leaves(tmp_path / "leaves.csv", tmp_path / "out", Beside())


def test_guesses_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them stood in the way of the same command."""
    with record(tmp_path / "t", Y, np.arange(4)) as rec:
        rec.cut(torch.ones(N, 2, requires_grad=True) * 1, range(N)).sum().backward()
    how: dict[str, Any] = {"attacks": ["norm"], "limits": TRUSTED}
    with monkeypatch.context() as m:
        m.setattr("vflsec.measure.guess_files.json", None)
        with pytest.raises(AttributeError):
            infer([tmp_path / "t"], tmp_path / "out/g", **how)
    assert [*tmp_path.glob("out/*")] == []
    assert (infer([tmp_path / "t"], tmp_path / "out/g", **how) / "answers.json").exists()
