"""Segments: what is written by filling in Arrow's framing is what Arrow itself writes."""

from __future__ import annotations

import errno
import json
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from forked import CONTEXT
from sampled import sampled
from trace_audits import read

import vflsec
from vflsec.errors import ConfigError, TraceError
from vflsec.trace import segments
from vflsec.trace.reader import Trace
from vflsec.trace.seal import seal
from vflsec.trace.segments import META, Segment
from vflsec.trace.tables import Stored, build_tensor_schema

HOW: dict[str, Any] = {"party": "bank", "role": "passive", "loss_reduction": "mean"}


@pytest.mark.parametrize("store", ["f2", "f4", "f8"])
@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 5), (16, 8), (0, 4), (7, 1)])
@pytest.mark.parametrize("named", [True, False])
def test_arrow_reads_what_was_filled_in(
    store: str, n: int, width: int, named: bool, tmp_path: Path
) -> None:
    stored, path = Stored(width, store), tmp_path / "s.arrows"
    g = np.random.default_rng(0)
    segment, wrote = Segment(path, stored), []
    for i in range(5):
        x = g.normal(size=(n, width)).astype(stored.numpy)
        rows = g.integers(0, 99, n) if named else None
        text = json.dumps({"msg": i, "why": "é" * i})
        segment.append(x, rows, i, text.encode())
        wrote.append((x, rows, text))
    segment.close()
    with pa.ipc.open_stream(str(path)) as found:
        assert found.schema.equals(build_tensor_schema(stored))
        for i, (x, rows, text) in enumerate(wrote):
            batch, custom = found.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            assert json.loads(custom[META]) == json.loads(text)
            assert batch.column("msg").to_pylist() == [i] * n
            assert batch.column("pos").to_pylist() == list(range(n))
            flat = batch.column("value").flatten().to_numpy(zero_copy_only=False)
            assert np.array_equal(flat.reshape(n, width), x)
            ids = batch.column("row")
            assert ids.null_count == (0 if named else n)
            assert rows is None or np.array_equal(ids.to_numpy(), rows)
        with pytest.raises(StopIteration):
            found.read_next_batch()


def test_a_full_disk_leaves_whole_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes half of a message and then has no room: the half is taken back."""
    real, left = os.writev, [7]

    def short(file: int, parts: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if left[0] == 0:
            monkeypatch.setattr(segments.os, "write", full)
            return real(file, [bytes(parts[0])[:100]])
        return real(file, parts)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "t"

    def loop() -> None:
        with vflsec.record(folder, rows=64, **HOW) as rec:
            monkeypatch.setattr(segments.os, "writev", short)
            for i in range(8):
                z = rec.cut(torch.full((8, 3), float(i)).requires_grad_(), torch.arange(8) + 8 * i)
                z.backward(z.detach())
            monkeypatch.setattr(segments.os, "writev", real)

    with pytest.warns(RuntimeWarning, match="nothing more is recorded"):
        loop()
    trace = Trace.open(folder)
    assert trace.manifest.status == "partial"
    found = list(trace.observer("bank").messages())
    assert 4 <= len(found) < 8
    for m in found:
        assert (m.values == m.rows[0] // 8).all()


def test_a_disk_too_full_to_seal_leaves_the_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t"

    def none(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rec = vflsec.record(folder, rows=8, **HOW).__enter__()
    rec.cut(torch.ones(8, 3), torch.arange(8))
    monkeypatch.setattr("vflsec.trace.seal._write", none)
    with pytest.warns(RuntimeWarning, match="is not sealed .*No space left"):
        rec.close()
    monkeypatch.undo()
    assert not (folder / "seal.json").exists()
    assert len(read(folder)) == 1
    assert seal(folder) == []
    assert len(read(folder)) == 1


@pytest.mark.parametrize("behind", [0, 2])
def test_a_fork_may_not_write(tmp_path: Path, behind: int) -> None:
    """Workers of a data loader inherit the recording; neither their writes nor their end count."""
    with vflsec.record(tmp_path / "t", rows=8, behind=behind, **HOW) as rec:
        rec.cut(torch.ones(8, 3), torch.arange(8))
        child = os.fork()
        if not child:
            code = 1
            try:
                rec.cut(torch.zeros(8, 3), torch.arange(8))
            except ConfigError as why:
                code = 0 if "was forked" in str(why) else 2
            rec.close()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        rec.cut(torch.ones(8, 3), torch.arange(8))
    found = read(tmp_path / "t")
    assert [float(m.values.mean()) for m in found] == [1.0, 1.0]


def _record_rank(folder: Path, rank: int, how: str, other: Connection) -> None:
    with vflsec.record(folder, rows=32, party="bank", role="passive", classes=2) as rec:
        other.send("open")
        other.recv()
        for step in range(3):
            rows = torch.arange(4) + 16 * rank + 4 * step
            z = rec.cut(rows.float().unsqueeze(1).repeat(1, 2).requires_grad_(), rows)
            z.backward(-z.detach())
        if how == "fails":
            raise SystemExit(3)


@pytest.mark.parametrize("fails", sampled(["fails", "ends"]))
def test_ranks_of_one_run_share_a_folder(fails: str, tmp_path: Path) -> None:
    """Two processes record at the same time; the last one seals, and the first one's is there."""
    folder = tmp_path / "t"

    ranks = []
    for k, how in enumerate((fails, "ends")):
        mine, theirs = CONTEXT.Pipe()
        made = CONTEXT.Process(target=_record_rank, args=(folder, k, how, theirs), daemon=True)
        made.start()
        theirs.close()  # so that its end is heard
        assert mine.recv() == "open"
        ranks.append((made, mine))
    with pytest.raises(TraceError, match="is being recorded"):
        seal(folder)
    for k, (made, mine) in enumerate(ranks):
        mine.send("on")
        made.join(timeout=60)
        assert made.exitcode == (3 if k == 0 and fails == "fails" else 0)
        assert (folder / "seal.json").exists() is (k == 1)
    trace = Trace.open(folder)
    assert trace.manifest.status == ("partial" if fails == "fails" else "sealed")
    observer = trace.observer("bank")
    assert observer.info.complete is (fails == "ends")
    found = list(observer.messages())
    assert len(found) == 12
    assert all(found[m.pair].rows.tolist() == m.rows.tolist() for m in found if m.pair is not None)
    assert all((m.values[:, 0] == (m.rows if m.kind == "embedding" else -m.rows)).all()
               for m in found)  # fmt: skip
    assert observer.targets("train").tolist() == [*range(12), *range(16, 28)]
