"""The output attack: predictions that are returned are labels that are told."""

from __future__ import annotations

import pytest
import torch
from attack_views import PARTY, make_view, measure, rng
from cohorts import cohort
from scipy.stats import norm

from vflsec.core.view import Table
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task

OUTPUT = AttackSpec("output", {}, ("passive1",))


@pytest.mark.parametrize("classes", [2, 3])
def test_its_figures_are_those_of_the_main_task(classes: int) -> None:
    """With two classes accuracy is left out: an attack decides by a quota, the main task at 1/2."""
    tasks = {0: small_task(0, classes=classes)}
    (result,) = cohort(OUTPUT, tasks, main=True, epochs=5, returns_predictions=True)
    found = {(m.attack, m.metric): m for m in result.measures if m.split == "test"}
    for metric in ("auc", "accuracy")[: classes - 1]:
        assert found["output", metric].value == pytest.approx(found["", metric].value, abs=1e-6)
        assert found["output", metric].n == found["", metric].n
    kinds = {(row.kind, row.receiver) for row in result.ledger}
    assert ("prediction", "passive1") in kinds


def test_it_runs_where_the_main_task_is_left_out() -> None:
    (result,) = cohort(OUTPUT, epochs=2, returns_predictions=True)
    assert {m.attack for m in result.measures} == {"output"}
    assert {m.status for m in result.measures} == {"ok"}


def test_predictions_are_not_sent_unless_asked() -> None:
    off = registry.algorithms.create("splitnn", {})
    on = registry.algorithms.create("splitnn", {"returns_predictions": True})
    assert not any(kind == "prediction" for kind, _, _ in off.sends)
    assert ("prediction", "active", "passive") in on.sends


def test_noise_that_leaves_no_shares_is_read_as_well_as_it_can_be() -> None:
    """Of p +- 0.35 with noise of 1 on each entry the best is AUC Phi(1.4 / 2)."""
    n = 20_000
    y, zero = torch.arange(n) % 2, torch.zeros(n, dtype=torch.int64)
    p = torch.where(y == 1, 0.85, 0.15).double()
    noise = torch.randn(n, 2, generator=rng(), dtype=torch.float64)
    table = Table(torch.stack([1 - p, p], 1) + noise, torch.arange(n), zero, zero)
    view = make_view(y, extra={("received", "prediction", "last", PARTY): table})
    guess = registry.attacks.create("output").infer(view, rng())
    assert measure(guess, y) == pytest.approx(norm.cdf(1.4 / 2), abs=0.01)
