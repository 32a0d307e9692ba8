"""Steps that are replayed as CUDA graphs, asked of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from captured_runs import CASES, Asking, Case, noted_in, trained

from vflsec.core.federation import Federation
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.train.cuda_graphs import Captured, CaptureWarning, CudaGraphs

pytestmark = pytest.mark.gpu


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """All captured steps of a test."""
    return noted_in(monkeypatch)


def assert_alike(case: Case, graphs: Any) -> None:
    """The same streams and kernels: whole numbers and books are equal, others to 1e-6."""
    plain, books = trained(case, None, "cuda")
    replayed, others = trained(case, graphs, "cuda")
    assert books == others
    for name, value in plain.items():
        torch.testing.assert_close(replayed[name], value, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", CASES)
def test_replayed_steps_are_the_steps(name: str, seen: list[Captured]) -> None:
    assert_alike(CASES[name], CudaGraphs)
    (one,) = seen
    assert (one.failed, len(one.tapes)) == ("", 2)
    assert one.replays >= 8


def test_a_capture_that_fails_leaves_no_trace(seen: list[Captured]) -> None:
    before = torch.cuda.current_stream()
    with pytest.warns(CaptureWarning, match="not as CUDA graphs"):
        assert_alike(Case(algorithm=Asking), CudaGraphs)
    assert torch.cuda.current_stream() == before
    assert [one.replays for one in seen] == [0]
    assert_alike(CASES["two parties"], CudaGraphs)  # the device captures others still
    assert seen[-1].failed == ""
    assert seen[-1].replays > 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_no_replayed_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By CUDA's own count of synchronisations, after the captures of both shapes."""
    batches = Federation.batches

    def strict(self: Federation, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for k, rows in enumerate(batches(self, *args, **kwargs)):
            # The first step of an epoch looks at what policies did where they are off.
            replayed = self.graphs is not None and self.epoch > 1 and k > 0
            torch.cuda.set_sync_debug_mode("error" if replayed else "default")
            try:
                yield rows
            finally:
                torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Federation, "batches", strict)
    assert_alike(CASES["two parties"], CudaGraphs)


def test_an_audit_finds_the_same(seen: list[Captured]) -> None:
    noise = (DefenseSpec("iso", strength=1.0),)
    params = {"epochs": 3, "batch_size": 25}
    cells = [CellSpec({"name": "small"}, "splitnn", params, noise, s) for s in range(3)]
    attacks = [AttackSpec(n, adversary=("passive1",), known_rows=10) for n in ("norm", "direction")]
    tasks = {s: small_task(s) for s in range(3)}
    assert {a.name for a in attacks} <= set(registry.attacks.names())
    found = [run_cohort(cells, attacks, tasks, device=d) for d in ("cuda", "cuda+graphs")]
    assert seen[0].replays > 10
    for plain, replayed in zip(*found, strict=True):
        assert plain.ledger == replayed.ledger
        assert plain.key == replayed.key
        for a, b in zip(plain.measures, replayed.measures, strict=True):
            assert (a.attack, a.metric, a.split, a.status) == (
                b.attack,
                b.metric,
                b.split,
                b.status,
            )
            if a.value is not None:
                assert b.value == pytest.approx(a.value, abs=1e-5)
