"""What all adapters share: processes side by side, pairs by step, number types, row ids."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Cli
from trace_audits import read

from vflsec.errors import ConfigError, ShapeError, TraceError
from vflsec.trace import writer as writer_of
from vflsec.trace.adapters.base import Wire, in_order, version_of
from vflsec.trace.limits import Limits
from vflsec.trace.reader import Trace
from vflsec.trace.seal import seal
from vflsec.trace.validate import validate

N = 6


def wire(folder: Path, **how: Any) -> Wire:
    how = {"party": "bank", "role": "passive", "rows": N, "loss_reduction": "mean"} | how
    return Wire(folder / "trace", framework=("loop", "1"), adapter="test", **how)


def stopped(w: Wire) -> None:
    """As if its process had been killed: nobody records any more, and nothing was ended."""
    assert w.recording.writer is not None
    w.recording.writer.release()


def messages(folder: Path) -> list[Any]:
    return read(folder / "trace")


def z(step: int, n: int = N) -> np.ndarray:
    return np.full((n, 2), step, np.float32)


def test_late_gradients_belong_to_the_embedding_of_their_step(tmp_path: Path) -> None:
    """Two processes serve the party; the gradient of step 0 comes after the embedding of step 1."""
    one, two = wire(tmp_path), wire(tmp_path)
    ids = {0: [3, 1, 0, 2, 4, 5], 1: [5, 4, 3, 2, 1, 0]}
    one.tell("embedding", z(0), ids[0], sent=True, step=0)
    two.tell("embedding", z(1), ids[1], sent=True, step=1)
    two.tell("gradient", z(10), sent=False, step=0)
    one.tell("gradient", z(11), sent=False, step=1)
    raw = messages(tmp_path)
    for w in (one, two):
        w.recording.writer.close()
    assert seal(tmp_path / "trace", ended=True) == []
    for found in (raw, messages(tmp_path)):
        assert [(m.kind, m.step, m.pair) for m in found] == [
            ("embedding", 0, None), ("embedding", 1, None), ("gradient", 0, 0), ("gradient", 1, 1),
        ]  # fmt: skip
        assert [m.fields.msg for m in found] == [0, 1, 2, 3]
        assert [list(m.rows) for m in found] == [ids[0], ids[1], ids[0], ids[1]]
        assert [m.values[0, 0] for m in found] == [0, 1, 10, 11]
    trace = Trace.open(tmp_path / "trace")
    assert (trace.manifest.status, trace.manifest.framework.name) == ("sealed", "loop")
    info = trace.observer("bank").info
    assert info.complete
    assert info.targets == ["train"]
    assert info.moments[0].facts.widths == {"bank": 2}
    assert {h.kind: h.epochs for h in info.have} == {"embedding": "all", "gradient": "all"}
    assert validate(tmp_path / "trace").notes == []
    assert not list((tmp_path / "trace/view/bank").glob("raw-*"))


def test_without_a_step_or_with_one_used_twice_nothing_is_paired(tmp_path: Path) -> None:
    w = wire(tmp_path)
    w.tell("embedding", z(0), "all", sent=True)
    w.tell("gradient", z(1), sent=False)
    w.tell("embedding", z(2), [0, 1, 2, 3, 4, 5], sent=True, step=7)
    w.tell("embedding", z(3), [5, 4, 3, 2, 1, 0], sent=True, step=7)
    w.tell("gradient", z(4), sent=False, step=7)
    w.tell("gradient", z(5), sent=False, step=8)
    w.close()
    found = [m for m in messages(tmp_path) if m.kind == "gradient"]
    assert [m.pair for m in found] == [None] * 3
    assert all(m.rows is None for m in found)
    assert all(m.message() is None for m in found), "rows that nobody can name reach no attack"


def test_the_same_rows_twice_are_known_and_the_pair_is_not(tmp_path: Path) -> None:
    """A query that was tried again: which of both answers the gradient is of is not known."""
    w = wire(tmp_path)
    for _ in range(2):
        w.tell("embedding", z(3), "all", sent=True, step=7)
    w.tell("gradient", z(4), sent=False, step=7)
    w.close()
    last = messages(tmp_path)[-1]
    assert last.pair is None
    assert list(last.rows) == list(range(N))


def test_a_gradient_of_other_size_gets_no_rows(tmp_path: Path) -> None:
    w = wire(tmp_path)
    w.tell("embedding", z(0), "all", sent=True, step=0)
    w.tell("gradient", z(0, 3), sent=False, step=0)
    w.close()
    assert messages(tmp_path)[1].rows is None


def test_processes_are_merged_by_their_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([10, 40, 20, 15, 30])
    clock = SimpleNamespace(time_ns=lambda: next(now))  # logging asks the module itself
    monkeypatch.setattr(writer_of, "time", clock)
    one, two = wire(tmp_path), wire(tmp_path)
    for w, step in ((one, 0), (one, 3), (two, 1), (two, 2), (two, 4)):
        w.tell("embedding", z(step), "all", sent=True, step=step)
    found = messages(tmp_path)
    assert [m.step for m in found] == [0, 1, 2, 4, 3], "a clock that runs back breaks no order"
    assert [m.fields.msg for m in found] == [0, 1, 2, 3, 4]


def test_pairs_that_a_process_named_are_renumbered(tmp_path: Path) -> None:
    one, two = wire(tmp_path), wire(tmp_path)
    first = one.tell("embedding", z(0), "all", sent=True)
    second = two.tell("embedding", z(1), "all", sent=True)
    assert (first, second) == (0, 0)
    two.tell("gradient", z(11), "all", sent=False, pair=second)
    one.tell("gradient", z(10), "all", sent=False, pair=first)
    assert [m.pair for m in messages(tmp_path)] == [None, None, 1, 0]


_RACE = """
import sys, time
from pathlib import Path
import numpy as np
from vflsec.trace.adapters.base import Wire
time.sleep(max(0, float(sys.argv[2]) - time.time()))
w = Wire(sys.argv[1], framework=("loop", "1"), adapter="test", party="bank", role="passive",
         rows=4, columns=np.ones((4, 3), np.float32))
for i in range(20):
    w.tell("embedding", np.full((4, 2), i, np.float32), "all", sent=True, step=i)
"""


@pytest.mark.slow
def test_processes_that_begin_at_once(tmp_path: Path) -> None:
    """They share a folder, each with segments of its own; ending in order leaves an end mark."""
    start = str(time.time() + 6)
    command = [sys.executable, "-c", _RACE, str(tmp_path / "trace"), start]
    running = [subprocess.Popen(command) for _ in range(4)]
    assert [p.wait(timeout=120) for p in running] == [0] * 4
    assert seal(tmp_path / "trace") == [], "an orderly exit needs no --ended"
    assert sorted(m.step for m in messages(tmp_path)) == sorted(list(range(20)) * 4)
    own = Trace.open(tmp_path / "trace").observer("bank").own()
    assert own is not None
    assert bool(own[1].all())


@pytest.mark.parametrize(
    ("x", "dtype", "size", "store"),
    [
        (np.ones((2, 3), np.float16), "float16", 12, "d3-f2"),
        (torch.ones(2, 3).half(), "float16", 12, "d3-f2"),
        (torch.ones(2, 3, dtype=torch.bfloat16), "bfloat16", 12, "d3-f4"),
        (torch.ones(2, 3, requires_grad=True), "float32", 24, "d3-f4"),
        (np.ones((2, 3), np.int32), "int32", 24, "d3-f8"),
        ([[1.0, 2.0], [3.0, 4.0]], "float64", 32, "d2-f8"),
        (np.ones((2, 3, 4), ">f4"), ">f4", 96, "d12-f4"),
    ],
)
def test_number_types(tmp_path: Path, x: Any, dtype: str, size: int, store: str) -> None:
    w = wire(tmp_path)
    w.tell("embedding", x, [4, 5], sent=True)
    w.close()
    (found,) = messages(tmp_path)
    assert (found.wire_dtype, found.wire_bytes, found.store) == (dtype, size, store)
    plain = x.detach().float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    assert (found.values == plain).all()


def test_rows_may_repeat_within_a_message(tmp_path: Path) -> None:
    """Batches drawn with replacement: both copies count, as they do in the training."""
    w = wire(tmp_path)
    w.tell("embedding", z(1, 3), [2, 2, 0], sent=True, step=0)
    w.tell("gradient", np.array([[1, 0], [3, 0], [5, 0]], np.float16), sent=False, step=0)
    w.close()
    from vflsec.plugins import registry
    from vflsec.specs import AttackSpec
    from vflsec.trace.views import Evidence

    spec = AttackSpec("norm", {"accumulate": True}, ("bank",), known_rows=0)
    attack = registry.attacks.create(spec.name, spec.params)
    evidence = Evidence(Trace.open(tmp_path / "trace"), [(spec, attack)])
    table = evidence.view(spec).received("gradient", "mean")
    assert table.rows.tolist() == [0, 2]
    assert table.tensor.tolist() == [[15.0, 0.0], [6.0, 0.0]], "mean loss over a batch of 3"


def test_a_stopped_process_and_a_torn_one(tmp_path: Path, cli: Cli) -> None:
    """--ended forgives the missing end mark of a stream of whole messages, and nothing else."""
    for name, cut, code in (("whole", 0, "sealed"), ("torn", 5, "partial")):
        folder = tmp_path / name
        w = wire(folder)
        for i in range(3):
            w.tell("embedding", z(i), "all", sent=True, step=i)
        stopped(w)
        path = folder / "trace/view/bank/raw-0000-d2-f4.arrows"
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
        said = cli.says("trace", "seal", folder / "trace", "--ended")
        assert ("partial" in said) == (code == "partial")
        trace = Trace.open(folder / "trace")
        assert trace.manifest.status == code
        assert trace.observer("bank").info.complete == (code == "sealed")
    w = wire(tmp_path / "unsaid")
    w.tell("embedding", z(0), "all", sent=True)
    stopped(w)
    assert len(seal(tmp_path / "unsaid/trace")) == 1
    assert Trace.open(tmp_path / "unsaid/trace").manifest.status == "partial"


def test_evaluation_rows_are_targets_of_their_own(tmp_path: Path) -> None:
    w = wire(tmp_path)
    w.tell("embedding", z(0, 4), [0, 1, 2, 3], sent=True, step=0)
    w.tell("embedding", z(0, 3), [3, 4, 5], sent=True, step=0, phase="eval")
    w.close()
    observer = Trace.open(tmp_path / "trace").observer("bank")
    assert [observer.targets(s).tolist() for s in ("train", "test")] == [[0, 1, 2, 3], [4, 5]]


def test_one_wire_for_a_folder_and_party_in_a_process(tmp_path: Path) -> None:
    how: dict[str, Any] = {"framework": ("loop", "1"), "adapter": "test", "role": "passive",
                           "rows": N}  # fmt: skip
    first = Wire.at(tmp_path / "trace", party="bank", **how)
    assert Wire.at(str(tmp_path / "trace"), party="bank", **how) is first
    assert Wire.at(tmp_path / "trace", party="shop", **how) is not first
    first.tell("embedding", z(0), "all", sent=True)
    first.close()
    assert Wire.at(tmp_path / "trace", party="bank", **how) is not first


def test_nothing_is_written_before_something_passes(tmp_path: Path) -> None:
    wire(tmp_path).close()
    assert not (tmp_path / "trace").exists()


def test_a_forked_process_records_on_its_own(tmp_path: Path) -> None:
    w = wire(tmp_path)
    w.tell("embedding", z(0), "all", sent=True, step=0)
    child = os.fork()
    if child == 0:  # pragma: no cover
        w.tell("gradient", z(1), "all", sent=False, step=0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    w.tell("embedding", z(2), "all", sent=True, step=1)
    found = messages(tmp_path)
    assert [(m.kind, m.step) for m in found] == [
        ("embedding", 0), ("gradient", 0), ("embedding", 1),
    ]  # fmt: skip
    assert found[1].pair == 0


def test_in_order() -> None:
    places = in_order(5, 2)
    assert [places(i).tolist() for i in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]
    with pytest.raises(ConfigError, match="batch must be an integer"):
        in_order(5, 0)


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    w = wire(tmp_path)
    with pytest.raises(ShapeError, match="ids of gradient must be 3, got 6"):
        w.tell("gradient", z(0, 3), "all", sent=False)
    with pytest.raises(ConfigError, match="ids must be one of 'all'"):
        w.tell("gradient", z(0), "every", sent=False)
    with pytest.raises(ShapeError, match="a payload"):
        w.tell("embedding", np.array([["a"]]), sent=True)
    with pytest.raises(ShapeError, match="got a mapping"):
        w.tell("embedding", {"a": 1}, sent=True)
    with pytest.raises(ConfigError, match="peer"):
        w.tell("embedding", z(0), sent=True, peer="nobody")
    with pytest.raises(ConfigError, match=r"no-such-package. Run: pip install 'vflsec\[it\]'"):
        version_of("no-such-package", "it")


def test_many_segments_are_refused(tmp_path: Path) -> None:
    for _ in range(3):
        wire(tmp_path).tell("embedding", z(0), "all", sent=True)
    trace = Trace.open(tmp_path / "trace", Limits(segments=2))
    with pytest.raises(TraceError, match="segments must be at most 2, got 3"):
        list(trace.observer("bank").messages())
