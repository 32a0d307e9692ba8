"""Equation solving: linear models give linear equations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attack_views import PARTY, feature_view, rng
from torch import nn

from vflsec.core.attack import Attack
from vflsec.core.view import View
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec
from vflsec.testing import small_task


def solving(**params: object) -> Attack:
    return registry.attacks.create("equation_solving", params)


def linear_world(columns: int, classes: int) -> tuple[View, torch.Tensor]:
    x = torch.randn(50, columns, generator=rng(), dtype=torch.float64)
    own = torch.randn(50, 3, generator=rng(1), dtype=torch.float64)
    torch.manual_seed(0)
    models = {
        "active": {"bottom": nn.Linear(3, classes).double()},
        PARTY: {"bottom": nn.Sequential(nn.Identity(), nn.Linear(columns, classes)).double()},
    }
    z = models[PARTY]["bottom"](x).detach()
    facts = {"classes": classes, "top": False, "aggregation": "sum"}
    return feature_view(own, x, z, models=models, facts=facts), x


def test_it_is_exact_with_as_many_equations_as_columns() -> None:
    """T48: five classes, four columns."""
    view, x = linear_world(4, 5)
    guess = solving().infer(view, rng())
    assert float((torch.from_numpy(guess.scores) - x[guess.rows]).abs().max()) < 1e-9
    view, x = linear_world(5, 5)
    guess = solving(equations="embedding").infer(view, rng())
    assert float((torch.from_numpy(guess.scores) - x[guess.rows]).abs().max()) < 1e-9


def test_too_few_equations_give_the_smallest_solution() -> None:
    """T49: it satisfies the equations and is no longer than the truth."""
    view, x = linear_world(8, 3)
    found = torch.from_numpy(solving(equations="embedding").infer(view, rng()).scores)
    layer = view.models[PARTY]["bottom"][1]  # type: ignore[index]
    with torch.no_grad():
        assert layer(found) == pytest.approx(layer(x), abs=1e-9)
    assert bool((found.norm(dim=1) <= x.norm(dim=1) + 1e-9).all())


def test_where_it_has_no_meaning_it_says_so() -> None:
    view, _ = linear_world(4, 5)
    facts = replace(view.facts, extra={"hidden": ()})
    assert solving().applicable(facts) == ""
    assert "hidden layers (64,)" in solving().applicable(replace(facts, extra={"hidden": (64,)}))
    assert "trainable top" in solving().applicable(replace(facts, top=True))
    with pytest.raises(ThreatModelError, match="peer_model"):
        solving().infer(replace(view, models={"active": view.models["active"]}), rng())


def test_in_a_cohort_of_linear_models_it_is_exact() -> None:
    tasks = {0: small_task(0, widths=(4, 3), classes=3)}
    cell = CellSpec(
        {"name": "s"}, "splitnn",
        {"epochs": 1, "hidden": (), "top": (), "linear_top": False, "aggregation": "sum",
         "batch_size": 1000, "lr": 1e-12},
        dtype="float64",
    )  # fmt: skip
    spec = AttackSpec("equation_solving", {"equations": "embedding"}, ("active",), peer_model=True)
    (result,) = run_cohort([cell], [spec], tasks, device="cpu", main=False)
    (measure,) = result.measures
    assert measure.value == pytest.approx(1.0, abs=1e-9)
