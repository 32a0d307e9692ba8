"""Columns in another order than rows of messages: attacks end at chance, and nothing passes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sampled import sampled
from torch import nn
from trace_audits import record

from vflsec.engine.trace_attacks import infer
from vflsec.measure.guess_files import thaw
from vflsec.trace.completeness import measure_relation
from vflsec.trace.limits import TRUSTED

N = 240


def test_rv_against_all_orders_has_mean_0_and_spread_1() -> None:
    g = torch.Generator().manual_seed(0)
    x, z = torch.randn(60, 3, generator=g) ** 3, torch.randn(60, 2, generator=g).exp()
    found = torch.tensor(
        [measure_relation(x, z[torch.randperm(60, generator=g)]) for _ in range(600)]
    )
    assert abs(float(found.mean())) < 0.15
    assert abs(float(found.std()) - 1) < 0.15
    assert measure_relation(x, x) > 10
    assert measure_relation(2 * x + 1, z) == pytest.approx(measure_relation(x, z))
    assert math.isnan(measure_relation(x, torch.ones(60, 2)))


@pytest.mark.parametrize("seed", sampled([0, 1, 2]))
@pytest.mark.parametrize(
    ("shift", "noise", "epochs", "said"),
    [(0, 0, 1, 0), (0, 10, 10, 0), (1, 0, 1, 1), (1, 0, 10, 1), (1, 10, 10, 1)],
)
def test_columns_in_another_order_are_said(
    shift: int, noise: float, epochs: int, said: int, seed: int, tmp_path: Path
) -> None:
    """A table sorted another way than the ids: leaks drowned, and nothing said why.

    Noise on sound embeddings does not look like it, for it averages out over the epochs.
    """
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(N, 4, generator=g), np.arange(N) % 2
    torch.manual_seed(seed)  # of the bottom's weights
    bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    how = {"prior": (0.5, 0.5), "columns": x.roll(shift, 0)}
    with record(tmp_path / "t", y, np.arange(20), **how) as rec:
        for rows in torch.cat([torch.randperm(N, generator=g) for _ in range(epochs)]).split(40):
            z = bottom(x[rows])
            z = rec.cut(z + noise * z.std() * torch.randn(z.shape, generator=g), rows)
            z.backward(torch.randn(z.shape, generator=g))
    frozen = thaw(infer([tmp_path / "t"], tmp_path / "g", attacks=("direction",), limits=TRUSTED))
    found = [n for n in frozen.notes if "standard deviations" in n]
    assert len(found) == said
    assert len(frozen.sources[0].gaps.get("bank", [])) == said
