"""Noise that leaves each gradient telling less than own columns do: all epochs and both tell more.

An attack that reads gradients alone then stands below its control, and its advantage is negative,
though whoever puts both together knows the labels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vflsec import cli

SCENARIO = """name = "beside"
[data]
files = {{ clinic = "clinic.csv", shop = "shop.csv" }}
id = "id"
label = "y"
[algorithm]
name = "splitnn"
epochs = 10
patience = 0
batch_size = 50
[[defense]]
name = "iso"
strength = [0, {strength}]
[[attack]]
name = "direction"
[[attack]]
name = "model_completion"
known_rows = 60
[[attack]]
name = "gradient_completion"
known_rows = 60
[audit]
seeds = 3
references = []
positive_control = false
[[gate]]
max = 0.1
defense = "defended"
split = "train"
"""


def tables(folder: Path, classes: int, n: int) -> None:
    """The label is the class with the largest sum of what the clinic, the shop and nobody knows."""
    g = np.random.default_rng(0)
    a, b = g.standard_normal((2, n, 5))
    y = (1.5 * b[:, :classes] + a[:, :classes] + g.standard_normal((n, classes))).argmax(1)
    pd.DataFrame(a).add_prefix("a").assign(y=y).to_csv(folder / "clinic.csv", index_label="id")
    pd.DataFrame(b).add_prefix("b").to_csv(folder / "shop.csv", index_label="id")


def audited(folder: Path, classes: int, n: int, strength: int) -> tuple[dict[str, Any], Any]:
    """The verdict, and by attack the advantages at a strength."""
    tables(folder, classes, n)
    path, out = folder / "case.toml", folder / "out"
    text = SCENARIO.format(strength=strength)
    if classes > 2:
        text = text.replace('[[attack]]\nname = "direction"\n', "")
    path.write_text(text, encoding="utf-8")
    cli.main(["audit", str(path), "--out", str(out), "--device", "cpu"])
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    found = {
        p["attack"]: p["advantage"]
        for p in summary["points"]
        if p["attack"] and p["primary"] == p["metric"] and p["strength"] == strength
        and p["split"] == "train"
    }  # fmt: skip
    (verdict,) = summary["gates"]
    return verdict, found


@pytest.mark.parametrize(("classes", "n"), [(2, 1200), (3, 1500)])
def test_gradients_and_own_columns_together_fail_the_gate(
    classes: int, n: int, tmp_path: Path
) -> None:
    verdict, found = audited(tmp_path, classes, n, 5)
    assert (verdict["verdict"], verdict["attack"]) == ("FAIL", "gradient_completion")
    assert found["gradient_completion"] > 0.13
    assert max(v for k, v in found.items() if k != "gradient_completion") < 0.06


def test_under_much_noise_there_is_nothing_to_add(tmp_path: Path) -> None:
    verdict, found = audited(tmp_path, 3, 1500, 500)
    assert verdict["verdict"] != "FAIL"
    assert found["gradient_completion"] < 0.02
