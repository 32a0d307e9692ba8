"""Audit of label privacy without canaries: calibration, a broken claim, a proxy that is off."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.defenses.label_dp import keep_probability
from vflsec.epsilon.randomised_labels import observe
from vflsec.errors import VflsecError


def world(seed: int, n: int = 4000, epsilon: float | None = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Features' class shares (n, 2), labels drawn from them, and labels as they were released."""
    g = generator(seed, "observed")
    p = torch.sigmoid(1.5 * torch.randn(n, generator=g, dtype=torch.float64))
    y = (torch.rand(n, generator=g, dtype=torch.float64) < p).long()
    keep = 1.0 if epsilon is None else float(keep_probability(epsilon, 2))
    kept = torch.rand(n, generator=g, dtype=torch.float64) < keep
    return torch.stack([1 - p, p], dim=1), y, torch.where(kept, y, 1 - y)


def scores(shares: Tensor, released: Tensor, epsilon: float) -> Tensor:
    """The best attacker: its log posterior without the prior, which both labels share."""
    hot = torch.nn.functional.one_hot(released, 2).double()
    return hot * epsilon


def test_true_randomised_response_is_not_contradicted_and_the_bound_is_not_idle() -> None:
    found = []
    for seed in range(20):
        shares, y, out = world(seed)
        made = observe(scores(shares, out, 1.0), y, shares, generator(seed, "proxy"))
        found.append(made.epsilon)
        assert made.without == 0.0
    assert sum(e > 1.0 for e in found) <= 3
    assert sum(found) / len(found) > 0.6


def test_labels_in_the_clear_contradict() -> None:
    shares, y, out = world(0, epsilon=None)
    made = observe(scores(shares, out, 9.0), y, shares, generator(0, "proxy"))
    assert made.epsilon > 4.0
    assert made.without == 0.0


def test_an_attacker_that_knows_nothing_finds_nothing() -> None:
    for seed in range(10):
        shares, y, _ = world(seed)
        blind = torch.randn(len(y), 2, generator=generator(seed, "blind"), dtype=torch.float64)
        assert observe(blind, y, shares, generator(seed, "proxy")).epsilon < 0.2


def test_a_proxy_that_is_off_is_seen_and_taken_off() -> None:
    """A proxy flatter than the truth: features alone seem to leak, so nothing is contradicted."""
    shares, y, out = world(1, n=8000)
    flat = torch.full_like(shares, 0.5)
    guess = scores(shares, out, 1.0) + shares.log()
    made = observe(guess, y, flat, generator(1, "proxy"))
    assert made.epsilon > 1.0  # an artefact of the proxy
    log_odds = (shares[:, 1] / shares[:, 0]).log().abs().max().item()
    assert made.epsilon <= log_odds
    alone = observe(shares.log(), y, flat, generator(1, "proxy"))
    assert alone.epsilon > 0.4
    assert made.epsilon - alone.epsilon <= 1.0
    skewed = torch.softmax(0.5 * shares.log(), dim=1)
    off = observe(guess, y, skewed, generator(1, "proxy"))
    assert off.without > 0.2
    assert off.epsilon - off.without <= 1.0


def test_the_same_generator_gives_the_same_bound_and_shapes_are_checked() -> None:
    shares, y, out = world(2)
    s = scores(shares, out, 1.0)
    one, two = (observe(s, y, shares, generator(0, "x")) for _ in range(2))
    assert one == two
    assert math.isfinite(one.epsilon)
    with pytest.raises(VflsecError, match="observed: scores, labels and proxy"):
        observe(s, y[:-1], shares, generator(0, "x"))
