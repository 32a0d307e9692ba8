"""Equation solving: linear models give linear equations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, made, rng
from torch import nn

from vflsec.core.guess import Guess
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.errors import ThreatModelError
from vflsec.label import Classes
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.train.views import make_view

solving = partial(made, "equation_solving")


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
    """Five classes, four columns."""
    view, x = linear_world(4, 5)
    guess = solving().infer(view, rng())
    assert float((torch.from_numpy(guess.scores) - x[guess.rows]).abs().max()) < 1e-9
    view, x = linear_world(5, 5)
    guess = solving(equations="embedding").infer(view, rng())
    assert float((torch.from_numpy(guess.scores) - x[guess.rows]).abs().max()) < 1e-9


def test_too_few_equations_give_the_smallest_solution() -> None:
    """It satisfies the equations and is no longer than the truth."""
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
    assert "hidden = []" in solving().applicable(replace(facts, extra={"hidden": (64,)}))
    assert "top = []" in solving().applicable(replace(facts, top=True))


def read_scores(task: Task, aux: int = 20, **params: Any) -> tuple[Guess, Any]:
    """What the active party makes of a regression's scores, and the true columns."""
    algorithm = registry.algorithms.create("vertical_glm", {"epochs": 3, **params})
    wanted = [("active", "received", "score", "last")]
    trained = train(algorithm, Stack.build({0: task}, [0]), [0], wanted=wanted)
    made = {"equations": "score"}
    spec = AttackSpec("equation_solving", made, ("active",), aux_rows=aux, known_rows=0)
    guess = solving(**made).infer(make_view(algorithm, trained.fed, {}, spec, 0), rng())
    return guess, task.x["passive1"][guess.rows].double().numpy()


@pytest.mark.parametrize(("classes", "columns"), [(2, 1), (5, 4), (11, 10)])
def test_scores_of_a_regression_are_solved_exactly(classes: int, columns: int) -> None:
    """As many columns as classes less one: mean squared error below 1e-20; rows in another order
    say nothing."""
    task = small_task(0, n=600, widths=(3, columns))
    y = torch.randint(0, classes, (600,), generator=rng())
    task = replace(task, y=y, label=Classes(classes))
    guess, truth = read_scores(task)
    assert guess.notes["solved"] == columns
    assert ((guess.scores - truth) ** 2).mean() < 1e-20
    mixed = np.random.default_rng(0).permutation(truth)
    assert ((guess.scores - mixed) ** 2).mean() > truth.var()


def test_two_auxiliary_rows_are_enough_for_one_column() -> None:
    """The second shows that the first was right."""
    task = small_task(0, widths=(3, 1))
    assert read_scores(task, aux=2)[0].notes["solved"] == 1


def test_of_more_columns_scores_tell_the_one_direction() -> None:
    """Nothing is solved; what the score is made of is known, and it is little of six columns."""
    task = small_task(0, n=600, widths=(3, 6))
    guess, truth = read_scores(task, aux=60)
    assert guess.notes["solved"] == 0
    gain = 1 - ((guess.scores - truth) ** 2).mean(0) / truth.var(0)
    assert 0.05 < gain.mean() < 0.6


def test_on_shares_no_score_is_sent() -> None:
    with pytest.raises(ThreatModelError, match="score"):
        read_scores(small_task(0), protocol="shares")
