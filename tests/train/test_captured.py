"""Steps that are replayed as graphs are the steps, bit for bit, or are not captured.

What a GPU does is emulated (`tests/graph_emulation.py`); the tests marked `gpu` ask one.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from captured_runs import (
    CASES,
    SEEDS,
    STEPS,
    Asking,
    Case,
    Columns,
    Doubling,
    Waning,
    apart,
    noted_in,
    numbers,
    prepared,
    trained,
)  # fmt: skip
from graph_emulation import EMPTY, Emulated
from sampled import sampled
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.specs import CellSpec
from vflsec.testing import small_task
from vflsec.testing.worlds import small_stack
from vflsec.train import cuda_graphs
from vflsec.train.cohort import Training
from vflsec.train.cuda_graphs import Captured, CaptureWarning, taken
from vflsec.train.device import asks_graphs, full_name, in_turn, pick_device
from vflsec.train.loop import run_phases


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """All captured steps of a test."""
    return noted_in(monkeypatch)


@pytest.mark.parametrize("name", sampled(CASES, every=3))
def test_replayed_steps_are_the_steps(name: str, seen: list[Captured]) -> None:
    """Of six batches an epoch the first and the last, smaller one are each taken once as ever."""
    plain, books = trained(CASES[name])
    assert seen == []
    replayed, others = trained(CASES[name], Emulated)
    assert apart(plain, replayed) == []
    assert books == others
    assert any(k.startswith("table.") for k in plain) or name == "alone"
    (one,) = seen
    epochs = books[2]
    steps = STEPS if isinstance(epochs, int) else 6 * max(epochs)
    assert (one.failed, len(one.tapes), one.replays) == ("", 2, steps - 2)
    if "stop" in name:
        assert len(set(epochs)) > 1


@pytest.mark.parametrize("name", sampled(registry.defenses.names(), every=4))
def test_every_defense_is_replayed_or_refused(name: str, seen: list[Captured]) -> None:
    policy = registry.defenses.create(name)
    owner = "active" if policy.owner == "active" else "passive1"
    case = Case(defenses={owner: [policy]})
    (plain, books), refused = trained(case), ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", CaptureWarning)
        replayed, others = trained(case, Emulated)
    refused = " ".join(str(w.message) for w in said if w.category is CaptureWarning)
    assert apart(plain, replayed) == []
    assert books == others
    if any(policy.overrides(h) for h in ("columns", "gradients", "loss", "penalty", "link")):
        assert "one kernel at a time" in refused
        assert seen == []
    elif not policy.overrides("model"):
        assert not refused
        assert [(one.failed, one.replays > 2) for one in seen][-1] == ("", True)


def of_any(name: str, graphs: Callable[[], Any] | None) -> tuple[dict[str, Tensor], Any]:
    cls: Any = registry.algorithms.get(name)
    settings = dict(cls.world)
    stack = small_stack([0, 1], **settings.pop("task", {}))
    quick = {"epochs": 3, "batch_size": 32}
    algorithm = cls(
        **{k: v for k, v in quick.items() if k in registry.list_parameters(cls)} | settings
    )
    fed = Federation.create(stack, [0, 1])
    fed.graphs = graphs
    algorithm.build(fed)
    for _ in run_phases(algorithm, fed):
        pass
    return numbers(fed), [fed.channel.ledger.of(r) for r in (0, 1)]


@pytest.mark.filterwarnings("ignore::vflsec.train.cuda_graphs.CaptureWarning")
@pytest.mark.parametrize("name", sampled(registry.algorithms.names(), every=7))
def test_every_algorithm_is_replayed_or_refused(name: str, seen: list[Captured]) -> None:
    plain, books = of_any(name, None)
    replayed, others = of_any(name, Emulated)
    assert apart(plain, replayed) == []
    assert books == others
    assert [one.failed for one in seen if one.failed] == []
    if name in ("splitnn", "fedbcd", "local", "fpd", "vflhlp"):
        assert sum(one.replays for one in seen) > 3


def test_a_number_from_the_host_is_noticed() -> None:
    """What a capture may not hold shows here, so that equality above means something."""
    case = Case(algorithm=Waning)
    plain, books = trained(case)
    replayed, others = trained(case, Emulated)
    wrong = apart(plain, replayed)
    assert "active.top.0.weight" in wrong
    assert books == others


def test_an_input_that_is_not_copied_in_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = trained(CASES["two parties"])
    replay = cuda_graphs._Tape.replay

    def stale(self: Any, rows: Tensor) -> None:
        for stretch in self.stretches:
            if stretch.message is not None and stretch.message.kind == "embedding":
                stretch.given = torch.empty_like(stretch.given)
        replay(self, rows)

    monkeypatch.setattr(cuda_graphs._Tape, "replay", stale)
    replayed, _ = trained(CASES["two parties"], Emulated)
    assert "active.top.0.weight" in apart(plain, replayed)


@pytest.mark.parametrize("name", ["no defense", "what arrives is kept", "what is lent is kept"])
def test_what_is_kept_must_be_a_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With messages in the memory of the graphs the record is another: it keeps no copies."""
    plain, books = trained(CASES[name])
    monkeypatch.setattr(cuda_graphs, "_copy", lambda x: x.detach())
    replayed, others = trained(CASES[name], Emulated)
    wrong = apart(plain, replayed)
    assert any("table" in k and "'all'" in k for k in wrong) or name == "what is lent is kept"
    assert wrong
    assert books == others


def test_the_emulation_knows_no_numbers_during_a_capture() -> None:
    x, factor = torch.ones(3), [2.0]
    during, run = Emulated().stretch()
    with during:
        y = x * factor[0]
        y[0] += 1
        with pytest.raises(RuntimeError, match="capturing"):
            bool((y > 0).all())
        with pytest.raises(RuntimeError, match="capturing"):
            y.sum().item()
    assert y.isnan().all()
    run()
    assert y.tolist() == [3.0, 2.0, 2.0]
    factor[0] = 5.0
    x.fill_(10.0)
    run()
    assert y.tolist() == [21.0, 20.0, 20.0]


REFUSED = {
    "own steps of active are recorded": Case(observed=True),
    "columns acts between": Case(defenses={"passive1": [Columns()]}),
    "dpsgd acts between": Case(defenses={"active": ["dpsgd"]}),
    "needs an autograd graph": Case({"dropout": 0.2}),
    "takes several steps": Case({"optimizer": "adagrad"}),
    "plain split steps": Case({"scarf": False}, "vflhlp", defenses={}),
    "consist of plain split steps": Case(algorithm=Doubling),
    "nothing to any loss": Case(silent=True),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_captured_is_said_and_taken_as_ever(why: str, seen: list[Captured]) -> None:
    plain, books = trained(REFUSED[why])
    with pytest.warns(CaptureWarning, match=f"one kernel at a time.*{why}"):
        replayed, others = trained(REFUSED[why], Emulated)
    assert apart(plain, replayed) == []
    assert books == others
    assert all(one.fed.phase != "supervised" for one in seen)


def test_a_capture_that_fails_leaves_no_trace(seen: list[Captured]) -> None:
    case = Case(algorithm=Asking)
    plain, books = trained(case)
    with pytest.warns(CaptureWarning, match="train: .*capturing") as said:
        replayed, others = trained(case, Emulated)
    assert len([w for w in said if w.category is CaptureWarning]) == 1
    assert apart(plain, replayed) == []
    assert books == others
    assert [(one.replays, len(one.tapes)) for one in seen] == [(0, 0)]


class Failing(Emulated):
    """Ends a capture with an error of its own where there was one, as torch does."""

    def stretch(self) -> Any:
        during, run = super().stretch()

        @contextmanager
        def ending() -> Iterator[None]:
            with during:
                try:
                    yield
                except RuntimeError:
                    raise RuntimeError("a previous error during capture") from None

        return ending(), run


def test_what_went_wrong_first_is_said() -> None:
    with pytest.warns(CaptureWarning, match="operation not permitted .* capturing"):
        trained(Case(algorithm=Asking), Failing)


def test_torch_is_called_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    real, told = inspect.signature(torch.cuda.graph), []
    assert callable(torch.cuda.CUDAGraph.replay)
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda d: asked.append(d) or SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay="replay"))
    monkeypatch.setattr(
        torch.cuda, "graph", lambda *a, **k: told.append(real.bind(*a, **k).arguments)
    )
    graphs = cuda_graphs.CudaGraphs(torch.device("cuda:1"))
    streams = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda d=None: asked.append(d) or streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    graphs.stream = SimpleNamespace(wait_stream=lambda _: None)
    with graphs.warm(), graphs.restore_stream():
        pass
    assert asked == [torch.device("cuda:1")] * 3  # never the current device, which may be another
    graphs.stream = "stream"
    assert [graphs.stretch()[1] for _ in range(2)] == ["replay", "replay"]
    for given in told:
        given.pop("cuda_graph")
    assert told == 2 * [{"pool": "pool", "stream": "stream", "capture_error_mode": "thread_local"}]


def stepped(graphs: Any, change: Callable[[Federation, int], None], steps: int = 12) -> Any:
    """Steps on one batch after another, before each of which something may be changed."""
    algorithm, fed = prepared(CASES["two parties"], graphs)
    algorithm.build(fed)
    (phase,) = algorithm.phases(fed)
    fed.phase = "train"
    step = taken(algorithm, fed, phase.step)
    whole = [b for _ in range(steps) for b in fed.batches(phase) if b.shape[1] == 25]
    for fed.steps, rows in enumerate(whole[:steps]):
        change(fed, fed.steps)
        step(rows)
    return numbers(fed), step


def schedule(every: int, fed: Federation, k: int) -> None:
    for party in fed.parties.values():
        party.optimizer.param_groups[0]["lr"] = 0.1 / (1 + k // every)


def anew(fed: Federation, k: int) -> None:
    if k in (0, 5):  # of the same settings
        for party in fed.parties.values():
            party.start("adam", 0.05, 0.0)


def relabelled(fed: Federation, k: int) -> None:
    if k == 5:
        fed.labels = 1 - fed.labels


@pytest.mark.parametrize(
    ("change", "replays"), [(partial(schedule, 4), 12 - 3), (anew, 12 - 2), (relabelled, 12 - 2)]
)
def test_what_a_step_reads_from_the_host_is_another_capture(change: Any, replays: int) -> None:
    plain, _ = stepped(None, change)
    replayed, step = stepped(Emulated, change)
    assert apart(plain, replayed) == []
    assert (step.failed, step.replays) == ("", replays)


def noticed(case: Case, change: Callable[[Federation, int], None] | None = None) -> bool:
    """Whether replayed steps are others, or cannot be taken."""
    try:
        if change is None:
            return bool(apart(trained(case)[0], trained(case, Emulated)[0]))
        return bool(apart(stepped(None, change)[0], stepped(Emulated, change)[0]))
    except (RuntimeError, AssertionError):  # or other states are left
        return True


def warmed_twice(self: Any, rows: Tensor) -> None:
    """As captures are often prepared: by steps that are not those of the training."""
    REAL_WARM(self, rows)
    self.arrivals = []
    REAL_WARM(self, rows)


REAL_WARM = cuda_graphs._Tape.warm
FORGETFUL: dict[str, tuple[Any, Any]] = {
    "the rate": (lambda _, rows: rows.shape, partial(schedule, 4)),
    "the optimizer": (lambda _, rows: rows.shape, anew),
    "the labels": (lambda _, rows: rows.shape, relabelled),
    "the last batch": (lambda self, _: REAL_KEY(self, torch.zeros(1, 1)), None),
}
REAL_KEY = cuda_graphs.Captured._key


@pytest.mark.parametrize("of", sampled(FORGETFUL, 2))
def test_a_capture_that_stays_where_it_may_not_is_noticed(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, change = FORGETFUL[of]
    assert not noticed(CASES["two parties"], change)
    monkeypatch.setattr(cuda_graphs.Captured, "_key", key)
    assert noticed(CASES["two parties"], change)


def test_a_step_too_many_before_a_capture_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs._Tape, "warm", warmed_twice)
    assert noticed(CASES["two parties"])


def test_what_changes_all_the_time_is_not_captured_for_ever() -> None:
    plain, _ = stepped(None, partial(schedule, 1))
    with pytest.warns(CaptureWarning, match="captured more than 8 times"):
        replayed, step = stepped(Emulated, partial(schedule, 1))
    assert apart(plain, replayed) == []
    assert step.replays == 0


class _Launches(TorchDispatchMode):
    """Counts what a GPU would be asked to do, without views, memory and what a replay runs."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, returns = func.__name__.partition(".")[0], func._schema.returns
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if not (Emulated.running or view or name in EMPTY):
            self.of[name] += 1
        return func(*args, **(kwargs or {}))


def launches(case: Case, graphs: Any) -> int:
    """What one whole step launches: kernels one by one, and graphs."""
    algorithm, fed = prepared(case, graphs)
    fed.channel.recorder = Recorder((), len(SEEDS), len(fed.stack.first.y))
    algorithm.build(fed)
    (phase,) = algorithm.phases(fed)
    fed.phase = "train"
    step = taken(algorithm, fed, phase.step)
    rows = next(iter(fed.batches(phase)))
    for fed.steps in range(3):
        step(rows)
    before, fed.steps = Emulated.launched, 3
    with _Launches() as count:
        step(rows)
    return sum(count.of.values()) + Emulated.launched - before


def test_a_replayed_step_launches_less() -> None:
    """Three replicas, nothing recorded: four graphs and eight copies, what the noise takes, and one
    copy of it.
    """
    expected = {"no defense": (42, 12), "two parties": (52, 22), "local updates": (212, 22)}
    for name, found in expected.items():
        assert (launches(CASES[name], None), launches(CASES[name], Emulated)) == found


def test_graphs_are_asked_for_by_the_name_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu+graphs", "auto+graphs", "cuda+graph", "+graphs"):
        with pytest.raises(ConfigError, match=r"--device.*'cuda\+graphs', got"):
            pick_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1+graphs") == torch.device("cuda:1")
    assert [full_name(n) for n in ("cuda", "cuda+graphs")] == ["cuda", "cuda+graphs"]
    assert [in_turn("cuda+graphs", k) for k in range(3)] == [
        "cuda:0+graphs", "cuda:1+graphs", "cuda:0+graphs",
    ]  # fmt: skip
    assert in_turn("cuda:1+graphs", 0) == "cuda:1+graphs"
    assert asks_graphs("cuda:1+graphs")
    assert not asks_graphs("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"a device of this machine, got 'cuda\+graphs'"):
        pick_device("cuda+graphs")


def test_a_training_asks_only_where_there_is_a_gpu() -> None:
    cells = [CellSpec({"name": "small"}, "splitnn", {"epochs": 1}, (), s) for s in (0, 1)]
    tasks = {s: small_task(s) for s in (0, 1)}
    here, there = torch.device("cpu"), torch.device("meta")
    assert Training(cells, (), tasks, here, graphs=True).build().graphs is None
    assert Training(cells, (), tasks, there, graphs=True).graphs is None
