"""Active model completion: the malicious optimizer, and what it does to a run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from attack_views import made

from vflsec.core.federation import Federation
from vflsec.core.policy import Own
from vflsec.core.rng import Streams
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.testing import small_stack

active = partial(made, "active_completion")


def factors(
    gradients: list[float], lr: float = 0.1, momentum: float = 0.0, **params: Any
) -> list[float]:
    """The factor of every step of plain descent on one coordinate with these gradients."""
    p = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    inner = torch.optim.SGD([p], lr=lr, momentum=momentum)
    own = Own("passive1", torch.ones(1, dtype=torch.float64), Streams([0], "x"))
    policy = active(**params).policy()
    assert policy is not None
    optimizer = policy.optimizer(inner, own)
    out = []
    buffer = 0.0
    for g in gradients:
        before = p.item()
        p.grad = torch.full_like(p, g)
        optimizer.step()
        buffer = momentum * buffer + g
        out.append((before - p.item()) / lr / buffer if buffer else 0.0)
    return out


def test_a_constant_gradient_gives_the_known_sequence() -> None:
    """1, 2, 1.5, 1.6667, 1.6, 1.625 (ratios to the step before, which was enlarged itself)."""
    assert factors([0.3] * 6) == pytest.approx([1, 2, 1.5, 5 / 3, 1.6, 1.625], abs=1e-5)


def test_a_change_of_sign_is_an_honest_step() -> None:
    assert factors([1.0, -1.0, 1.0]) == pytest.approx([1, 1, 1])


def test_factors_stay_within_their_limits() -> None:
    """A fivefold factor at most, never a smaller step."""
    steps = factors([1e-3, 1.0, 50.0, 1e-3, -7.0, -7.0, -0.1])
    assert min(steps) >= 1.0 - 1e-9
    assert max(steps) == pytest.approx(5.0)


def test_factors_do_not_depend_on_the_learning_rate() -> None:
    gradients = [0.5, 0.4, 0.7, 0.9, 0.2]
    assert factors(gradients, lr=0.01) == pytest.approx(factors(gradients, lr=0.5), abs=1e-5)


def test_zero_gradients_stay_zero() -> None:
    assert factors([0.0, 0.0]) == [0.0, 0.0]


def test_compounding_scales_the_momentum_buffer_too() -> None:
    plain = factors([1.0] * 4, momentum=0.9)
    compound = factors([1.0] * 4, momentum=0.9, compounding=True)
    assert plain[:2] == pytest.approx(compound[:2])
    assert compound[2] > plain[2] * 1.2


def trained(steps: int, gamma: float | None, optimizer: str = "sgd") -> Federation:
    stack = small_stack([0, 1])
    policies = {}
    if gamma is not None:
        policy = active(gamma=gamma).policy()
        assert policy is not None
        policies = {"passive1": [(policy, torch.ones(2))]}
    algorithm = registry.algorithms.create("splitnn", {"optimizer": optimizer, "cut": 4})
    fed = Federation.create(stack, [0, 1], policies)
    algorithm.build(fed)
    phase = algorithm.phases(fed)[0]
    for rows in list(fed.batches(phase))[:1] * steps:
        phase.step(rows)
    return fed


def equal(a: Federation, b: Federation, party: str) -> bool:
    one, two = a.state()[party], b.state()[party]
    return all(torch.equal(v, two[m][k]) for m, part in one.items() for k, v in part.items())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gamma_zero_is_an_honest_run_bit_for_bit(optimizer: str) -> None:
    honest, off = trained(4, None, optimizer), trained(4, 0.0, optimizer)
    assert equal(honest, off, "passive1")
    assert equal(honest, off, "active")


def test_only_the_attacker_differs_until_its_embedding_is_used() -> None:
    """L6.8: step 1 equal; after step 2 only the attacker; after step 3 the active party too."""
    assert equal(trained(1, None), trained(1, 1.0), "passive1")
    assert not equal(trained(2, None), trained(2, 1.0), "passive1")
    assert equal(trained(2, None), trained(2, 1.0), "active")
    assert not equal(trained(3, None), trained(3, 1.0), "active")


def test_parameters_are_checked() -> None:
    with pytest.raises(ConfigError, match="at least low"):
        active(low=2.0, high=1.0)
    assert active().policy() is not None
    assert registry.attacks.create("model_completion", {}).policy() is None
