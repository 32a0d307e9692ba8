"""Messages of one kind in several number types, as a loop with mixed precision sends them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sampled import sampled
from trace_audits import audit

import vflsec

N = 120
Y = np.arange(N) % 3 % 2


@pytest.mark.parametrize(
    "types",
    sampled([((torch.int64, torch.float32),), ((torch.float32, torch.float64),),
             ((torch.float64, torch.float32),), ((torch.float16, torch.float64, torch.bfloat16),)]),
)  # fmt: skip
def test_a_leak_in_messages_of_several_types_is_found(
    types: tuple[torch.dtype, ...], tmp_path: Path
) -> None:
    """Such a trace was valid, and its audit ended in an internal error."""
    g = torch.Generator().manual_seed(0)
    with vflsec.record(
        tmp_path / "t", party="bank", role="passive", rows=N, classes=2, loss_reduction="sum",
        known=(np.arange(12), Y[:12]), prior=(2 / 3, 1 / 3), grad_scale=1,
    ) as rec:  # fmt: skip
        for step, rows in enumerate(r for _ in range(3) for r in torch.randperm(N).split(30)):
            told = (torch.from_numpy(Y)[rows] * 40.0 - 20).unsqueeze(1)
            noise = 10 * torch.randn(30, 3, generator=g)
            for kind, x in (("embedding", noise), ("gradient", noise + told)):
                x = x.to(types[step % len(types)])
                rec.tell(kind, x, rows, sent=kind == "embedding", step=step)
    names = ("direction", "similarity", "message_completion", "exploit")
    result = audit(tmp_path, [tmp_path / "t"], names, Y)
    found = result.results.query("metric == 'auc'").set_index("attack")["value"]
    assert set(found.index) == set(names)
    assert found["direction"] > 0.97
    assert found["similarity"] > 0.97
