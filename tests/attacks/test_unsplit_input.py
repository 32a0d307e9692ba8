"""UnSplit's input part: exact with the model, and without it a fit that says nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, made, r2, rng
from sampled import sampled
from torch import Tensor, nn

from vflsec.core.rng import as_global
from vflsec.core.view import View

unsplit = partial(made, "unsplit_input")


def world(seed: int = 0, n: int = 120, out: int = 6) -> tuple[View, Tensor]:
    """Three columns behind tanh of a linear layer, injective if `out` is 3 or more."""
    x = torch.randn(n, 3, generator=rng(seed), dtype=torch.float64)
    with as_global(rng(seed + 50)):
        bottom = nn.Sequential(nn.Linear(3, out), nn.Tanh()).double()
    own = torch.zeros(n, 1, dtype=torch.float64)
    models = {"active": {"bottom": nn.Identity()}, PARTY: {"bottom": bottom}}
    return feature_view(own, x, bottom(x).detach(), models=models), x


@pytest.mark.slow
def test_with_the_model_an_injective_bottom_is_undone() -> None:
    view, x = world()
    guess = unsplit(weights="granted", rounds=60).infer(view, rng())
    assert r2(guess, x) > 0.999
    assert guess.notes["misfit"] < 1e-3


def test_an_embedding_narrower_than_the_columns_is_not() -> None:
    view, x = world(out=1)
    guess = unsplit(weights="granted", rounds=20).infer(view, rng())
    assert guess.notes["misfit"] < 1e-3
    assert r2(guess, x) < 0.6


@pytest.mark.parametrize("seed", sampled([0, 1, 2]))
def test_null_without_weights_a_fit_says_nothing_of_the_columns(seed: int) -> None:
    """Any invertible pair fits: the residual goes, and the columns are not found."""
    view, x = world(seed)
    large = {"lr": 0.02, "rounds": 10, "input_steps": 30, "model_steps": 30}
    guess = unsplit(**large).infer(view, rng(seed))
    assert guess.notes["misfit"] < 0.05
    assert r2(guess, x) < 0.3


def test_budget_free_weights_are_not_those_of_the_victim() -> None:
    view, _ = world()
    bottom = view.models[PARTY]["bottom"]
    with as_global(rng(7)):
        other = nn.Sequential(nn.Linear(3, 6), nn.Tanh()).double()
    changed = replace(view, models={**view.models, PARTY: {"bottom": other}})
    before = [p.clone() for p in bottom.parameters()]
    guesses = [unsplit(rounds=2).infer(v, rng()) for v in (view, changed)]
    assert np.array_equal(guesses[0].scores, guesses[1].scores)
    assert all(torch.equal(a, b) for a, b in zip(before, bottom.parameters(), strict=True))
    granted = [unsplit(rounds=2, weights="granted").infer(v, rng()) for v in (view, changed)]
    assert not np.array_equal(granted[0].scores, granted[1].scores)
