"""Isotropic noise: its scale, its symmetries, what it leaves alone, and what it does not stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bench import message, owner, rows_of_gradients

from vflsec.core.policy import Own
from vflsec.errors import ConfigError
from vflsec.plugins import registry


def iso(**params: str) -> Any:
    return registry.defenses.create("iso", params)


def noise(policy: object, own: Own, x: torch.Tensor, kind: str = "gradient") -> torch.Tensor:
    return policy.outgoing(message(x, kind), own) - x  # type: ignore[attr-defined]


def test_scale_is_strength_times_largest_norm_over_root_width() -> None:
    x = torch.zeros(1, 5000, 4, dtype=torch.float64)
    x[0, 7] = torch.tensor([2.0, 0, 0, 0])  # largest norm 2, m = 4: sigma = 1
    e = noise(iso(), owner(iso(), [1.0]), x)
    spread = 5 / math.sqrt(2 * e.numel())
    assert e.std().item() == pytest.approx(1.0, abs=spread)
    assert e.mean().item() == pytest.approx(0.0, abs=5 / math.sqrt(e.numel()))
    assert (e.square().sum(2).mean().sqrt()).item() == pytest.approx(2.0, rel=0.02)  # lambda max


@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
def test_noise_scales_with_the_message(factor: float) -> None:
    x, _ = rows_of_gradients()
    one = noise(iso(), owner(iso(), [2.0]), x)
    other = noise(iso(), owner(iso(), [2.0]), factor * x)
    assert torch.allclose(other, factor * one, rtol=1e-9)


def test_permuting_rows_permutes_what_they_become_without_their_noise() -> None:
    x, _ = rows_of_gradients()
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    one = noise(iso(), owner(iso(), [2.0]), x)
    other = noise(iso(), owner(iso(), [2.0]), x[:, order])
    assert torch.allclose(one, other, atol=1e-12)  # the same draw for the same place, same scale


def test_draws_afresh_for_every_message() -> None:
    x, _ = rows_of_gradients()
    own = owner(iso(), [1.0])
    a, b = noise(iso(), own, x).flatten(), noise(iso(), own, x).flatten()
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 5 / math.sqrt(len(a))


def test_embeddings_and_parameters() -> None:
    x, _ = rows_of_gradients(2)
    assert iso(on="embedding").owner == "passive"
    assert iso(on="state").owner == "all"
    assert iso(on="embedding").covers == {"embedding"}
    assert noise(iso(on="embedding"), owner(iso(), [1.0] * 2), x, "embedding").abs().min() > 0
    bias = torch.linspace(-1, 2, 3000, dtype=torch.float64).unsqueeze(0)  # rows are entries: m = 1
    e = noise(iso(on="state"), owner(iso(), [0.5]), bias, "state")
    assert e.std().item() == pytest.approx(0.5 * 2.0, rel=0.07)


def test_all_zero_rows_get_no_noise_and_narrow_rows_work() -> None:
    zero = torch.zeros(1, 5, 3, dtype=torch.float64)
    assert torch.equal(iso().outgoing(message(zero), owner(iso(), [5.0])), zero)
    narrow = torch.ones(1, 4000, 1, dtype=torch.float64)
    e = noise(iso(), owner(iso(), [1.0]), narrow)
    assert e.std().item() == pytest.approx(1.0, rel=0.06)


def test_refuses_other_kinds_and_strengths() -> None:
    with pytest.raises(ConfigError, match="strength"):
        iso().check_strength(-1.0)


def test_does_not_stop_a_direction_at_strength_one_nor_averaging_over_epochs() -> None:
    """One row's cosine to the class direction still separates; averaging does too."""
    from by_hand import rank_rows

    x, y = rows_of_gradients(b=200, m=32)
    direction = torch.ones(32, dtype=torch.float64)
    own = owner(iso(), [1.0])
    once = iso().outgoing(message(x), own)[0] @ direction
    assert rank_rows(once.numpy(), y[0].numpy() == 1) > 0.95
    strong = owner(iso(), [10.0])
    one = iso().outgoing(message(x), strong)[0] @ direction
    many = sum(iso().outgoing(message(x), strong)[0] @ direction for _ in range(50))
    first = rank_rows(one.numpy(), y[0].numpy() == 1)
    assert rank_rows(many.numpy(), y[0].numpy() == 1) > max(0.95, first + 0.1)
