"""Randomised response: its matrix, its frequencies, its memory, its correction, and its limits."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from bench import owner
from scipy import stats
from worlds import small_task, stack

from vflsec.core.federation import Federation
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.defenses.label_dp import keep_probability
from vflsec.plugins import registry

DP = registry.defenses.create("label_dp")


def matrix(epsilon: float, k: int) -> torch.Tensor:
    q = float(keep_probability(epsilon, k))
    return torch.full((k, k), (1 - q) / (k - 1), dtype=torch.float64).fill_diagonal_(q)


@pytest.mark.parametrize(
    ("k", "keep"),
    [(2, (0.6225, 0.7311, 0.8808, 0.9820, 0.9997)), (10, (0.1548, 0.2320, 0.4509, 0.8585, 0.9970))],
)
def test_keep_probability(k: int, keep: tuple[float, ...]) -> None:
    found = [float(keep_probability(e, k)) for e in (0.5, 1, 2, 4, 8)]
    assert found == pytest.approx(keep, abs=5e-5)


@pytest.mark.parametrize(("k", "epsilon"), list(product((2, 3, 10), (0.1, 1.0, 8.0))))
def test_epsilon_of_the_enumerated_matrix_is_the_claimed_one(k: int, epsilon: float) -> None:
    """max over (y, y', o) of ln P(o | y) / P(o | y'): exactly epsilon, and mass 1."""
    m = matrix(epsilon, k)
    assert torch.allclose(m.sum(1), torch.ones(k).double())
    ratio = (m.unsqueeze(1) / m.unsqueeze(0)).log().max()
    assert ratio.item() == pytest.approx(epsilon, rel=1e-9)
    assert DP.guarantee(1 / epsilon, RunFacts(uses=Uses(1))).epsilon == pytest.approx(epsilon)


@pytest.mark.parametrize(("k", "epsilon"), [(2, 1.0), (10, 2.0)])
def test_frequencies(k: int, epsilon: float) -> None:
    """Kept and each wrong class: exact binomial tests that fail a right mechanism once in 10^6."""
    n = 20_000
    own = owner(DP, [1 / epsilon], classes=k)
    out = DP.labels(torch.full((1, n), k - 1), own)[0]
    m = matrix(epsilon, k)[k - 1]
    counts = torch.bincount(out, minlength=k)
    for c in range(k):
        p = stats.binomtest(int(counts[c]), n, float(m[c])).pvalue
        assert p > 1e-6 / k, f"class {c}: {counts[c]} of {n}"


def test_strength_zero_changes_no_label_and_unknown_labels_stay_unknown() -> None:
    y = torch.tensor([[0, 1, -1, 1, 0, -1]]).expand(2, -1)
    out = DP.labels(y, owner(DP, [0.0, 5.0]))
    assert torch.equal(out[0], y[0])
    assert out[1, [2, 5]].tolist() == [-1, -1]
    assert set(out[1, [0, 1, 3, 4]].tolist()) <= {0, 1}


def test_memoised_and_validation_labels_are_randomised_too() -> None:
    """Labels are drawn once, at the start: every later read gives the same; test rows hidden."""
    world = stack([0, 1], n=400)
    fed = Federation.create(
        world, [0, 1], {"active": [(DP, torch.tensor([0.0, 2.0], dtype=torch.float64))]}
    )
    rows = world.rows("labelled")
    assert torch.equal(fed.targets(rows), fed.targets(rows))
    truth = world.labels()
    for name in ("labelled", "validation"):
        ids = world.rows(name)
        wrong = (fed.targets(ids) != truth.gather(1, ids)).double().mean(1)
        assert wrong[0] == 0
        assert 0.2 < wrong[1] < 0.55  # 1 - q = .378 at epsilon .5
    assert bool((fed.targets(world.rows("test")) == -1).all())


def test_a_forward_corrected_loss_is_smallest_at_the_clean_posterior() -> None:
    """E over noisy labels of the corrected loss is least where softmax(logits) = P(y | x)."""
    dp = registry.defenses.create("label_dp", {"correct": True})
    clean = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    own = owner(dp, [1.0], classes=3)
    dp.labels(torch.zeros(1, 4, dtype=torch.int64), own)
    noisy = clean @ matrix(1.0, 3)

    def risk(logits: torch.Tensor) -> torch.Tensor:
        y = torch.arange(3).unsqueeze(0)
        loss = dp.loss(logits.expand(1, 3, 3), y, own)
        assert loss is not None
        return (noisy * loss[0]).sum()

    at = clean.log().requires_grad_()
    (slope,) = torch.autograd.grad(risk(at), at)
    assert slope.abs().max().item() < 1e-9
    least = risk(clean.log()).item()
    for other in torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double():
        assert risk(other).item() >= least - 1e-12


def test_the_corrected_loss_is_plain_cross_entropy_where_it_is_off() -> None:
    dp = registry.defenses.create("label_dp", {"correct": True})
    own = owner(dp, [0.0, 1.0], classes=3)
    y = dp.labels(torch.tensor([[0, 1, 2], [0, 1, 2]]), own)
    logits = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)).double()
    plain = -torch.log_softmax(logits, -1).gather(2, y.unsqueeze(2)).squeeze(2)
    made = dp.loss(logits, y, own)
    assert torch.equal(made[0], plain[0])
    assert not torch.allclose(made[1], plain[1])


def test_guarantee_states_release_and_limit() -> None:
    made = DP.guarantee(1.0, RunFacts(epochs=30, uses=Uses(1)))
    assert (made.protects, made.epsilon, made.delta, made.releases) == ("label", 1.0, 0.0, 1)
    assert "0.462" in made.sentence()  # tanh(1/2), Wu et al. 2023
    assert DP.guarantee(0.0, RunFacts()).epsilon is None


def test_does_not_stop_inference_of_what_features_predict() -> None:
    """A linear fit to labels at epsilon 1 still recovers most labels the features give away."""
    task = small_task(0, n=2000, signal=4.0)
    own = owner(DP, [1.0])
    noisy = DP.labels(task.y.unsqueeze(0), own)[0]
    x = task.x["passive1"].double()
    x = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    fit = torch.linalg.lstsq(x, 2.0 * noisy.double().unsqueeze(1) - 1).solution
    right = ((x @ fit).squeeze(1) > 0).long() == task.y
    assert (noisy == task.y).double().mean().item() < 0.77
    assert right.double().mean().item() > 0.85
