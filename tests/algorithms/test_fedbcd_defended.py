"""FedBCD under defenses that look at single rows, and behind encrypted layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, largest_difference, trained

from vflsec.algorithms.fedbcd import FedBCD
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_stack, small_task

SMALL: dict[str, Any] = {"hidden": (5,), "cut": 3, "batch_size": 32, "epochs": 1, "patience": 0}


def bound(party: str, strength: float, **params: Any) -> dict[str, Any]:
    policy = registry.defenses.create("dpsgd", params)
    return {party: [(policy, torch.full((2,), strength, dtype=torch.float64))]}


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("party", ["active", "passive1"])
def test_without_noise_and_with_room_dpsgd_changes_nothing(party: str, order: str) -> None:
    stack = small_stack([0, 1])
    algorithm = FedBCD(**SMALL, order=order)
    plain = trained(algorithm, stack, [0, 1]).state()
    free = trained(algorithm, stack, [0, 1], bound(party, 1e-14, clip_norm=1e4)).state()
    assert largest_difference(plain, free) < 1e-8


@pytest.mark.parametrize("party", ["active", "passive1"])
def test_every_one_of_the_q_updates_is_clipped(party: str) -> None:
    """Plain SGD: a mean of rows of length <= C moves the weights by at most rate x C an update."""
    clip, rate, q = 1e-3, 0.5, 3
    stack = small_stack([0, 0])
    settings = SMALL | {"optimizer": "sgd", "lr": rate, "local_updates": q}
    algorithm = FedBCD(**settings)
    moved = []
    for strength in (0.0, 1e-14):
        fed = federation(algorithm, stack, [0, 0], bound(party, strength, clip_norm=clip))
        before = [p.detach().clone() for p in fed.parties[party].parameters()]
        algorithm.step(fed, stack.rows("labelled")[:, :32])
        after = fed.parties[party].parameters()
        gone = [(a.detach() - b)[0].flatten() for a, b in zip(after, before, strict=True)]
        moved.append(float(torch.cat(gone).norm()))
    momentum = 1 + 1.9 + 2.71  # of the three steps, at 0.9
    assert moved[0] > rate * clip * momentum
    assert 0.5 * rate * clip < moved[1] <= rate * clip * momentum * (1 + 1e-6)


@pytest.mark.slow
def test_the_accountant_counts_every_local_update() -> None:
    tasks = {0: small_task(0)}
    made = {}
    for q in (1, None):  # None leaves the default of five
        params = {"hidden": [5], "cut": 3, "epochs": 2} | (
            {} if q is None else {"local_updates": q}
        )
        defense = DefenseSpec("dpsgd", party="all", strength=2.0)
        cell = CellSpec({"name": "small"}, "fedbcd", params, (defense,))
        (result,) = run_cohort([cell], [], tasks, device="cpu")
        made[q] = result.guarantees[0]
    assert (made[1].releases, made[None].releases) == (2, 10)
    assert made[None].epsilon is not None
    assert made[1].epsilon is not None
    assert made[None].epsilon > 1.5 * made[1].epsilon


def test_one_local_update_under_dpsgd_is_splitnn_under_dpsgd() -> None:
    from vflsec.algorithms.splitnn import SplitNN

    stack = small_stack([0, 1])
    both = [
        trained(algorithm, stack, [0, 1], bound("passive1", 1.0)).state()
        for algorithm in (SplitNN(**SMALL), FedBCD(**SMALL, local_updates=1))
    ]
    assert_same(*both)
