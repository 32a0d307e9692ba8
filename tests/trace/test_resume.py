"""One training in several processes, one after the other: checkpoints, kills, time limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trace_audits import audit, first_of_each, record, signs

import vflsec
from vflsec.errors import ConfigError
from vflsec.trace.reader import Trace
from vflsec.trace.validate import info

N, D = 120, 3
Y = np.arange(N) % 3 % 2
KNOWN = first_of_each(Y, 8)


def part(folder: Path, epochs: Iterable[int], *, end: str = "", **how: Any) -> None:
    """A few epochs, of which the last one stops after two of its four batches if `end` says how."""
    with record(folder, Y, KNOWN, **{"resume": True} | how) as rec:
        last = list(epochs)[-1]
        for epoch in epochs:
            rec.epoch(epoch)
            g = torch.Generator().manual_seed(epoch)
            for step, rows in enumerate(torch.randperm(N, generator=g).split(30)):
                if end and (epoch, step) == (last, 2):
                    if end == "kill":
                        os._exit(9)
                    if end == "error":
                        raise RuntimeError("out of memory")
                    rec.pause()
                    return
                z = rec.cut(torch.randn(30, D, generator=g).requires_grad_() * 1, rows)
                z.backward(signs(Y, rows) + z.detach())


def stopped(folder: Path, epochs: Iterable[int], end: str, **how: Any) -> None:
    if end != "kill":
        with pytest.raises(RuntimeError) if end == "error" else contextlib.nullcontext():
            part(folder, epochs, end=end, **how)
        return
    child = os.fork()
    if not child:
        part(folder, epochs, end=end, **how)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("end", ["kill", "error", "pause"])
def test_a_training_that_goes_on_in_another_process_is_one_whole_trace(
    end: str, tmp_path: Path
) -> None:
    """A killed one was partial for good, and one that ended in order could not go on at all."""
    folder = tmp_path / "t"
    stopped(folder, (0, 1, 2), end)
    assert not (folder / "seal.json").exists()
    part(folder, (2, 3))
    assert info(folder)["status"] == "sealed"
    trace = Trace.open(folder)
    observer = trace.observer("bank")
    assert observer.info.complete
    assert {(h.kind, h.epochs) for h in observer.info.have} == {
        ("embedding", "all"), ("gradient", "all")
    }  # fmt: skip
    sent = [m for m in observer.messages() if m.kind == "embedding"]
    assert [m.step for m in sent] == list(range(4 + 4 + 2 + 4 + 4))
    assert [m.epoch for m in sent] == [0] * 4 + [1] * 4 + [2] * 2 + [2] * 4 + [3] * 4
    pairs = {m.fields.msg: m.rows.tolist() for m in sent}
    back = [m for m in observer.messages() if m.kind == "gradient"]
    assert all(pairs[m.pair] == m.rows.tolist() for m in back)
    result = audit(tmp_path, [folder], ("direction",), Y)
    assert not [n for n in result.summary["notes"] if "carries no pass" in n]
    assert result.results.query("metric == 'auc' and role == 'audit'").value.tolist() == [1.0]


def test_what_waited_in_memory_when_it_was_killed_is_missing(tmp_path: Path) -> None:
    stopped(tmp_path / "t", (0, 1), "kill", behind=8)
    part(tmp_path / "t", (1, 2), behind=8)
    assert info(tmp_path / "t")["status"] == "partial"


def test_without_saying_so_it_is_as_it_was(tmp_path: Path) -> None:
    stopped(tmp_path / "a", (0, 1), "error", resume=False)
    assert info(tmp_path / "a")["status"] == "partial"
    with pytest.raises(ConfigError, match="holds a seal"):
        part(tmp_path / "a", (1, 2))
    stopped(tmp_path / "b", (0, 1), "kill", resume=False)
    part(tmp_path / "b", (1, 2), resume=False)
    assert info(tmp_path / "b")["status"] == "partial"
    with pytest.raises(ConfigError, match="resume must be True"):
        part(tmp_path / "c", (0,), end="pause", resume=False)


@pytest.mark.parametrize("labels", [Y[KNOWN], None])
def test_rows_in_another_order_are_refused_when_it_goes_on(
    labels: np.ndarray | None, tmp_path: Path
) -> None:
    """Rows of a set, say: half of the messages were taken for those of other rows, unseen."""
    ids = np.array([f"client {i}" for i in range(N)])
    given = {"party": "bank", "role": "passive", "classes": 2, "resume": True}
    with vflsec.record(tmp_path / "t", rows=ids, known=(ids[KNOWN], Y[KNOWN]), **given) as rec:
        rec.pause()
    known = None if labels is None else (ids[KNOWN], labels)
    order = slice(None, None, -1 if labels is not None else 1)
    with (
        pytest.raises(ConfigError, match="with which training began"),
        vflsec.record(tmp_path / "t", rows=ids[order], known=known, **given),
    ):
        pass
    with vflsec.record(tmp_path / "t", rows=ids, known=(ids[KNOWN], Y[KNOWN]), **given) as rec:
        rec.cut(torch.zeros(N, D, requires_grad=True) * 1, ids).backward(torch.ones(N, D))
    assert info(tmp_path / "t")["status"] == "sealed"


def test_the_model_before_training_is_that_of_the_first_process(tmp_path: Path) -> None:
    x, bottoms = torch.randn(N, 4), [torch.nn.Linear(4, D) for _ in range(2)]
    stopped(tmp_path / "t", (0, 1), "pause", columns=x, model=bottoms[0])
    part(tmp_path / "t", (1, 2), columns=x, model=bottoms[1])
    observer = Trace.open(tmp_path / "t").observer("bank")
    held = {e.part: observer.weights(e)["weight"] for e in observer.info.moments[-1].models}
    assert torch.equal(held["initial"], bottoms[0].weight)
    assert torch.equal(held["bottom"], bottoms[1].weight)
