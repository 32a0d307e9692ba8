"""A share of rows told by embeddings: found where they hold the attribute, the survey where not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attack_views import feature_view, rng
from cohorts import cohort

from vflsec.attacks.property import Property
from vflsec.audit.truth import choose_goal
from vflsec.errors import ThreatModelError
from vflsec.inference.attribute_share import combine_estimates
from vflsec.measure.controls import guess_shares
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task


def errors(noise: float, seeds: int = 30, n: int = 600) -> tuple[float, float]:
    """Mean error of the attack, and of the share among 40 auxiliary rows, with a 30 % attribute."""
    mine, its = [], []
    for seed in range(seeds):
        g = rng(seed)
        has = (torch.rand(n, generator=g) < 0.3).double()
        x = (has * 2 - 1).unsqueeze(1)
        z = has.unsqueeze(1) + noise * torch.randn(n, 3, generator=g, dtype=torch.float64)
        view = feature_view(torch.zeros(n, 1, dtype=torch.float64), x, z, aux=40)
        attack = registry.attacks.create("property", {"column": "v0"})
        guess, (control, *_) = attack.infer(view, rng(1)), guess_shares(view, attack)
        truth = float(has[torch.from_numpy(guess.rows)].mean())
        assert len(np.unique(guess.scores)) == 1
        mine.append(abs(float(guess.scores[0]) - truth))
        its.append(abs(float(control.guess.scores[0]) - truth))
    return float(np.mean(mine)), float(np.mean(its))


def test_an_embedding_that_holds_the_attribute_gives_its_share_away() -> None:
    """Error of 40 rows alone: sqrt(.3 .7 / 40) sqrt(2 / pi) = 0.058; the attack keeps a fifth."""
    mine, its = errors(0.1)
    assert its == pytest.approx(0.058, abs=0.02)
    assert mine < 0.2 * its


def test_null_an_embedding_without_it_is_no_better_than_the_survey() -> None:
    mine, its = errors(100.0)
    assert mine > 0.85 * its
    assert mine < 1.25 * its


def test_the_estimate_by_hand() -> None:
    a = np.array([1.0, 0.0, 1.0, 0.0])
    found, weight, error = combine_estimates(a, a.copy(), np.array([1.0, 0.0, 0.0, 0.0]))
    assert weight == pytest.approx(0.5)  # 1 / (1 + 4 / 4)
    assert found == pytest.approx(0.5 * 0.25 + 0.5 * 0.5)
    assert error == pytest.approx((0.25 * 0.25 / 4 + 0.25 * 3 / 16 / 4) ** 0.5)
    assert combine_estimates(a, np.full(4, 0.5), np.ones(4)) == (0.5, 0.0, 0.25)
    assert combine_estimates(a, 1 - a, np.ones(4)) == (
        0.5,
        0.0,
        0.25,
    )  # it is wrong, so has no weight


def test_one_kind_of_auxiliary_rows_leaves_the_survey() -> None:
    x = torch.ones(60, 1, dtype=torch.float64)
    view = feature_view(torch.zeros(60, 1, dtype=torch.float64), x, x.expand(-1, 3), aux=20)
    guess = Property("v0").infer(view, rng())
    assert set(guess.scores) == {1.0}
    assert guess.notes["lambda"] == 0.0


def test_what_it_needs() -> None:
    x = torch.ones(60, 1, dtype=torch.float64)
    view = feature_view(torch.zeros(60, 1, dtype=torch.float64), x, x.expand(-1, 3), aux=20)
    with pytest.raises(ThreatModelError, match="'v0', got 'age'"):
        Property("age").infer(view, rng())


def test_in_a_cohort_it_is_scored_by_the_error_of_the_share_beside_the_survey() -> None:
    tasks = {0: small_task(0, n=600)}
    spec = AttackSpec("property", {}, ("active",), aux_rows=40)
    (result,) = cohort(spec, tasks, epochs=4, cut=8)
    (one,) = result.measures
    assert (one.metric, one.target, one.status) == ("share_error", "property", "ok")
    goal = choose_goal(Property(), spec, tasks[0])
    share_of = float(goal.truth.values[tasks[0].sets["labelled"].numpy()].mean())
    assert one.chance == pytest.approx(abs(0.5 - share_of))
    assert set(one.controls) == {"sample", "logistic", "labelled, logistic"}
    assert one.value is not None
    assert one.value <= float(one.controls["sample"]["value"] or 1.0)
