"""Attacks on messages that say nothing of the label, and on more classes than they can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_views import make_view, measure, null_band, rng, tables
from sampled import sampled
from torch import nn

from vflsec.core.rng import as_global
from vflsec.plugins import registry

N = 1200
NEAR = [f"{how}_{by}" for how in ("nearest", "centre", "seeded") for by in ("cosine", "euclid")]
HEADS = ["logistic", "mlp", "finetune", "finetune_mlp", "mixmatch", "mixmatch_frozen"]
QUICK = {"steps": 30, "mixmatch": {"epochs": 1}}
CASES: list[tuple[str, dict[str, Any], int, int, float]] = [
    ("norm", {}, 0, 1, 1.0), ("direction", {}, 20, 1, 1.0), ("cluster", {}, 0, 1, 1.0),
    *(("hints", {"measure": m}, 20, 1, 1.0) for m in ("projection", "distance")),
    *(("similarity", {"variants": (v,)}, 20, 1, 1.0) for v in NEAR),
    *(("spectral", {"on": x, "orient": "size"}, 0, 1, 1.0) for x in ("embedding", "gradient")),
    *(("gradient_completion", {"kind": k}, 20, 5, 1.0) for k in ("head", "em", "average")),
    *(("model_completion", {"variants": (v,), **QUICK}, 20, 1, 1.0) for v in HEADS),
    ("model_completion", {"columns": True, **QUICK, "variants": HEADS[:4]}, 20, 1, 1.0),
    ("exploit", {"steps": 60, "rows": 200}, 10, 1, 1.0), ("unsplit", {"steps": 30}, 10, 6, 1.0),
    ("exploit", {"steps": 60}, 10, 6, 1.0), ("exploit", {"steps": 60}, 10, 1, 1e6),
    ("unsplit", {"steps": 30}, 10, 1, 1.0), ("exploit", {"steps": 60}, 10, 1, 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "params", "known", "epochs", "factor"), sampled(CASES, len(CASES) - 4)
)
def test_messages_without_a_label_in_them_stay_at_chance(
    name: str, params: dict[str, Any], known: int, epochs: int, factor: float
) -> None:
    """Gradients, embeddings and own columns are noise, whatever the factor on gradients is."""
    y = (torch.rand(N, generator=rng(1)) < 0.3).long()
    noise = [factor * torch.randn(N, 6, generator=rng(2 + e)) for e in range(epochs)]
    sent = tables([torch.randn(N, 6, generator=rng(20))] * epochs, "embedding", "sent")
    columns = torch.randn(N, 5, generator=rng(30))
    with as_global(rng(40)):
        bottom = nn.Linear(5, 3)
    view = make_view(
        y, gradients=noise, known=known, test=400, bottom=bottom, columns=columns, extra=sent
    )
    guess = registry.attacks.create(name, params).infer(view, rng())
    low, high = null_band(y, torch.from_numpy(guess.rows))
    assert low < measure(guess, y) < high


@pytest.mark.parametrize("name", ["norm", "direction", "spectral"])
def test_ten_classes_are_refused_with_a_reason(name: str) -> None:
    facts, attack = make_view(torch.arange(20) % 10).facts, registry.attacks.create(name)
    assert "two classes" in attack.applicable(facts)
    assert attack.applicable(replace(facts, classes=2)) == ""
