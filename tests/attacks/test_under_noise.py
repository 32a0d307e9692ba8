"""What noise on collinear gradients of two classes leaves, of one epoch and of thirty."""

from __future__ import annotations

from typing import Any

import pytest
from attack_views import binary_gradients, iso, make_view, measure, rng

from vflsec.plugins import registry

ON_GRADIENTS = {"on": "gradient", "orient": "size"}


@pytest.mark.parametrize(
    ("name", "params", "known", "strength", "low", "high"),
    [("norm", {}, 0, 1.0, 0.88, 0.97), ("norm", {}, 0, 25.0, 0.45, 0.55),
     ("direction", {}, 2, 1.0, 0.98, 1.0), ("direction", {}, 2, 25.0, 0.42, 0.58),
     ("hints", {}, 10, 1.0, 0.98, 1.0), ("hints", {}, 10, 25.0, 0.42, 0.58),
     ("similarity", {}, 20, 1.0, 0.98, 1.0), ("cluster", {}, 0, 1.0, 0.97, 1.0),
     ("spectral", ON_GRADIENTS, 0, 0.0, 0.999, 1.0), ("spectral", ON_GRADIENTS, 0, 1.0, 0.995, 1.0),
     ("spectral", ON_GRADIENTS, 0, 5.0, 0.85, 0.97)],
)  # fmt: skip
def test_isotropic_noise_leaves_so_much(
    name: str, params: dict[str, Any], known: int, strength: float, low: float, high: float
) -> None:
    """With references as received strength 1 stops nothing, and strength 25 nearly all."""
    g, y = binary_gradients()
    guess = registry.attacks.create(name, params).infer(
        make_view(y, gradients=iso(g, strength), known=known), rng()
    )
    assert low <= measure(guess, y) <= high


@pytest.mark.parametrize(
    ("name", "params", "size", "strength", "most", "least"),
    [("norm", {}, (2000, 32), 5.0, 0.65, 0.84),
     ("direction", {"positives": 5}, (2000, 32), 5.0, 0.85, 0.97),
     ("spectral", ON_GRADIENTS, (800, 2), 1.5, 0.85, 0.95)],
)  # fmt: skip
def test_thirty_epochs_average_fresh_noise_out(
    name: str, params: dict[str, Any], size: tuple[int, int], strength: float, most: float,
    least: float,
) -> None:  # fmt: skip
    g, y = binary_gradients(*size)
    epochs = [iso(g, strength, seed) for seed in range(30)]
    view = make_view(y, gradients=epochs, known=10, batch=size[0])
    once, often = (
        measure(registry.attacks.create(name, {**how, **params}).infer(view, rng()), y)
        for how in ({"accumulate": False}, {})  # to add up is the default
    )
    assert max(once, 1 - once) < most
    assert often > least
