"""The recorder in somebody's loop: it changes nothing, and gradients of rows compare."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import CONTEXT
from sampled import sampled
from torch import Tensor, nn
from trace_audits import read

import vflsec
from vflsec.errors import ConfigError, VflsecError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.trace.limits import Limits
from vflsec.trace.reader import Trace
from vflsec.trace.record_api import Recording
from vflsec.trace.seal import seal
from vflsec.trace.validate import validate
from vflsec.trace.views import Evidence

N, D = 50, 3


def world() -> tuple[Tensor, Tensor, nn.Module, nn.Module]:
    """Columns, labels, a fixed bottom and a fixed top: nothing is trained, so truth is known."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 4, generator=g)
    y = (x[:, 0] > 0).long()
    bottom, top = nn.Linear(4, D), nn.Linear(D, 2)
    with torch.no_grad():
        for p in (*bottom.parameters(), *top.parameters()):
            p.copy_(torch.randn(p.shape, generator=g))
    return x, y, bottom, top


def row_gradients() -> Tensor:
    """Gradient of each row's own loss by its embedding, one row at a time: (N, D)."""
    x, y, bottom, top = world()
    out = []
    for i in range(N):
        z = bottom(x[i : i + 1]).detach().requires_grad_()
        nn.functional.cross_entropy(top(z), y[i : i + 1]).backward()
        out.append(z.grad[0])
    return torch.stack(out)


def folded(folder: Path, party: str = "bank", form: str = "mean") -> Any:
    """The table of received gradients that an attack would get."""
    spec = AttackSpec("norm", {"accumulate": form == "mean"}, (party,), known_rows=0)
    attack = registry.attacks.create(spec.name, spec.params)
    return Evidence(Trace.open(folder), [(spec, attack)]).view(spec).received("gradient", form)


def loop(
    rec: Recording,
    *,
    batch: int = 16,
    reduction: str = "mean",
    divide: int = 1,
    scale: Callable[[], float] = lambda: 1.0,
    ids: Callable[[Tensor], Any] = lambda rows: rows,
    epochs: int = 1,
) -> list[Tensor]:
    """A split loop; returns what came back for each batch."""
    x, y, bottom, top = world()
    came = []
    for epoch in range(epochs):
        rec.epoch(epoch)
        order = torch.randperm(N, generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(batch):
            z = rec.cut(bottom(x[rows]), ids(rows))
            h = z.detach().requires_grad_()
            loss = nn.functional.cross_entropy(top(h), y[rows], reduction=reduction)
            (loss * scale() / divide).backward()
            z.backward(h.grad)
            came.append(h.grad.clone())
            h.grad.zero_()  # what was recorded must be a copy
    return came


def recording(folder: Path, **how: Any) -> Recording:
    how = {"rows": N, "loss_reduction": "mean"} | how
    return vflsec.record(folder / "trace", party="bank", role="passive", **how)


def check_rows(folder: Path) -> None:
    table = folded(folder / "trace")
    assert torch.equal(table.rows, torch.arange(N))
    torch.testing.assert_close(table.tensor, row_gradients(), rtol=1e-5, atol=1e-6)


def test_declaring_the_wrong_reduction_shows(tmp_path: Path) -> None:
    """The test above can fail: mean taken for sum leaves the batch size in."""
    with recording(tmp_path, loss_reduction="sum") as rec:
        loop(rec, reduction="mean")
    with pytest.raises(AssertionError):
        check_rows(tmp_path)


def test_two_backward_passes_are_two_messages(tmp_path: Path) -> None:
    x, _, bottom, _ = world()
    with recording(tmp_path) as rec:
        z = rec.cut(bottom(x[:8]), torch.arange(8))
        z.backward(torch.ones(8, D), retain_graph=True)
        z.backward(2 * torch.ones(8, D))
    found = read(tmp_path / "trace")
    assert [m.kind for m in found] == ["embedding", "gradient", "gradient"]
    assert [m.micro for m in found[1:]] == [0, 1]
    assert [float(m.values[0, 0]) for m in found[1:]] == [1.0, 2.0]
    assert [m.pair for m in found[1:]] == [0, 0]


class Scaler:
    """A factor that is halved for every batch, as a GradScaler does after an overflow."""

    def __init__(self) -> None:
        self.scale = 65536.0

    def __call__(self) -> float:
        return self.scale

    def halve(self, rows: Tensor) -> Tensor:
        self.scale /= 2
        return rows


def scaled() -> tuple[dict[str, Any], dict[str, Any]]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    return {"grad_scale": scaler}, {"scale": scaler.get_scale}


def halved() -> tuple[dict[str, Any], dict[str, Any]]:
    scaler = Scaler()
    return {"grad_scale": scaler}, {"scale": scaler, "ids": scaler.halve}


LOOPS: dict[str, tuple[Callable[[], Any], tuple[str, list[Any]]]] = {
    "mean, a last batch in part": (lambda: ({}, {}), ("n_rows", [16, 16, 16, 2])),
    "sum": (
        lambda: ({"loss_reduction": "sum"}, {"reduction": "sum"}), ("loss_reduction", ["sum"] * 4),
    ),
    "accumulation": (
        lambda: ({"accumulation": 2}, {"divide": 2}), ("micro", [0, 1, 0, 1]),
    ),
    "AMP": (halved, ("grad_scale", [32768.0, 16384.0, 8192.0, 4096.0])),
    "GradScaler": (scaled, ("grad_scale", [1024.0] * 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_gradients_are_those_of_each_rows_own_loss(name: str, tmp_path: Path) -> None:
    make, (field, told) = LOOPS[name]
    how, loops = make()
    with recording(tmp_path, **how) as rec:
        loop(rec, **loops)
    check_rows(tmp_path)
    found = [m for m in read(tmp_path / "trace") if m.kind == "gradient"]
    assert [getattr(m, field) for m in found] == told
    assert [m.step for m in found] == ([0, 0, 1, 1] if name == "accumulation" else [0, 1, 2, 3])


def test_bfloat16(tmp_path: Path) -> None:
    x, y, bottom, top = world()
    with recording(tmp_path) as rec, torch.autocast("cpu", dtype=torch.bfloat16):
        z = rec.cut(bottom(x), torch.arange(N))
        nn.functional.cross_entropy(top(z), y).backward()
    found = read(tmp_path / "trace")
    assert [m.wire_dtype for m in found] == ["bfloat16", "bfloat16"]
    assert found[0].values.dtype == np.float32
    assert np.array_equal(found[0].values, z.detach().float().numpy())


def test_evaluation_passes_are_their_own_phase(tmp_path: Path) -> None:
    x, _, bottom, _ = world()
    with recording(tmp_path) as rec:
        loop(rec, batch=25)
        with torch.no_grad():
            rec.cut(bottom(x), torch.arange(N))
        rec.cut(bottom(x).detach(), torch.arange(N))
    trace = Trace.open(tmp_path / "trace")
    phases = [(m.kind, m.phase) for m in trace.observer("bank").messages()]
    assert phases.count(("embedding", "eval")) == 2
    assert ("gradient", "eval") not in phases
    check_rows(tmp_path)


def test_nothing_that_the_loop_computes_changes(tmp_path: Path) -> None:
    with recording(tmp_path) as rec:
        with_it = loop(rec, epochs=2)

    class Nothing:
        def cut(self, z: Tensor, _: Any) -> Tensor:
            return z

        def epoch(self, _: int) -> None:
            pass

    without = loop(Nothing(), epochs=2)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))


def test_a_loss_of_the_partys_own_is_no_gradient_that_came(tmp_path: Path) -> None:
    """A penalty on the embedding drowned what was received: leaks were at chance."""
    x, *_ = world()
    z0 = nn.Linear(4, D)(x)
    with recording(tmp_path) as rec:
        z = rec.cut(z0, torch.arange(N))
        came = torch.randn(N, D)
        (100 * z0.square().sum() + (z * came).sum()).backward()
    _, g = read(tmp_path / "trace")
    assert np.array_equal(g.values, came.numpy())


def test_each_of_two_peers_has_its_own_gradient(tmp_path: Path) -> None:
    x, *_ = world()
    roles = {"bank": "passive", "shop": "active", "post": "passive"}
    with recording(tmp_path, parties=roles) as rec:
        z = nn.Linear(4, D)(x)
        ends = [rec.cut(z, torch.arange(N), peer=p) for p in ("shop", "post")]
        torch.autograd.backward(ends, [torch.full((N, D), v) for v in (1.0, 2.0)])
    found = read(tmp_path / "trace")
    got = {m.sender: set(m.values.ravel()) for m in found if m.kind == "gradient"}
    assert got == {"shop": {1.0}, "post": {2.0}}


def test_a_gradient_past_the_returned_tensor_is_said_once(tmp_path: Path) -> None:
    x, *_ = world()

    def train() -> None:
        with recording(tmp_path) as rec:
            for _ in range(2):
                z = nn.Linear(4, D)(x)
                rec.cut(z, torch.arange(N))
                z.backward(torch.ones(N, D))

    with pytest.warns(RuntimeWarning, match="bypassed") as said:
        train()
    assert len([w for w in said if "returned" in str(w.message)]) == 1
    kinds = [m.kind for m in read(tmp_path / "trace")]
    assert kinds == ["embedding", "embedding"]


@pytest.mark.parametrize(
    ("first", "kind"), [(10**8, torch.float32), (2**53, torch.float64), (5, torch.float32)]
)
def test_ids_that_a_float_type_cannot_tell_apart(
    first: int, kind: torch.dtype, tmp_path: Path
) -> None:
    """Customer numbers in a table of floats: eight rows were one, and leaks drowned."""
    ids = first + np.arange(N)
    exact = first < 2**24
    with recording(tmp_path, rows=ids) as rec:
        some = torch.from_numpy(ids[:49]).to(kind)  # without the last, so that all are found
        if exact:
            rec.cut(torch.zeros(49, D), some)
            return
        with pytest.raises(ConfigError, match=r"float ids must be below"):
            rec.cut(torch.zeros(49, D), some)


def test_own_ids_never_enter_the_trace(tmp_path: Path) -> None:
    names = [f"customer-{7 * i:03d}" for i in range(N)]
    with recording(tmp_path, rows=names) as rec:
        loop(rec, ids=lambda rows: [names[i] for i in rows.tolist()])
    check_rows(tmp_path)
    for path in (tmp_path / "trace").rglob("*"):
        assert path.is_dir() or b"customer-" not in path.read_bytes()


def test_the_active_party_records_what_it_received_and_sent(tmp_path: Path) -> None:
    x, y, bottom, top = world()
    with vflsec.record(
        tmp_path / "trace", party="shop", role="active", rows=N, peer="bank", loss_reduction="mean"
    ) as rec:
        for rows in torch.arange(N).split(20):
            received = bottom(x[rows]).detach().requires_grad_()
            z = rec.cut(received, rows)
            nn.functional.cross_entropy(top(z), y[rows]).backward()
            assert received.grad is not None
    found = list(Trace.open(tmp_path / "trace").observer("shop").messages())
    assert {(m.kind, m.sender, m.receiver) for m in found} == {
        ("embedding", "bank", "shop"), ("gradient", "shop", "bank"),
    }  # fmt: skip


def test_many_threads(tmp_path: Path) -> None:
    with recording(tmp_path, rows=800) as rec:

        def work(k: int) -> None:
            for i in range(10):
                rows = torch.arange(10) + 100 * k + 10 * i
                z = rec.cut(rows.float().unsqueeze(1).repeat(1, D).requires_grad_(), rows)
                z.backward(z.detach().clone())

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    found = read(tmp_path / "trace")
    assert len(found) == 160
    for m in found:  # every message holds the rows that it says
        assert np.array_equal(m.values[:, 0], m.rows.astype(np.float32))
    assert sorted(r for m in found if m.kind == "gradient" for r in m.rows) == list(range(800))


def test_only_some_epochs_is_declared(tmp_path: Path) -> None:
    with recording(tmp_path, every_n_epochs=2) as rec:
        loop(rec, epochs=4)
    info = Trace.open(tmp_path / "trace").observer("bank").info
    assert not info.complete
    assert {(h.kind, tuple(h.epochs)) for h in info.have} == {
        ("embedding", (0, 2)),
        ("gradient", (0, 2)),
    }


def test_a_full_trace_stops_and_says_so(tmp_path: Path) -> None:
    with recording(tmp_path, max_bytes=3000) as rec:
        loop(rec, epochs=3)
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.status == "partial"
    assert not trace.observer("bank").info.complete
    assert sum(1 for _ in trace.observer("bank").messages()) == 5


def test_a_loop_that_fails_leaves_a_partial_trace(tmp_path: Path) -> None:
    def theirs() -> None:
        with recording(tmp_path) as rec:
            loop(rec)
            raise RuntimeError("theirs")

    with pytest.raises(RuntimeError, match="theirs"):
        theirs()
    assert Trace.open(tmp_path / "trace").manifest.status == "partial"
    check_rows(tmp_path)


def _record_on(folder: Path, how: dict[str, Any], told: Connection) -> None:
    given = {"party": "bank", "role": "passive", "rows": 64, "loss_reduction": "mean", **how}
    with vflsec.record(folder, **given) as rec:
        for step in range(10**6):
            z = rec.cut(torch.full((64, 16), float(step)).requires_grad_(), torch.arange(64))
            z.backward(torch.full((64, 16), float(step)))
            told.send(step)


def recorded_until_killed(folder: Path, **how: Any) -> int:
    """Record a loop into `folder` until SIGKILL; returns the last step that it told."""
    heard, told = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_record_on, args=(folder, how, told), daemon=True)
    process.start()
    told.close()  # so that its end is heard
    done = 0
    try:
        while True:
            done = heard.recv()
            if done == 40:
                process.kill()
    except EOFError:
        process.join()
    assert process.exitcode == -signal.SIGKILL
    return done


@pytest.mark.parametrize(("behind", "waits"), sampled([(8, 4), (0, 0)]))
def test_kill_9_leaves_every_complete_step(behind: int, waits: int, tmp_path: Path) -> None:
    """All that was written before the step went on; of what waited, no more than may wait."""
    folder = tmp_path / "trace"
    done = recorded_until_killed(folder, behind=behind)
    found = read(folder)
    assert {m.step for m in found if m.kind == "gradient"} >= set(range(done + 1 - waits))
    assert all((m.values == m.step).all() for m in found)
    last = validate(folder).last_step["bank"]
    assert last is not None
    assert last[2] is not None
    assert last[2] >= done - waits
    seal(folder)
    assert Trace.open(folder).manifest.status == "partial"
    table = folded(folder, form="first")
    assert len(table) == 64
    assert (table.tensor[:, 0] == 0).all()


def test_a_torn_segment_is_read_to_its_last_whole_message(tmp_path: Path) -> None:
    rec = recording(tmp_path)
    rec.__enter__()
    loop(rec)
    path = tmp_path / "trace/view/bank/raw-0000-d3-f4.arrows"
    whole = path.read_bytes()
    for keep in (len(whole) - 1, len(whole) - 300, len(whole) // 2):
        path.write_bytes(whole[:keep])
        trace = Trace.open(tmp_path / "trace")
        found = list(trace.observer("bank").messages())
        assert 2 <= len(found) < 8
        assert any("ends within a message" in n for n in trace.notes)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "role": ({"role": "server"}, "role must be one of"),
    "rows": ({"rows": 0}, "rows must be an integer >= 1"),
    "rows twice": ({"rows": [1, 1, 2]}, "unique"),
    "reduction": ({"loss_reduction": "average"}, "loss_reduction must be one of"),
    "columns": ({"columns": np.zeros((3, 2))}, "shape .50, ...., got"),
    "known": ({"known": ([99], [0])}, "none of the 50 rows"),
    "known twice": ({"known": ([3, 3], [0, 1])}, "each row once"),
    "known beyond the classes": ({"known": ([3, 4], [1, 2]), "classes": 2}, "from 0 to 1, got 2"),
    "known of -1 and 1": ({"known": ([3, 4], [-1, 1])}, "from 0, got -1"),
    "known in part": ({"known": ([3, 4], [0.7, 1.0])}, "whole numbers, got .*0.7.*classes=1"),
    "known by name": ({"known": ([3, 4], ["no", "yes"])}, "classes=1"),
    "values with gaps": ({"known": ([0, 1], [1.5, np.nan]), "classes": 1}, "finite"),
    "values of text": ({"known": ([0, 1], ["1.5", "x"]), "classes": 1}, "numbers, NaN where"),
    "infinite values": ({"known": ([0, 1], [1.5, np.inf]), "classes": 1}, "infinity"),
    "values twice": ({"known": ([0, 0], [1.5, 1.5]), "classes": 1}, "each row once"),
    "too few values": ({"known": ([0, 1], [1.5]), "classes": 1}, "2 numbers"),
    "shares of a quantity": ({"prior": [1.0], "classes": 1}, "record: prior"),
    "a prior of counts": ({"prior": (30, 20)}, "class shares that add up to 1"),
    "a prior of other classes": ({"prior": (0.2, 0.3, 0.5), "classes": 2}, "2 class shares"),
    "no columns of too few rows": ({"columns": np.zeros((3, 0))}, "shape .50, ...., got"),
    "missing values": ({"columns": np.full((N, 2), np.nan)}, "got .50 rows"),
    "columns of text": ({"columns": np.full((N, 2), "a")}, "numbers, as the model takes them"),
    "run": ({"run": {"strength": "much"}}, "strength"),
    "parties": ({"parties": {"bank": "active", "shop": "passive"}}, "roles of 'bank'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str, tmp_path: Path) -> None:
    change, words = BAD[name]
    how: dict[str, Any] = {"party": "bank", "role": "passive", "rows": N} | change
    with pytest.raises(VflsecError, match=words):
        vflsec.record(tmp_path / "trace", **how)


def test_bad_calls(tmp_path: Path) -> None:
    z = torch.zeros(4, D)
    with pytest.raises(ConfigError, match=r"vflsec\.record"):
        recording(tmp_path).cut(z, [0, 1, 2, 3])
    with recording(tmp_path) as rec:
        with pytest.raises(VflsecError, match="embedding must be 4, got 3"):
            rec.cut(z, [0, 1, 2])
        with pytest.raises(VflsecError, match="needs columns"):
            rec.model(nn.Linear(2, 2))


def test_infinite_gradients_are_counted_and_left_out_on_demand(tmp_path: Path) -> None:
    """As after an overflow under AMP: one row of the wire is infinite."""
    with recording(tmp_path, loss_reduction="sum") as rec:
        for step in range(2):
            z = rec.cut(torch.zeros(4, D).requires_grad_(), torch.arange(4))
            g = torch.full((4, D), 1.0 + step)
            g[1] = float("inf") if step == 0 else 2.0
            z.backward(g)
    trace = Trace.open(tmp_path / "trace")
    assert trace.observer("bank").info.nonfinite == 1
    with pytest.raises(VflsecError, match="finite numbers, got 1 bad rows"):
        list(trace.observer("bank").messages())
    dropping = Trace.open(tmp_path / "trace", Limits(nonfinite="drop"))
    found = list(dropping.observer("bank").messages())
    assert [len(m.values) for m in found] == [4, 3, 4, 4]
    assert found[1].rows.tolist() == [0, 2, 3]
    assert found[1].scale == 1.0
