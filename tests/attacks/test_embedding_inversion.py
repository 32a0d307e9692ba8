"""Embedding inversion: a decoder fitted to auxiliary rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attack_views import feature_view, r2, rng

from vflsec import registry
from vflsec.attack import Attack
from vflsec.cell import AttackSpec, CellSpec
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ThreatModelError
from vflsec.measure.controls import feature_controls
from vflsec.testing import small_task


def inversion(**params: object) -> Attack:
    return registry.attacks.create("embedding_inversion", params)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def test_an_invertible_linear_embedding_is_undone() -> None:
    x, own = normal(300, 4), normal(300, 3, seed=1)
    view = feature_view(own, x, x @ normal(4, 6, seed=2), aux=60)
    guess = inversion(variants=("linear",)).infer(view, rng())
    assert r2(guess, x) > 0.999
    assert not set(guess.rows.tolist()) & set(range(60))


def test_the_network_wins_where_the_embedding_bends() -> None:
    x, own = normal(700, 2), normal(700, 1, seed=1)
    z = torch.cat([x**5, torch.tanh(3 * x.flip(1))], 1)
    view = feature_view(own, x, z, aux=300)
    guess = inversion().infer(view, rng())
    assert guess.notes["variant"] == "network"
    assert r2(guess, x) > r2(inversion(variants=("linear",)).infer(view, rng()), x) + 0.02


@pytest.mark.parametrize("variant", ["linear", "network"])
def test_an_unrelated_embedding_gives_nothing(variant: str) -> None:
    x, own = normal(600, 3), normal(600, 2, seed=1)
    view = feature_view(own, x, normal(600, 5, seed=2), aux=200)
    assert r2(inversion(variants=(variant,)).infer(view, rng()), x) < 0.02


def test_controls_are_means_and_regression_on_own_columns() -> None:
    x = normal(400, 2)
    own = torch.cat([x[:, :1] + 0.1 * normal(400, 1, seed=3), normal(400, 1, seed=1)], 1)
    view = feature_view(own, x, normal(400, 2, seed=2), aux=100)
    mean, linear = feature_controls(view)
    assert (mean.name, linear.name) == ("mean", "linear")
    assert r2(mean.guess, x) == pytest.approx(0.0, abs=0.05)
    assert r2(linear.guess, x) == pytest.approx(0.495, abs=0.05)
    assert linear.cv == pytest.approx(0.49, abs=0.06)


def test_without_auxiliary_rows_it_is_refused() -> None:
    view = feature_view(normal(20, 1), normal(20, 1, seed=1), normal(20, 1, seed=2))
    with pytest.raises(ThreatModelError, match="aux_rows"):
        inversion().infer(view, rng())


def test_replicas_in_one_batch_equal_replicas_alone() -> None:
    views = [
        feature_view(normal(50, 2, seed=s), normal(50, 2, seed=s + 5), normal(50, 3, seed=s + 9),
                     aux=20)
        for s in range(2)
    ]  # fmt: skip
    together = inversion(steps=20).infer_many(views, [rng(0), rng(1)])
    for s in range(2):
        alone = inversion(steps=20).infer(views[s], rng(s))
        assert np.allclose(alone.scores, together[s].scores, atol=1e-9)


def test_in_a_cohort_it_beats_its_control_and_names_the_victim() -> None:
    tasks = {0: small_task(0, n=400)}
    cell = CellSpec({"name": "s"}, "splitnn", {"epochs": 4, "cut": 8})
    spec = AttackSpec("embedding_inversion", {}, ("active",), aux_rows=60)
    (result,) = run_cohort([cell], [spec], tasks, device="cpu", main=False)
    (measure,) = result.measures
    assert (measure.target, measure.metric, measure.split) == ("feature", "r2", "train")
    assert measure.n == 240 - 20 - 60
    assert measure.value is not None
    assert measure.value > 0.45
    assert set(measure.controls) == {"mean", "linear"}
    assert measure.controls["linear"]["value"] < 0.1  # type: ignore[operator]
    assert measure.notes["victim"] == "passive1"
    assert measure.adversary == "active"


def test_two_victims_stand_side_by_side_and_one_can_be_named() -> None:
    tasks = {0: small_task(0, n=400, widths=(4, 3, 5))}
    cell = CellSpec({"name": "s"}, "splitnn", {"epochs": 3, "cut": 8})
    specs = [
        AttackSpec("embedding_inversion", {"variants": ("linear",)}, ("active",), aux_rows=80),
        AttackSpec("embedding_inversion", {"variants": ("linear",)}, ("active",), aux_rows=80,
                   victim="passive2"),
    ]  # fmt: skip
    (result,) = run_cohort([cell], specs, tasks, device="cpu", main=False)
    assert [m.notes["victim"] for m in result.measures] == ["passive1+passive2", "passive2"]
    assert all(m.value is not None and m.value > 0.6 for m in result.measures)
