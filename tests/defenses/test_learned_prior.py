"""A prior by row learnt privately: what moves, what it costs, what it finds, and its null."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bench import owner
from sklearn.metrics import roc_auc_score
from torch import Tensor

from vflsec.core.federation import Federation
from vflsec.core.policy import Own
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.core.rng import generator
from vflsec.defenses.learned_prior import LearnedPrior, components, learned, response, statistic
from vflsec.errors import PolicyError
from vflsec.plugins import registry
from vflsec.testing import small_stack

PRIOR = LearnedPrior()


def world(n: int, p: int = 6, tells: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Columns (n, p) and labels (n,) of which the first column tells."""
    g = generator(seed, "prior")
    x = torch.randn(n, p, generator=g, dtype=torch.float64)
    odds = tells * x[:, 0]
    return x, (torch.rand(n, generator=g, dtype=torch.float64) < torch.sigmoid(odds)).long()


def given(x: Tensor, strengths: list[float], classes: int = 2, **rest: Any) -> Own:
    own = owner(PRIOR, strengths, classes=classes, **rest)
    own.context = {"design": lambda r: x}
    return own


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_one_label_moves_the_statistic_by_no_more_than_its_noise_is_made_for(classes: int) -> None:
    """Every replacement of a row's label, for long rows too; the longest reach the bound."""
    x, _ = world(120, p=4)
    x[:10] *= 30
    rows = torch.arange(120)
    y = torch.randint(classes, (120,), generator=generator(1, "y"))
    z, _ = components(x, rows, 1e6, classes)
    moves = 1.0 if classes == 2 else math.sqrt(2.0)
    before, found = statistic(z, rows, y, classes)[0], []
    for i in range(120):
        for c in range(classes):
            other = y.clone()
            other[i] = c
            found.append(float((statistic(z, rows, other, classes)[0] - before).norm()))
    assert max(found) <= moves + 1e-12
    assert max(found) == pytest.approx(moves, abs=1e-5)


def test_the_noise_has_the_density_that_costs_what_is_said() -> None:
    """Its length is a sum of D exponential draws, so the density is exp(-length / unit) alone."""
    own = owner(PRIOR, [1.0] * 3000, seeds=range(3000))
    size = own.rng.laplace((4,), dtype=torch.float64).abs()
    way = own.rng.normal((4, 1), dtype=torch.float64)
    b = way / way.norm(dim=1, keepdim=True) * size.sum(1).reshape(-1, 1, 1) / 0.5
    length = b.squeeze(2).norm(dim=1)
    assert length.mean().item() == pytest.approx(8.0, rel=0.03)  # D / epsilon, D = 4
    assert length.var().item() == pytest.approx(16.0, rel=0.15)  # D / epsilon^2


def test_without_noise_the_prior_is_a_regression_on_columns() -> None:
    """At a huge epsilon and with no row shortened: least squares, cut to shares."""
    x, y = world(400, p=3)
    z, _ = components(x, torch.arange(400), 1e9, 2)
    z = z / z.norm(dim=1, keepdim=True) * 0.05
    draws = torch.ones(8, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    prior, kept = learned(z, torch.arange(400), y, 2, 1e9, *draws)
    straight = z @ (z.T @ y.double())
    assert kept == pytest.approx(1.0)
    assert torch.allclose(prior[:, 1], straight.clamp(0.02, 1.0) / (
        straight.clamp(0.02, 1.0) + (1 - straight).clamp(0.02, 1.0)), atol=1e-5)  # fmt: skip


def test_what_is_spent_never_exceeds_the_share_and_no_label_is_looked_at() -> None:
    x, _ = world(500, p=12)
    rows = torch.arange(500)
    sizes = []
    for most in (1e-4, 0.01, 0.1, 1.0, 100.0):
        z, spent = components(x, rows, most, 2)
        assert spent <= most
        assert (spent > 0) == (z.shape[1] > 1)
        sizes.append(z.shape[1])
        gram = z.T @ z
        assert torch.allclose(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-9)
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 13)


def test_what_own_columns_tell_is_learnt_where_answers_alone_are_too_few() -> None:
    """10,000 rows at epsilon 0.05, eight columns of one factor: AUC of a plane fitted to releases.

    Over 10 seeds; the factor itself reaches 0.86.
    """
    plain, mixed = [], []
    for seed in range(10):
        f, y = world(10_000, p=1, seed=seed)
        noise = torch.randn(10_000, 8, generator=generator(seed, "e"), dtype=torch.float64)
        x = f + 0.5 * noise
        one = torch.cat([torch.ones(10_000, 1, dtype=torch.float64), x], dim=1)

        def auc(target: Tensor, one: Tensor = one, y: Tensor = y) -> float:
            return float(roc_auc_score(y, one @ torch.linalg.lstsq(one, target).solution))

        released = registry.defenses.create("label_dp").labels(
            y.unsqueeze(0), owner(PRIOR, [20.0], seeds=[seed])
        )
        plain.append(auc(released[0].double()))
        own = given(x, [20.0], seeds=[seed])
        mixed.append(auc(LearnedPrior(0.5).labels(y.unsqueeze(0), own)[0][:, 1]))
    assert sum(mixed) / 10 > sum(plain) / 10 + 0.05
    assert sum(mixed) / 10 > 0.75


@pytest.mark.parametrize("columns", [0, 6])
def test_null_columns_that_tell_nothing_leave_the_answers(columns: int) -> None:
    """The shares rank like randomised response at what is left of epsilon: q of 1 / (1 + e^-e)."""
    x, _ = world(20_000, p=max(columns, 1))
    y = torch.randint(2, (20_000,), generator=generator(5, "y"))
    shares = PRIOR.labels(y.unsqueeze(0), given(x[:, :columns], [1.0]))[0]
    _, spent = components(x[:, :columns], torch.arange(20_000), 0.1, 2)
    q = float(response(1.0 - spent, 2)[0, 0])
    assert roc_auc_score(y, shares[:, 1]) == pytest.approx(q, abs=0.015)


def test_off_unknown_alone_and_in_company() -> None:
    x, y = world(300, p=5)
    y[::7] = -1
    own = given(x, [0.0, 0.5])
    own.context["labelled"] = (y >= 0).nonzero().squeeze(1).expand(2, -1)
    out = PRIOR.labels(y.expand(2, -1), own)
    known = y >= 0
    assert torch.equal(out[0].argmax(1)[known], y[known])
    assert set(out[0].unique().tolist()) == {0.0, 1.0}
    assert bool((out[:, ~known] == 0).all())

    def call(own: Own, r: int) -> Tensor:
        own.context = {"design": lambda _: x}
        return PRIOR.labels(y.clamp_min(0).expand(r, -1), own)

    strengths = (0.0, 1.0, 3.0)
    together = call(owner(PRIOR, strengths, seeds=range(3), classes=3), 3)
    for r, s in enumerate(strengths):
        assert torch.equal(call(owner(PRIOR, [s], seeds=[r], classes=3), 1)[0], together[r])


def test_the_federation_hands_it_the_active_party_s_columns_alone() -> None:
    seen: list[Tensor] = []

    class Spy(LearnedPrior):
        def labels(self, y: Tensor, own: Own) -> Tensor:
            seen.append(own.context["design"](1))
            return super().labels(y, own)

    stack = small_stack([0, 3], n=400)
    strengths = torch.tensor([1.0, 1.0], dtype=torch.float64)
    fed = Federation.create(stack, [0, 3], {"active": [(Spy(), strengths)]})
    task = stack.tasks[1]
    assert torch.equal(seen[0], task.schema["active"].design(task.x["active"]))
    assert fed.labels.shape == (2, 400, 2)
    assert bool((fed.labels[0, stack.rows("test")[0]] == 0).all())
    uses = fed.active.bindings[0].own.uses
    assert uses is not None
    assert uses.uses(0).most == 1


def test_its_claim_and_its_limits() -> None:
    made = PRIOR.guarantee(2.0, RunFacts(uses=Uses(1)))
    assert (made.epsilon, made.delta, made.protects, made.releases) == (0.5, 0.0, "label", 1)
    assert "features predict" in made.sentence()
    assert PRIOR.guarantee(2.0, RunFacts()).epsilon is None
    with pytest.raises(PolicyError, match="needs classes"):
        PRIOR.labels(torch.rand(1, 5, 2), owner(PRIOR, [1.0]))
