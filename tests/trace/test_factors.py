"""What gradients were multiplied by and nobody said: read both ways, and told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import vflsec
from vflsec.engine.trace_attacks import infer, score
from vflsec.trace.truth import write_truth

D = 3


def leaky(folder: Path, grad_scale: float | None) -> tuple[dict[str, float], list[str]]:
    """AUC by attack, and the notes, of a loop whose loss has a weight by batch that nobody tells.

    The gradient of a row of the rare class is three times as long as that of another.
    """
    g = torch.Generator().manual_seed(0)
    y = np.arange(300) % 10 < 3
    with vflsec.record(
        folder / "t", party="bank", role="passive", rows=300, classes=2, loss_reduction="sum",
        known=(np.arange(20), y[:20].astype(int)), prior=(0.7, 0.3), grad_scale=grad_scale,
    ) as rec:  # fmt: skip
        for epoch in range(2):
            rec.epoch(epoch)
            for k, rows in enumerate(torch.randperm(300, generator=g).split(30)):
                z = rec.cut(torch.randn(30, D, generator=g).requires_grad_(), rows)
                unit = nn.functional.normalize(torch.randn(30, D, generator=g), dim=1)
                z.backward(unit * (1 + 2.0 * torch.from_numpy(y)[rows, None]) * 10.0 ** (k % 4))
    guesses = infer([folder / "t"], folder / "g", attacks=("norm", "hints"), trusted=True)
    write_truth(folder / "y", np.arange(300), y.astype(int))
    result = score(guesses, [folder / "y"], folder / "o")
    found = result.results.query("metric == 'auc'")
    return dict(zip(found.attack, found.value, strict=True)), result.summary["notes"]


def test_what_nobody_said_of_the_scale_is_read_both_ways(tmp_path: Path) -> None:
    """A factor that changed from batch to batch hid lengths, without a word."""
    found, notes = leaky(tmp_path, None)
    assert found["norm"] < 0.75
    assert found["norm(accumulate=scaled)"] > 0.9
    assert set(found) == {"norm", "norm(accumulate=scaled)", "hints"}
    (said,) = [n for n in notes if "multiplied by" in n]
    assert "norm read them as they came and again" in said
    assert "Record with grad_scale=1 where there is no factor" in said


def test_what_was_said_of_the_scale_is_taken_at_its_word(tmp_path: Path) -> None:
    found, notes = leaky(tmp_path, 1.0)
    assert set(found) == {"norm", "hints"}
    assert not [n for n in notes if "multiplied by" in n]
