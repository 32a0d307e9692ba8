"""Which rows a party is asked for, where no gradient comes in the clear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vflsec
from vflsec.engine.trace_attacks import infer, score
from vflsec.report.notebook import Audit
from vflsec.trace.truth import write_truth

N, D, STEPS = 300, 3, 60
Y = (np.random.default_rng(2).random(N) < 0.15).astype(int)
KNOWN = np.concatenate([np.nonzero(c == Y)[0][:10] for c in (0, 1)])


def recorded(folder: Path, seed: int, *, encrypted: bool, balanced: bool) -> Path:
    """Batches drawn with replacement, as often of one class as of the other if `balanced`."""
    rng = np.random.default_rng(seed)
    share = np.where(Y == 1, 0.5 / (Y == 1).sum(), 0.5 / (Y == 0).sum()) if balanced else None
    with vflsec.record(
        folder / f"{encrypted}-{seed}", party="bank", role="passive", rows=N, classes=2,
        loss_reduction="sum", grad_scale=1, known=(KNOWN, Y[KNOWN]), prior=(0.85, 0.15),
        run={"seed": seed, "defense": "he" if encrypted else "none", "strength": 1.0 * encrypted},
    ) as rec:  # fmt: skip
        for step in range(STEPS):
            rows = rng.choice(N, 30, p=share) if balanced else rng.permutation(N)[:30]
            z = torch.from_numpy(rng.normal(size=(30, D)).astype("float32"))
            rec.tell("embedding", z, rows, sent=True, step=step)
            g = rng.normal(size=(30, D)) + 2 * (2 * Y[rows] - 1)[:, None]
            if encrypted:
                rec.tell("ciphertext", np.zeros((30, 7 + step), np.uint8), rows, sent=False)
            else:
                rec.tell("gradient", g.astype("float32"), rows, sent=False, step=step)
    return folder / f"{encrypted}-{seed}"


def judged(base: Path, *, balanced: bool) -> Audit:
    traces = [
        recorded(base, seed, encrypted=encrypted, balanced=balanced)
        for encrypted in (False, True) for seed in range(3)
    ]  # fmt: skip
    infer(traces, base / "g", attacks=("direction", "zero_pattern"), trusted=True)
    write_truth(base / "y", np.arange(N), Y)
    gate = {"max": 0.1, "defense": "defended"}
    return score(base / "g", [base / "y"], base / "o", gates=[gate])


def test_encrypted_gradients_do_not_hide_which_rows_are_drawn(tmp_path: Path) -> None:
    """Rows of the rare class are asked for five times as often, and no attack looked."""
    result = judged(tmp_path, balanced=True)
    (verdict,) = result.verdicts
    assert verdict.verdict == "FAIL", verdict.reason
    assert verdict.attack == "zero_pattern(kind=embedding)"
    assert verdict.value > 0.4


def test_rows_drawn_alike_tell_nothing(tmp_path: Path) -> None:
    result = judged(tmp_path, balanced=False)
    here = result.results.query("metric == 'auc' and role == 'audit' and defense == 'he'")
    assert (abs(here.value - 0.5) < 0.1).all()


def test_where_gradients_come_they_tell_the_same(tmp_path: Path) -> None:
    """One look at which rows were drawn is enough; two would pay for each other."""
    trace = recorded(tmp_path, 0, encrypted=False, balanced=True)
    infer([trace], tmp_path / "g", attacks=("zero_pattern",), trusted=True)
    assert "kind=embedding" not in (tmp_path / "g" / "answers.json").read_text()
    assert '"kind": "embedding"' not in (tmp_path / "g" / "answers.json").read_text()


@pytest.mark.parametrize("rows", [None, np.arange(30)])
def test_a_ciphertext_may_name_its_rows(rows: np.ndarray | None, tmp_path: Path) -> None:
    """An audit of such a trace ended in a traceback."""
    with vflsec.record(
        tmp_path / "t", party="bank", role="passive", rows=N, classes=2, known=(KNOWN, Y[KNOWN]),
    ) as rec:  # fmt: skip
        for step in range(4):
            rec.tell("embedding", np.zeros((30, 2)), np.arange(30), sent=True, step=step)
            rec.tell("ciphertext", np.zeros((30, 5 + step), np.uint8), rows, sent=False, step=step)
    infer([tmp_path / "t"], tmp_path / "g", trusted=True)
