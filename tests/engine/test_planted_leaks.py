"""Leaks that are planted in a whole training: a gate that passed on them fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from vflsec import cli, registry
from vflsec.federation import Federation

HEAD = """name = "case"
[data]
files = {{ clinic = "clinic.csv", shop = "shop.csv" }}
id = "id"
label = "y"
{task}
[algorithm]
name = "splitnn"
epochs = 10
patience = 0
batch_size = 50
[[defense]]
name = "iso"
strength = [0, 50]
[audit]
seeds = 3
references = []
positive_control = false
"""
GATE = """
[[gate]]
max = 0.1
defense = "defended"
split = "train"
"""


def tables(folder: Path, y: Any, width: int = 60, seed: int = 3, lift: float = 0.07) -> None:
    """Columns of which the shop's tell `y` (n,) to whoever trains on them."""
    rng = np.random.default_rng(seed)
    theirs = rng.standard_normal((len(y), width))
    theirs += lift * ((y - np.mean(y)) / np.std(y))[:, None] * rng.standard_normal(width)
    own = pd.DataFrame(rng.standard_normal((len(y), 3))).add_prefix("a")
    own.assign(y=y).to_csv(folder / "clinic.csv", index_label="id")
    pd.DataFrame(theirs).add_prefix("b").to_csv(folder / "shop.csv", index_label="id")


def verdict_of(folder: Path, rest: str, task: str = "") -> dict[str, Any]:
    path, out = folder / "case.toml", folder / "out"
    path.write_text(HEAD.format(task=task) + rest + GATE, encoding="utf-8")
    cli.main(["audit", str(path), "--out", str(out), "--device", "cpu"])
    (verdict,) = json.loads((out / "summary.json").read_text())["gates"]
    return dict(verdict)


def test_one_epoch_in_order_fails_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the third epoch of ten come sorted by class, all others at random."""
    plain = Federation.batches

    def batches(self: Federation, walk: Any) -> Iterator[Tensor]:
        drawn = list(plain(self, walk))
        if self.epoch == 2 and len(drawn) > 1:
            whole = torch.cat(drawn, dim=1)
            order = self.stack.labels().gather(1, whole).argsort(dim=1, stable=True)
            drawn = list(whole.gather(1, order).split(drawn[0].shape[1], dim=1))
        yield from drawn

    tables(tmp_path, np.random.default_rng(0).permutation(400) % 2)
    attacks = '[[attack]]\nname = "similarity"\n[[attack]]\nname = "zero_pattern"\n'
    (tmp_path / "still").mkdir()
    tables(tmp_path / "still", np.random.default_rng(0).permutation(400) % 2)
    assert verdict_of(tmp_path / "still", attacks)["verdict"] == "PASS"
    monkeypatch.setattr(Federation, "batches", batches)
    verdict = verdict_of(tmp_path, attacks)
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", "zero_pattern")
    assert verdict["value"] > 0.15


@pytest.mark.parametrize(
    ("told", "question"),
    [("far", "far from the median"), ("upper", "largest tenth"), ("nothing", "")],
)
def test_a_distance_or_a_tail_that_is_told_plainly_fails_the_gate(
    told: str, question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry of noise of ratio 50 carries |y - median|, or marks the largest tenth."""
    y = np.random.default_rng(0).standard_normal(600)
    tables(tmp_path, y, lift=0.0)
    iso = type(registry.defenses.create("iso", {}))
    plain = iso.outgoing

    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        out = plain(self, message, own)
        v = own.labels.reshape(out.shape[:2])
        tell = {"far": v.abs(), "upper": (v > 1.2816).to(v)}.get(told)
        if tell is None:
            return out
        out = out.clone()
        large = 5 * out.flatten(1).std(1)[:, None] * tell
        out[:, :, 0] += own.choose(large.unsqueeze(2), torch.zeros_like(large).unsqueeze(2))[..., 0]
        return out

    monkeypatch.setattr(iso, "outgoing", outgoing)
    attacks = '[[attack]]\nname = "message_completion"\n'
    verdict = verdict_of(tmp_path, attacks, 'task = "regression"')
    if question:
        assert verdict["verdict"] == "FAIL"
        assert verdict["attack"] == f"message_completion(question={question})"
    else:
        assert verdict["verdict"] != "FAIL"
        assert verdict["value"] < 0.1
