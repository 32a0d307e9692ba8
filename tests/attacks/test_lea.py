"""Label enumeration: clusters get their names from grants, and from nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from attack_views import PARTY, iso, make_view, measure, rng
from cohorts import cohort
from torch import Tensor, nn

from vflsec.core.attack import Attack
from vflsec.core.view import View
from vflsec.data.prepare import make_task
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec


def lea() -> Attack:
    return registry.attacks.create("lea", {})


def clustered(shares: list[float], d: int = 6, n: int = 1000) -> tuple[Tensor, Tensor, nn.Linear]:
    """First gradients (p - e_y) W of rows whose p is nearly the same, labels with these shares."""
    classes = len(shares)
    cut = (torch.tensor(shares).cumsum(0) * n).round().long()
    y = torch.searchsorted(cut, torch.arange(n), right=True).clamp_max(classes - 1)
    y = y[torch.randperm(n, generator=rng(4))]
    torch.manual_seed(1)
    top = nn.Linear(d, classes)
    p = (0.05 * torch.randn(n, classes, generator=rng(5))).softmax(1)
    g = (p - nn.functional.one_hot(y, classes)) @ top.weight.detach()
    return g, y, top


def granted(view: View, top: nn.Module) -> View:
    """The view with the label party's top model before training, and nothing else."""
    models = {**view.models, "active": {"initial_top": top}}
    own = {**view.models[PARTY], "initial": nn.Identity()}
    return replace(view, models=MappingProxyType({**models, PARTY: own}), prior=None, known=None)


SUM = {"aggregation": "sum", "top": True}


def test_a_granted_start_names_all_clusters() -> None:
    """Five classes with equal shares and no known row: every map but one fits worse."""
    g, y, top = clustered([0.2] * 5)
    view = make_view(y, gradients=g, columns=torch.zeros(len(y), 6), facts=SUM)
    assert measure(lea().infer(granted(view, top), rng()), y, "accuracy") == 1.0
    order = torch.tensor([1, 2, 3, 4, 0])
    turned = nn.Linear(6, 5)
    turned.load_state_dict({"weight": top.weight[order], "bias": top.bias[order]})
    guess = lea().infer(granted(view, turned), rng())
    assert measure(guess, torch.argsort(order)[y], "accuracy") == 1.0  # the map follows the grant


def test_shares_that_differ_name_all_clusters() -> None:
    g, y, _ = clustered([0.5, 0.3, 0.2])
    assert measure(lea().infer(make_view(y, gradients=g), rng()), y, "accuracy") == 1.0


def test_a_known_row_of_all_classes_but_one_names_all_clusters() -> None:
    g, y, _ = clustered([0.2] * 5)
    view = make_view(y, gradients=g, known=4)
    guess = lea().infer(replace(view, prior=None), rng())
    assert measure(guess, y, "accuracy") == 1.0
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())


def test_without_a_grant_it_declines_and_names_what_would_do() -> None:
    g, y, _ = clustered([0.2] * 5)
    view = make_view(y, gradients=g)
    why = lea().declines(view)
    assert "0.000" in why
    assert "known_rows" in why
    with pytest.raises(ThreatModelError, match=re.escape(why[:20])):
        lea().infer(view, rng())
    assert "no shares are granted" in lea().declines(replace(view, prior=None))
    tied, y, _ = clustered([0.4, 0.4, 0.2])
    assert "class 0 from class 1" in lea().declines(make_view(y, gradients=tied))
    assert "class 3 from class 4" in lea().declines(make_view(
        clustered([0.2] * 5)[1], gradients=g, known=3))  # fmt: skip


def test_renamed_classes_and_output_units_leave_every_gradient_as_it_is() -> None:
    """Why it declines: labels and top model permuted together send the same messages."""
    torch.manual_seed(0)
    top = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)).double()
    order = torch.tensor([3, 0, 4, 1, 2])
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)).double()
    other.load_state_dict(top.state_dict())
    with torch.no_grad():
        for name in ("2.weight", "2.bias"):
            renamed = top.get_parameter(name)[torch.argsort(order)]
            other.get_parameter(name).copy_(renamed)
    y = torch.randint(5, (64,), generator=rng())
    slopes = []
    for model, labels in ((top, y), (other, order[y])):
        z = torch.randn(64, 4, generator=rng(1), dtype=torch.float64).requires_grad_()
        loss = nn.functional.cross_entropy(model(z), labels)
        slopes.append(torch.autograd.grad(loss, z)[0])
    assert float((slopes[0] - slopes[1]).abs().max()) < 1e-15


def test_clusters_that_are_not_the_classes_are_not_read() -> None:
    """Gradients of two kinds of rows that have nothing to do with the label; and loud noise."""
    y = (torch.rand(1000, generator=rng(1)) < 0.3).long()
    kind = (torch.rand(1000, generator=rng(2)) < 0.3).float()
    guess = lea().infer(make_view(y, gradients=(kind - 0.5).unsqueeze(1) * torch.ones(1, 4)), rng())
    assert 0.45 < measure(guess, y) < 0.55
    g, y, _ = clustered([0.5, 0.3, 0.2])
    loud = make_view(y, gradients=iso(g, 25.0))
    assert measure(lea().infer(loud, rng()), y, "accuracy") < 0.55


@pytest.mark.parametrize("given", ["rows", "start"])
def test_noise_that_is_drawn_anew_in_each_epoch_averages_out(given: str) -> None:
    g, y, top = clustered([0.2] * 5)

    def right(strengths: list[float]) -> float:
        sent = [iso(g, s, seed=e) if s else g for e, s in enumerate(strengths)]
        view = make_view(y, gradients=sent, columns=torch.zeros(len(y), 6), facts=SUM, known=10)
        view = granted(view, top) if given == "start" else view
        return measure(lea().infer(view, rng()), y, "accuracy")

    assert right([3.0]) < 0.65
    assert right([3.0] * 16) > 0.8
    assert right([9.0] + [0.0] * 9) > 0.99  # a defense of the first epoch alone
    assert right([0.0] + [9.0] * 9) > 0.99  # and of all others


def test_in_an_audit_it_answers_with_a_grant_and_is_not_applicable_without() -> None:
    """Balanced classes of a trained system: known rows, the initial top model, or no answer."""
    size = {"rows": 400, "positive_rate": 0.5, "validation_rows": 100, "test_rows": 100}
    source = registry.datasets.create("control_gaussian", size)
    seeds = (0, 1)
    tasks = {s: make_task(source.load(s), s) for s in seeds}
    passive = (tasks[0].passive[0],)
    grants: dict[str, dict[str, Any]] = {
        "rows": {"known_rows": 4},
        "start": {"known_rows": 0, "peer_model": True},
        "none": {"known_rows": 0},
    }
    for grant, given in grants.items():
        attacks = [AttackSpec("lea", {}, passive, **given)]
        for result in cohort(attacks, tasks, epochs=2, patience=0, top=()):
            (one,) = [m for m in result.measures if m.metric in ("auc", "")]
            if grant == "none":
                assert (one.status, one.value) == ("declined", None)
                assert "Grant known_rows" in one.reason
            else:
                assert one.value is not None
                assert one.value > 0.9, grant
