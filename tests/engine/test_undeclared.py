"""An algorithm that sends what it does not name: attacks on it are set aside, and that is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from printed import gaps

import vflsec
from vflsec.config.scenario import load_scenario

TATTLE = '''"""Split training that also answers whoever asks.

Source: an example.
"""
from dataclasses import dataclass

import torch

from vflsec.plugins import registry
from vflsec.algorithms.splitnn import SplitNN


@registry.algorithm
@dataclass(frozen=True)
class Tattle(SplitNN):
    """Hyper-parameters: those of split training.

    Attributes:
        named: whether `sends` names the answers.
    """

    named: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.named:
            told = {("prediction", "active", "passive")}
            object.__setattr__(self, "sends", self.sends | told)

    def predict(self, fed, rows):
        logits = super().predict(fed, rows)
        for p in self.passive(fed):
            share = torch.softmax(logits, -1)
            fed.send("prediction", fed.active.name, p.name, share, rows, phase="predict")
        return logits
'''


@pytest.mark.parametrize("named", [False, True])
def test_what_sends_does_not_name_is_said_to_be_set_aside(
    install: Callable[..., Path], tmp_path: Path, named: bool
) -> None:
    install({"vflsec.algorithms": {"tattle": "tattle"}}, tattle=TATTLE)
    raw: dict[str, Any] = {
        "data": {"name": "leaky"},
        "algorithm": {"name": "tattle", "named": named, "epochs": 2},
        "attack": [{"name": "norm"}, {"name": "output"}],
        "audit": {"seeds": 2, "references": [], "positive_control": False},
    }
    summary = vflsec.run_audit(load_scenario(raw, base=tmp_path), tmp_path / "out").summary
    status = {p["attack"]: p["status"] for p in summary["points"] if p["attack"]}
    assert status == {"norm": "ok", "output": "ok" if named else "not-observable"}
    said = [line for line in gaps(summary) if "`sends` of tattle" in line]
    assert len(said) == (not named)
    assert named or said[0].endswith("prediction from active to passive.")
