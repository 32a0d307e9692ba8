"""Cohorts that do not fit the memory are done in halves, with the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import vflsec
from vflsec.engine import room
from vflsec.engine.executor import default_backend
from vflsec.errors import ConfigError
from vflsec.reporter import Reporter
from vflsec.train.device import in_turn, pick_device

SCENARIO: dict[str, Any] = {
    "data": [{"name": "control_gaussian", "params": {"rows": 300, "test_rows": 100}}],
    "algorithm": [{"name": "splitnn", "hidden": [8], "cut": 4, "epochs": 1}],
    "defense": [{"name": "iso", "strength": [0.0, 1.0]}],
    "attack": [{"name": "direction", "known_rows": 10}],
    "audit": {"seeds": [0, 1, 2], "references": [], "positive_control": False, "canaries": False},
}


class Notes(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


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
    assert "6 trainings do not fit the memory together" in halved[0]
    assert "--replicas 3 " in halved[0]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=["torch", "numpy"],
)
def test_a_full_memory_of_the_host_is_halved_too(error: Exception) -> None:
    def do(cells: Sequence[Any]) -> list[Any]:
        if len(cells) > 2:
            raise error
        return list(cells)

    told: list[str] = []
    given: Any = [*"abcde"]
    assert room.in_halves(given, do, "five", told.append) == given
    assert len(told) == 2


def test_one_that_does_not_fit_alone_says_what_helps(tmp_path: Path) -> None:
    tried: list[int] = []
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90 GiB. Of 78 free")
    with pytest.raises(ConfigError, match=r"alone does not fit .*CUDA out of memory.*batch_size"):
        vflsec.run_audit(SCENARIO, tmp_path, device="cpu", backend=small(0, error, tried))
    assert tried == [6, 3, 1]


def test_other_errors_are_not_tried_again(tmp_path: Path) -> None:
    tried: list[int] = []
    with pytest.raises(RuntimeError, match="shapes"):
        vflsec.run_audit(
            SCENARIO, tmp_path, device="cpu", backend=small(0, RuntimeError("shapes"), tried)
        )
    assert tried == [6]
    assert not room.out_of_memory(ValueError("not enough memory"))


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
