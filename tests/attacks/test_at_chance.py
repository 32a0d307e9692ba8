"""Attacks on gradients that say nothing of the label, and on more classes than they can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_views import make_view, measure, null_band, rng

from vflsec.plugins import registry

NEAR = [f"{how}_{by}" for how in ("nearest", "centre", "seeded") for by in ("cosine", "euclid")]


@pytest.mark.parametrize(
    ("name", "params", "rate", "known"),
    [("norm", {}, 0.2, 0), ("direction", {}, 0.3, 4), ("cluster", {}, 0.4, 0),
     *(("hints", {"measure": m}, 0.3, 10) for m in ("projection", "distance")),
     *(("similarity", {"variants": (v,)}, 0.4, 10) for v in NEAR)],
)  # fmt: skip
def test_gradients_without_a_label_in_them_stay_at_chance(
    name: str, params: dict[str, Any], rate: float, known: int
) -> None:
    y = (torch.rand(2000, generator=rng(1)) < rate).long()
    view = make_view(y, gradients=torch.randn(2000, 8, generator=rng(2)), known=known)
    guess = registry.attacks.create(name, params).infer(view, rng())
    low, high = null_band(y, torch.from_numpy(guess.rows))
    assert low < measure(guess, y) < high


@pytest.mark.parametrize("name", ["norm", "direction", "spectral"])
def test_ten_classes_are_refused_with_a_reason(name: str) -> None:
    facts, attack = make_view(torch.arange(20) % 10).facts, registry.attacks.create(name)
    assert "two classes" in attack.applicable(facts)
    assert attack.applicable(replace(facts, classes=2)) == ""
