"""A recorder that writes behind the loop: the same trace, and a bound on what a kill may take."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from trace_audits import read

import vflsec
from vflsec.errors import ConfigError
from vflsec.trace import writer as writing
from vflsec.trace.reader import Trace
from vflsec.trace.tables import ROWS, write_own, write_table

HOW: dict[str, Any] = {"party": "bank", "role": "passive", "loss_reduction": "mean"}


def loop(folder: Path, behind: int, kind: torch.dtype = torch.float32) -> list[Any]:
    """Batches of several sizes, whose memory the loop uses again and clears."""
    g = torch.Generator().manual_seed(0)
    z, ids = torch.zeros(8, 3, dtype=kind), torch.zeros(8, dtype=torch.int64)
    with vflsec.record(folder, rows=64, behind=behind, **HOW) as rec:
        for step in range(20):
            n = 8 if step % 5 else 5
            ids[:n] = torch.randperm(64, generator=g)[:n]
            z.copy_(torch.randn(8, 3, generator=g))
            sent = rec.cut(z[:n].clone().requires_grad_() * 1, ids[:n])
            ids.zero_()
            back = torch.randn(n, 3, generator=g).to(kind)
            sent.backward(back)
            back.zero_()
            rec.epoch(step // 7)
    return read(folder)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_same_trace(tmp_path: Path, kind: torch.dtype) -> None:
    direct, later = (loop(tmp_path / str(b), b, kind) for b in (0, 4))
    assert len(direct) == len(later) == 40
    for a, b in zip(direct, later, strict=True):
        assert a.fields.model_copy(update={"t": 0}) == b.fields.model_copy(update={"t": 0})
        assert np.array_equal(a.values, b.values)
        assert np.array_equal(a.rows, b.rows)
        assert len(set(a.rows.tolist())) == len(a.rows)  # ids as they were, not as cleared
    assert [m.pair for m in later[1::2]] == [*range(0, 40, 2)]
    times = [m.t for m in later]
    assert times == sorted(times)


def test_no_more_waits_than_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a writer that stands still the loop goes on for four messages, and then waits."""
    open_, real = threading.Event(), writing.Writer.put

    def held(self: Any, *fields: Any) -> int:
        assert open_.wait(60)
        return real(self, *fields)

    monkeypatch.setattr(writing.Writer, "put", held)
    told: list[int] = []
    with vflsec.record(tmp_path / "t", rows=8, behind=4, **HOW) as rec:

        def train() -> None:
            for step in range(12):
                rec.cut(torch.full((8, 2), float(step)), torch.arange(8))
                told.append(step)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert told == [0, 1, 2, 3]
        open_.set()
        thread.join(60)
        assert len(told) == 12
    assert [m.values[0, 0] for m in read(tmp_path / "t")] == [*range(12)]


def test_a_full_disk_is_said_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writing.Writer.put

    def full(self: Any, *fields: Any) -> int:
        if self.count == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, *fields)

    monkeypatch.setattr(writing.Writer, "put", full)
    done = []

    def train() -> None:
        with vflsec.record(tmp_path / "t", rows=8, behind=2, **HOW) as rec:
            for step in range(12):
                rec.cut(torch.full((8, 2), float(step)), torch.arange(8))
                done.append(step)

    with pytest.warns(RuntimeWarning, match="nothing more is recorded"):
        train()
    assert len(done) == 12
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.status == "partial"
    assert [m.step for m in read(tmp_path / "t")] == [0, 1, 2, 3, 4]


def test_what_is_wrong_is_said_in_the_loop(tmp_path: Path) -> None:
    with (
        vflsec.record(tmp_path / "t", rows=8, behind=2, **HOW) as rec,
        pytest.raises(ConfigError, match=r"none of the .* must be 0, got 1"),
    ):
        rec.cut(torch.zeros(2, 2), torch.tensor([0, 8]))
    with pytest.raises(ConfigError, match="record: behind"):
        vflsec.record(tmp_path / "u", rows=8, behind=-1, **HOW)


def test_a_stop_on_the_way_leaves_no_part_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bytes under the name of the own columns: what was killed so could not be sealed."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pq.ParquetWriter, "write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        write_table(tmp_path / "targets-train.parquet", ROWS, {"row": np.arange(3)})
    with pytest.raises(KeyboardInterrupt):
        write_own(tmp_path, torch.zeros(3, 2))
    assert not [*tmp_path.glob("*.parquet")]
