"""Cohorts that do not fit the memory are done in halves, with the same results."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from engine_fakes import Notes
from sampled import sampled

import vflsec
from vflsec.engine import cohort, recordings, work
from vflsec.engine.attack_kept_views import attempt
from vflsec.engine.work import default_backend
from vflsec.errors import ConfigError
from vflsec.measure import control_maker
from vflsec.plugins import registry
from vflsec.runtime.out_of_memory import out_of_memory
from vflsec.runtime.progress_protocol import NOTE
from vflsec.runtime.typed_values import write_plain
from vflsec.specs import AttackSpec, CellSpec
from vflsec.testing import small_task
from vflsec.trace.reader import Trace
from vflsec.train.cohort import Training
from vflsec.train.device import in_turn, pick_device
from vflsec.train.view_writer import Keep

pytestmark = pytest.mark.usefixtures("no_reports")

SCENARIO: dict[str, Any] = {
    "data": [{"name": "control_gaussian", "params": {"rows": 300, "test_rows": 100}}],
    "algorithm": [{"name": "splitnn", "hidden": [8], "cut": 4, "epochs": 1}],
    "defense": [{"name": "iso", "strength": [0.0, 1.0]}],
    "attack": [{"name": "direction", "known_rows": 10}],
    "audit": {"seeds": [0, 1, 2], "references": [], "positive_control": False, "canaries": False},
}


def small(most: int, error: Exception, tried: list[int]) -> Any:
    """The real backend on a device that has room for so many cells."""
    real = default_backend()

    def run_cohort(cells: Sequence[Any], *rest: Any, **more: Any) -> Any:
        tried.append(len(cells))
        if len(cells) > most:
            raise error
        return real.run_cohort(cells, *rest, **more)

    return replace(real, run_cohort=run_cohort)


def test_halves_give_what_the_whole_gives(tmp_path: Path) -> None:
    whole = vflsec.run_audit(SCENARIO, tmp_path / "whole", device="cpu").results
    tried: list[int] = []
    told = Notes()
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
    parts = vflsec.run_audit(
        SCENARIO, tmp_path / "parts", device="cpu", backend=small(2, error, tried), progress=told
    ).results
    assert tried == [6, 3, 1, 2, 3, 1, 2]
    pd.testing.assert_frame_equal(parts, whole)
    halved = [s for s in told.said if "in halves" in s]
    assert len(halved) == 3
    assert "6 trainings do not fit the memory" in halved[0]
    assert "--replicas 3 " in halved[0]


@pytest.mark.parametrize(
    "error",
    sampled(
        [
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
            ),
            MemoryError(),
        ]
    ),
    ids=["torch", "numpy"],
)
def test_a_full_memory_of_the_host_is_halved_too(error: Exception) -> None:
    def do(cells: Sequence[Any]) -> list[Any]:
        if len(cells) > 2:
            raise error
        return list(cells)

    told: list[str] = []
    given: Any = [*"abcde"]
    assert work.in_halves(given, do, "five", told.append) == given
    assert len(told) == 2


@pytest.mark.slow
def test_one_that_does_not_fit_alone_says_what_helps(tmp_path: Path) -> None:
    tried: list[int] = []
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90 GiB. Of 78 free")
    with pytest.raises(
        ConfigError, match=r"one training does not fit .*CUDA out of memory.*batch_size"
    ):
        vflsec.run_audit(SCENARIO, tmp_path, device="cpu", backend=small(0, error, tried))
    assert tried == [6, 3, 1]


def test_other_errors_are_not_tried_again(tmp_path: Path) -> None:
    tried: list[int] = []
    with pytest.raises(RuntimeError, match="shapes"):
        vflsec.run_audit(
            SCENARIO, tmp_path, device="cpu", backend=small(0, RuntimeError("shapes"), tried)
        )
    assert tried == [6]
    assert not out_of_memory(ValueError("not enough memory"))


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.mark.usefixtures("three_gpus")
def test_pieces_of_work_take_gpus_in_turn() -> None:
    assert [in_turn("cuda", k) for k in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert in_turn("auto", 5) == "cuda:2"
    assert in_turn("cuda:1", 5) == "cuda:1"
    assert in_turn("cpu", 5) == "cpu"


@pytest.fixture
def rounded() -> Iterator[None]:
    """TF32 everywhere, and afterwards what was set before."""
    places: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul]
    before = [p.allow_tf32 for p in places]
    for p in places:
        p.allow_tf32 = True
    yield
    for p, was in zip(places, before, strict=True):
        p.allow_tf32 = was


@pytest.mark.usefixtures("three_gpus", "rounded")
def test_a_gpu_is_named_by_number_and_computes_in_float32() -> None:
    assert pick_device("cuda:2") == torch.device("cuda:2")
    assert pick_device("auto") == torch.device("cuda")
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(ConfigError, match="a device of this machine, got 'cuda:3'"):
        pick_device("cuda:3")
    allowed = r"one of 'auto', 'cpu', 'cuda', 'cuda:N', 'cuda\+graphs', got 'cuda:x'"
    with pytest.raises(ConfigError, match=allowed):
        pick_device("cuda:x")


def test_without_a_gpu_there_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert in_turn("auto", 3) == "auto"
    assert pick_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ConfigError, match="a device of this machine"):
            pick_device(name)


def tight(monkeypatch: pytest.MonkeyPatch, most: int, *places: tuple[Any, str]) -> Any:
    """The real backend, where there is no room for these beside more than so many cells."""
    real, now = default_backend(), [0]

    def run_cohort(cells: Sequence[Any], *rest: Any, **more: Any) -> Any:
        now[0] = len(cells)
        return real.run_cohort(cells, *rest, **more)

    for owner, name in places:
        does = getattr(owner, name)

        def limited(*args: Any, _does: Any = does, **more: Any) -> Any:
            if now[0] > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
            return _does(*args, **more)

        monkeypatch.setattr(owner, name, limited)
    return replace(real, run_cohort=run_cohort)


BESIDE = {**SCENARIO, "attack": [*SCENARIO["attack"], {"name": "spectral", "known_rows": 10}]}
DIRECTION, SPECTRAL = (registry.attacks.get(n) for n in ("direction", "spectral"))
NO_ROOM: dict[str, Sequence[tuple[Any, str]]] = {
    "for an attack": [(DIRECTION, "infer"), (DIRECTION, "infer_many")],
    "for its controls": [(control_maker, "controls_for")],
    "for itself before training": [(control_maker, "guess_untrained")],
    "for scoring": [(cohort, "score_answer")],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """What an audit finds where there is room."""
    return vflsec.run_audit(BESIDE, tmp_path_factory.mktemp("whole"), device="cpu").results


@pytest.mark.slow
@pytest.mark.parametrize("where", sampled(NO_ROOM))
def test_halves_where_there_is_no_room_beside_a_cohort(
    where: str, whole: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error takes the place of a figure, and no control is left out."""
    backend, told = tight(monkeypatch, 2, *NO_ROOM[where]), Notes()
    parts = vflsec.run_audit(
        BESIDE, tmp_path / "parts", device="cpu", backend=backend, progress=told
    ).results
    pd.testing.assert_frame_equal(parts, whole)
    assert "error" not in set(whole.status)
    assert 2 <= sum("in halves" in s for s in told.said) <= 3  # controls of one half stay


def test_an_attack_that_fits_one_by_one_is_made_so(
    whole: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, told = tight(monkeypatch, 0, (DIRECTION, "infer_many")), Notes()
    parts = vflsec.run_audit(
        BESIDE, tmp_path / "parts", device="cpu", backend=backend, progress=told
    ).results
    pd.testing.assert_frame_equal(parts, whole)
    assert not [s for s in told.said if "in halves" in s]


@pytest.mark.slow
@pytest.mark.parametrize("where", sampled(["for an attack", "for itself before training"]))
def test_an_attack_without_room_beside_one_training_is_an_error(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"for an attack": "direction"}.get(where, "spectral")
    backend = tight(monkeypatch, 0, *NO_ROOM[where])
    found = vflsec.run_audit(BESIDE, tmp_path, device="cpu", backend=backend).results
    of = found[found.attack == name]
    assert set(of.status) == {"error"}
    assert of.reason.str.contains("CUDA out of memory").all()
    if where == "for an attack":
        assert (found[found.attack != name].status != "error").all()


@pytest.mark.parametrize(
    "text",
    ["CUDA error: out of memory", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
     "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"],
)  # fmt: skip
def test_cuda_and_its_libraries_say_it_in_their_own_words(text: str) -> None:
    assert out_of_memory(RuntimeError(text))
    assert not out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


@pytest.mark.slow
def test_no_room_in_code_of_a_user_is_none_of_its_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has no kind of error of its own for a full memory of the host."""
    (tmp_path / "wide_model.py").write_text(
        "import torch\n"
        "class Wide(torch.nn.Module):\n"
        "    def __init__(self, schema, out):\n"
        "        super().__init__()\n"
        "        self.one = torch.nn.Linear(len(schema.names), out)\n"
        "    def forward(self, x):\n"
        "        import vflsec_room\n"
        "        vflsec_room.ask(len(x))\n"
        "        return self.one(x)\n"
    )
    now = [0]
    monkeypatch.setitem(sys.modules, "vflsec_room", SimpleNamespace(ask=partial(asked, now)))
    monkeypatch.syspath_prepend(str(tmp_path))
    scenario = {
        **SCENARIO,
        "algorithm": [
            {"name": "splitnn", "cut": 4, "epochs": 1,
             "parties": {"passive": {"module": "wide_model:Wide"}}}
        ],
    }  # fmt: skip
    real, told = default_backend(), Notes()

    def run_cohort(cells: Sequence[Any], *rest: Any, **more: Any) -> Any:
        now[0] = len(cells)
        try:
            return real.run_cohort(cells, *rest, **more)
        finally:
            now[0] = 0

    vflsec.run_audit(
        scenario, tmp_path / "out", device="cpu", backend=replace(real, run_cohort=run_cohort),
        progress=told,
    )  # fmt: skip
    assert sum("in halves" in s for s in told.said) == 3


def asked(now: Sequence[int], rows: int) -> None:
    if now[0] > 2 and rows > 10:  # not of the few that it is tried with
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory")


@pytest.mark.parametrize("how", ["", "its views are kept", "it is asked after every epoch"])
def test_a_finished_cohort_leaves_no_memory_behind(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Python's collector, which no full GPU asks to look for it."""
    made: list[weakref.ref[Training]] = []
    begin = Training.__init__

    def noted(self: Training, *args: Any, **more: Any) -> None:
        made.append(weakref.ref(self))
        begin(self, *args, **more)

    monkeypatch.setattr(Training, "__init__", noted)
    tasks = {s: small_task(s) for s in range(2)}
    params = {"epochs": 1, "returns_predictions": True}
    cells = [CellSpec({"name": "small"}, "splitnn", params, (), s) for s in tasks]
    asked = how == "it is asked after every epoch"
    spec = AttackSpec("membership", {"signal": "trajectory"} if asked else {}, ("passive1",))
    spec = spec if asked else AttackSpec("norm", adversary=("passive1",), known_rows=5)
    more = {"keep": Keep(tmp_path, 10**9)} if how == "its views are kept" else {}
    gc.collect()
    gc.disable()
    try:
        (found, _) = cohort.run_cohort(cells, [spec], tasks, device="cpu", **more)
        assert {m.status for m in found.measures if m.attack} == {"ok"}
        assert made
        assert [one() for one in made] == [None] * len(made)
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_recording_is_halved_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of the attempt are gone, and grants are those of all."""
    whole = recordings.record_scenario(SCENARIO, tmp_path / "whole", device="cpu")
    real, tried, told = recordings._whole, [], []

    def limited(training: Training, exports: Sequence[Any]) -> None:
        tried.append(len(exports))
        if len(exports) > 2:
            next(iter(training.run(predictions=False)))  # what was written by then
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        real(training, exports)

    def progress(text: str, share: float) -> None:
        if share == NOTE:
            told.append(text)

    monkeypatch.setattr(recordings, "_whole", limited)
    parts = recordings.record_scenario(
        SCENARIO, tmp_path / "parts", device="cpu", progress=progress
    )
    assert len(told) == sum(n > 2 for n in tried) > 0
    assert [p.name for p in parts] == [p.name for p in whole]
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == sorted(p.name for p in parts)
    for a, b in zip(whole, parts, strict=True):
        assert Trace.open(a).payloads == Trace.open(b).payloads
        assert Trace.open(b).sealed


@pytest.mark.slow
def test_attacks_on_kept_views_are_halved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {**SCENARIO, "attack": [{"name": "norm"}]}
    vflsec.run_audit(kept, tmp_path, device="cpu", keep_views=True)
    whole = attempt(tmp_path, "direction", ["known_rows=10"], device="cpu")
    real, tried, told = default_backend(), [], []

    def attack_kept(cells: Sequence[Any], *rest: Any, **more: Any) -> Any:
        assert real.attack_kept is not None
        tried.append(len(cells))
        if len(cells) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return real.attack_kept(cells, *rest, **more)

    parts = attempt(
        tmp_path, "direction", ["known_rows=10"], device="cpu",
        backend=replace(real, attack_kept=attack_kept), progress=lambda text, _: told.append(text),
    )  # fmt: skip
    assert tried == [6, 3, 1, 2, 3, 1, 2]
    assert sum("in halves" in t for t in told) == 3
    assert write_plain({**parts, "when": ""}) == write_plain({**whole, "when": ""})
