"""One column of twelve that is told: the mean over columns passes, the question about one fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sampled import sampled
from torch import Tensor

from vflsec.cli import main
from vflsec.core.federation import Federation
from vflsec.engine.read_results import read_audit
from vflsec.plugins import registry
from vflsec.report.exports import load_summary

pytestmark = pytest.mark.usefixtures("no_reports")

SCENARIO = """name = "case"
[data]
files = { bank = "bank.csv", shop = "shop.csv" }
id = "id"
label = "y"
[algorithm]
name = "splitnn"
epochs = 3
patience = 0
[[defense]]
name = "embedding_noise"
strength = [0, 1]
[[attack]]
name = "embedding_inversion"
adversary = "bank"
aux_rows = 100
variants = ["linear"]
[[attack]]
name = "attribute"
adversary = "bank"
aux_rows = 100
column = "*"
[audit]
seeds = 3
references = []
positive_control = false
canaries = false
[[gate]]
name = "mean"
target = "feature"
defense = "defended"
max = 0.15
[[gate]]
name = "one"
target = "feature"
of = "r2_column"
defense = "defended"
max = 0.15
[[gate]]
name = "question"
target = "attribute"
defense = "defended"
max = 0.15
"""


@pytest.mark.parametrize("told", sampled(["plainly", "its distance from the middle", ""]))
def test_one_column_of_twelve_that_is_told_fails_the_gate_that_asks(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = np.random.default_rng(0)
    own, theirs = g.standard_normal((1200, 3)), g.standard_normal((1200, 12))
    y = (own[:, 0] + theirs[:, 0] + g.standard_normal(1200) > 0).astype(int)
    pd.DataFrame(own).add_prefix("a").assign(y=y).to_csv(tmp_path / "bank.csv", index_label="id")
    pd.DataFrame(theirs).add_prefix("b").to_csv(tmp_path / "shop.csv", index_label="id")
    noise = type(registry.defenses.create("embedding_noise", {}))
    seen: dict[str, Any] = {}

    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        hidden = torch.randn(message.tensor.shape, generator=torch.Generator().manual_seed(1))
        if told:
            x = seen["stack"].columns("shop", message.rows)[..., 4]
            hidden[..., 0] = x if told == "plainly" else x.abs()
        return own.choose(hidden, message.tensor)

    plain = Federation.send

    def send(self: Any, *given: Any, **how: Any) -> Any:
        seen["stack"] = self.stack
        return plain(self, *given, **how)

    monkeypatch.setattr(Federation, "send", send)
    monkeypatch.setattr(noise, "outgoing", outgoing)
    (tmp_path / "case.toml").write_text(SCENARIO, encoding="utf-8")
    out = tmp_path / "out"
    code = main.main(["audit", str(tmp_path / "case.toml"), "--out", str(out), "--device", "cpu"])
    summary = load_summary(out)
    mean, one, question = summary["gates"]
    assert mean["verdict"] == "PASS"
    defended = [p for p in summary["points"] if p["attack"] and p["strength"] == 1]
    best, asked = ({p["metric"]: p for p in defended}[m] for m in ("r2_column", "auc"))
    assert best["advantage"] == one["value"]
    assert asked["advantage"] == question["value"]
    if told:
        assert code == 1
        assert question["verdict"] == "FAIL"
        assert question["value"] > 0.4
        assert "b4 " in asked["asked"]
        claims = [c for c in read_audit(out).found.claims if c.strength == 1]
        assert {c.asked for c in claims if c.target == "attribute"} == {asked["asked"]}
    if told == "plainly":
        assert one["verdict"] == "FAIL"
        assert one["value"] > 0.9
        assert best["asked"] == "b4"
    else:
        assert one["verdict"] == "PASS"
        assert one["value"] < 0.05
    if told == "its distance from the middle":
        assert asked["asked"] == "b4 far from the median"
    if not told:
        assert (code, question["verdict"]) == (0, "PASS")
        assert question["value"] < 0.05
