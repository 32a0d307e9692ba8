"""Gates that passed on attacks of one epoch: what all of them tell together fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sampled import sampled

from vflsec.cli import main

CASE = """name = "case"
[data]
files = { clinic = "clinic.csv", shop = "shop.csv" }
id = "id"
label = "y"
[algorithm]
name = "splitnn"
epochs = 10
patience = 0
[[defense]]
name = "iso"
strength = [0, STRENGTH]
[audit]
seeds = 3
references = []
positive_control = false
[[gate]]
max = 0.1
defense = "defended"
split = "train"
"""
SUMMED = """batch_size = 48
hidden = []
top = []
linear_top = false
aggregation = "sum"
"""


def verdict_of(folder: Path, attack: str, strength: int, settings: str = "") -> dict[str, Any]:
    y = np.random.default_rng(0).permutation(1000) % 2
    rng = np.random.default_rng(3)
    pd.DataFrame(rng.standard_normal((1000, 8))).add_prefix("b").to_csv(
        folder / "shop.csv", index_label="id"
    )
    own = rng.standard_normal((1000, 3)) + (y - 0.5)[:, None]
    pd.DataFrame(own).add_prefix("a").assign(y=y).to_csv(folder / "clinic.csv", index_label="id")
    text = CASE.replace("STRENGTH", str(strength))
    text = text.replace("patience = 0\n", f"patience = 0\n{settings}")
    path = folder / "case.toml"
    path.write_text(f'{text}[[attack]]\nname = "{attack}"\n', encoding="utf-8")
    main.main(["audit", str(path), "--out", str(folder / "out"), "--device", "cpu"])
    summary = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    (verdict,) = summary["gates"]
    return dict(verdict)


@pytest.mark.parametrize(
    ("attack", "strength", "settings"), sampled([("lea", 12, ""), ("batch_inference", 2, SUMMED)])
)
def test_noise_that_hid_the_labels_of_one_epoch_fails_the_gate(
    attack: str, strength: int, settings: str, tmp_path: Path
) -> None:
    verdict = verdict_of(tmp_path, attack, strength, settings)
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", attack)
    assert verdict["value"] > 0.12
