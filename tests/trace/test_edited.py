"""Traces that were edited and sealed again, and now contradict their own description."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hostile import reseal
from sampled import sampled

import vflsec
from vflsec.engine.trace_attacks import infer, score
from vflsec.trace.limits import TRUSTED
from vflsec.trace.tables import open_writer
from vflsec.trace.truth import write_truth

N, FIRST = 200, 16
"""Rows, and messages of the first two epochs, which tell nothing; the rest tells the labels."""


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pq.read_table(path))
    with open_writer(path, table.schema) as out:
        out.write_table(table)


def dropped(view: Path) -> None:
    rewrite(view / "messages.parquet", lambda t: t.slice(0, FIRST))
    for path in view.glob("tensors-*"):
        rewrite(path, lambda t: t.filter(pc.less(t["msg"], FIRST)))


def looked_at_before(view: Path) -> None:
    path = view / "observer.json"
    info = json.loads(path.read_text())
    info["moments"][0]["messages"] = FIRST
    path.write_text(json.dumps(info))


def renamed(field: str, name: str) -> Callable[[Path], None]:
    def edit(view: Path) -> None:
        def change(t: pa.Table) -> pa.Table:
            values = [v if i < FIRST else name for i, v in enumerate(t[field].to_pylist())]
            at = t.schema.get_field_index(field)
            return t.set_column(at, t.schema.field(at), pa.array(values, t.schema.field(at).type))

        rewrite(view / "messages.parquet", change)

    return edit


EDITS: dict[str, tuple[Callable[[Path], None] | None, str]] = {
    "untouched": (None, ""),
    "messages dropped": (dropped, "gradient from active to bank in train: declared 24 messages"),
    "an earlier moment": (looked_at_before, "32 messages came after phase 'train'"),
    "phases renamed": (renamed("phase", "other"), "in other: declared 0 messages, got 16"),
    "kinds renamed": (renamed("kind", "ids"), "ids from active to bank in train: declared 0"),
}  # fmt: skip


def recorded(folder: Path, seed: int, run: dict[str, Any], quiet: int) -> Path:
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(N, generator=g) < 0.4).long()
    known = torch.cat([(y == c).nonzero().squeeze(1)[:10] for c in (0, 1)])
    with vflsec.record(
        folder, party="bank", role="passive", rows=N, classes=2, loss_reduction="sum",
        known=(known, y[known]), prior=(0.6, 0.4), grad_scale=1, run={**run, "seed": seed % 10},
    ) as rec:  # fmt: skip
        for epoch in range(6):
            for rows in torch.randperm(N, generator=g).split(50):
                z = rec.cut(torch.randn(50, 3, generator=g).requires_grad_() * 1, rows)
                told = 6.0 * (epoch >= quiet) * (y[rows] * 2 - 1).unsqueeze(1)
                z.backward(torch.randn(50, 3, generator=g) + told)
    write_truth(folder, np.arange(N), y)
    return folder


@pytest.mark.parametrize("name", sampled(EDITS, every=3))
def test_a_leak_that_was_edited_away_passes_nothing(name: str, tmp_path: Path) -> None:
    """All of these passed; of an earlier moment no word was said."""
    edit, words = EDITS[name]
    bare = [recorded(tmp_path / f"u{s}", s, {}, 0) for s in range(3)]
    noisy = {"defense": "noise", "strength": 1.0}
    mine = [recorded(tmp_path / f"t{s}", 10 + s, noisy, 2) for s in range(3)]
    for folder in mine if edit else ():
        edit(folder / "view" / "bank")
        reseal(folder)
    infer([*bare, *mine], tmp_path / "g", attacks=("direction",), limits=TRUSTED)
    gate = {"max": 0.25, "attack": "direction", "defense": "defended"}
    (verdict,) = score(tmp_path / "g", [*bare, *mine], tmp_path / "o", gates=[gate]).verdicts
    if edit is None:
        assert verdict.verdict == "FAIL"
        return
    assert verdict.value < 0.25
    assert verdict.verdict == "INCONCLUSIVE"
    assert words in verdict.reason
