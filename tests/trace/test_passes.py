"""Recordings that say neither epoch nor step: what order tells is found as where they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vflsec
from vflsec.core.view import Table
from vflsec.engine.trace_attacks import infer, score
from vflsec.trace.infer_epochs import numbered
from vflsec.trace.truth import write_truth

N, EPOCHS, BATCH = 200, 6, 25


def table(*passes: list[int], batch: int = 2, steps: bool = True) -> Table:
    """Messages of the rows of passes, without epochs."""
    rows = torch.tensor([r for one in passes for r in one])
    of = [i // batch + 100 * k for k, one in enumerate(passes) for i in range(len(one))]
    return Table(torch.zeros(len(rows), 1), rows, torch.zeros_like(rows), torch.tensor(of))


def test_whole_passes_are_epochs() -> None:
    found = numbered(table([0, 1, 2, 3], [3, 2, 0, 1], [1, 0, 3, 2]))
    assert found.epoch.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    left = numbered(table([0, 1, 2, 3], [4, 2, 0, 1], [1, 4, 3, 2]))  # the last batch is left out
    assert left.epoch.tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    "passes",
    [
        ([0, 1, 2, 3],),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2]),  # training ended in the middle of one
        ([0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 3, 3]),  # rows are drawn, some of them twice
    ],
)
def test_what_is_no_whole_pass_is_left_as_it_is(passes: tuple[list[int], ...]) -> None:
    given = table(*passes)
    assert numbered(given) is given


def test_epochs_that_are_told_stay() -> None:
    given = table([0, 1], [0, 1])
    told = Table(given.tensor, given.rows, torch.tensor([0, 0, 7, 7]), given.step)
    assert numbered(told) is told


def by_step(rec: vflsec.trace.record_api.Recording, x: Tensor, rows: Tensor, step: int) -> None:
    rec.tell("embedding", x, rows, sent=True, step=step)
    rec.tell("gradient", x, rows, sent=False, step=step)


def bare(rec: vflsec.trace.record_api.Recording, x: Tensor, rows: Tensor, step: int) -> None:
    rec.tell("embedding", x, rows, sent=True)
    rec.tell("gradient", x, rows, sent=False)


def cut(rec: vflsec.trace.record_api.Recording, x: Tensor, rows: Tensor, step: int) -> None:
    rec.cut(x.clone().requires_grad_() * 1, rows).backward(x)


@pytest.mark.parametrize("told", [by_step, bare, cut])
@pytest.mark.parametrize("plant", ["order", "place", "nothing"])
def test_one_epoch_in_the_order_of_labels_is_found(
    told: Callable[..., None], plant: str, tmp_path: Path
) -> None:
    """Rows of one class come first, in the epoch or in its batches, in the third of six."""
    traces = []
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        y = torch.arange(N) % 2
        how = {"party": "bank", "role": "passive", "rows": N, "classes": 2, "grad_scale": 1,
               "loss_reduction": "sum", "known": (range(20), y[:20])}  # fmt: skip
        with vflsec.record(tmp_path / f"t{seed}", run={"seed": seed}, **how) as rec:  # type: ignore[arg-type]
            for epoch in range(EPOCHS):
                rows = torch.randperm(N, generator=g)
                if epoch == 2 and plant == "order":
                    rows = rows[y[rows].argsort(stable=True)]
                for step, part in enumerate(rows.split(BATCH)):
                    if epoch == 2 and plant == "place":
                        part = part[y[part].argsort(stable=True)]
                    told(rec, torch.randn(len(part), 3, generator=g), part, 8 * epoch + step)
        write_truth(tmp_path / f"t{seed}", np.arange(N), y)
        traces.append(tmp_path / f"t{seed}")
    infer(traces, tmp_path / "g", attacks=("zero_pattern",), trusted=True)
    result = score(tmp_path / "g", traces, tmp_path / "o", gates=[{"max": 0.1}])
    (verdict,) = result.verdicts
    if plant == "nothing":
        assert verdict.verdict == "INCONCLUSIVE"
        assert "nothing" in verdict.reason.lower() or "declin" in verdict.reason.lower()
        assert verdict.value is None
    else:
        assert verdict.verdict == "FAIL"
        assert verdict.value is not None
        assert verdict.value > 0.4
