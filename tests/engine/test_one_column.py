"""One column of twelve that is sent plainly: the mean over columns passes, the named one fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from vflsec import cli, registry
from vflsec.federation import Federation

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
aux_rows = 60
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
"""


@pytest.mark.parametrize("told", [True, False])
def test_one_column_of_twelve_that_is_sent_plainly_fails_the_gate_that_asks(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = np.random.default_rng(0)
    own, theirs = g.standard_normal((500, 3)), g.standard_normal((500, 12))
    y = (own[:, 0] + theirs[:, 0] + g.standard_normal(500) > 0).astype(int)
    pd.DataFrame(own).add_prefix("a").assign(y=y).to_csv(tmp_path / "bank.csv", index_label="id")
    pd.DataFrame(theirs).add_prefix("b").to_csv(tmp_path / "shop.csv", index_label="id")
    noise = type(registry.defenses.create("embedding_noise", {}))
    seen: dict[str, Any] = {}

    def outgoing(self: Any, message: Any, own: Any) -> Tensor:
        hidden = torch.randn(message.tensor.shape, generator=torch.Generator().manual_seed(1))
        if told:
            hidden[..., 0] = seen["stack"].columns("shop", message.rows)[..., 4]
        return own.choose(hidden, message.tensor)

    plain = Federation.send

    def send(self: Any, *given: Any, **how: Any) -> Any:
        seen["stack"] = self.stack
        return plain(self, *given, **how)

    monkeypatch.setattr(Federation, "send", send)
    monkeypatch.setattr(noise, "outgoing", outgoing)
    (tmp_path / "case.toml").write_text(SCENARIO, encoding="utf-8")
    out = tmp_path / "out"
    code = cli.main(["audit", str(tmp_path / "case.toml"), "--out", str(out), "--device", "cpu"])
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    mean, one = summary["gates"]
    assert mean["verdict"] == "PASS"
    if told:
        assert (code, one["verdict"]) == (1, "FAIL")
        assert one["value"] > 0.9
        (point,) = (p for p in summary["points"]
                    if p["metric"] == "r2_column" and p["defense"] != "undefended"
                    and p["strength"] == 1)  # fmt: skip
        assert point["advantage"] == one["value"]
    else:
        assert (code, one["verdict"]) == (0, "PASS")
        assert one["value"] < 0.0
