"""A server without columns of its own, as most split systems have one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from trace_audits import audit

import vflsec

N = 300
X = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 4)).astype("float32"))
Y = (X[:, 0] > 0).long()
GRANT = np.arange(60)


@pytest.mark.parametrize("role", ["active", "passive"])
def test_embeddings_tell_columns_to_who_has_none(role: str, tmp_path: Path) -> None:
    """Every attack on columns ended in an error: own columns are not in this trace."""
    bottom = nn.Linear(4, 6)
    with torch.no_grad():
        bottom.weight.copy_(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    with vflsec.record(
        tmp_path / "t", party="server", role=role, peer="bank", rows=N, classes=2,
        loss_reduction="mean", aux={"bank": (GRANT, X[GRANT])},
    ) as rec:  # fmt: skip
        for step, rows in enumerate(torch.arange(N).split(50)):
            rec.tell("embedding", bottom(X[rows]), rows, sent=False, step=step)
    names = ("embedding_inversion", "attribute")
    result = audit(tmp_path, [tmp_path / "t"], names, Y, hidden={"bank": X})
    assert set(result.results.status) == {"ok"}
    found = result.results.query("metric == primary").set_index("attack")
    assert found.loc["embedding_inversion", "value"] > 0.95
    assert found.loc["embedding_inversion", "control_value"] == pytest.approx(0, abs=0.05)
    assert found.loc["attribute", "value"] > 0.95
    assert any("of columns their mean" in n for n in result.summary["notes"])
