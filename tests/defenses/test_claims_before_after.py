"""Claims that were false, each as it is now: what gave the secret away must not any more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bench import make, message, owner
from broken_claims import epsilon_from_rates
from sampled import sampled

from vflsec.core import accountants
from vflsec.core.privacy_usage import Batches, RunFacts, Uses
from vflsec.data.split import stratified_order
from vflsec.plugins import registry


def told_apart(plus: torch.Tensor, minus: torch.Tensor) -> float:
    """Lower bound at 99 % of epsilon from an event (n,) under two worlds."""
    counts = [int(t.sum()) for t in (plus, minus)]
    return epsilon_from_rates(counts[0], len(plus), counts[1], len(minus), confidence=0.99)


@pytest.mark.parametrize("epsilon", sampled([0.1, 1.0]))
def test_ppdl_clips_before_its_noise(epsilon: float) -> None:
    """One entry a thousand limits large: its sign came through whatever the noise (2.02 at 1)."""
    policy, n = make("ppdl", share=1.0), 4000
    signs = []
    for x in (1.0, -1.0):
        own = owner(policy, [1 / epsilon] * n, seeds=range(n))
        sent = policy.outgoing(message(torch.full((n, 1, 1), x, dtype=torch.float64)), own)
        signs.append(sent.flatten() > 0)
        if x > 0:
            assert sent.abs().max().item() <= policy.limit * (1 + 1e-9)
    assert told_apart(*signs) < epsilon
    # as published: the noise has scale 2 c S / e2 = 18 limits / epsilon, the entry 1000 limits
    noise = torch.distributions.Laplace(0.0, 2 * 2e-3 / (2 * epsilon / 9)).sample((n,))
    broken = [(x + noise) > 0 for x in (1.0, -1.0)]
    assert told_apart(*broken) > 2 * epsilon


def test_alibi_releases_numbers_of_one_grid_whatever_the_label() -> None:
    """Sums of float32 noise and 1 or 0 have different last bits; those of a grid have none."""
    policy = make("alibi")
    for y in (0, 1):
        own = owner(policy, [1.0])
        out = policy.labels(torch.full((1, 4000), y), own)[0]
        steps = out / accountants.GRID
        assert torch.equal(steps, steps.round())
    u = torch.rand(4000, generator=torch.Generator().manual_seed(0)) - 0.5
    noise = -u.sign() * torch.log((1 - 2 * u.abs()).clamp_min(1e-38)) * 2
    possible = ((noise + 1) - 1) == noise  # what an observer of 1 + noise can tell from a 0
    assert float(possible.double().mean()) < 0.8


def test_coins_are_finer_than_float32_and_an_epsilon_beyond_them_is_not_claimed() -> None:
    for name in ("label_dp", "rr_prior", "lp_mst"):
        policy = make(name)
        own = owner(policy, [1 / 20.0], dtype=torch.float32)
        seen = []
        uniform = own.rng.uniform
        own.rng.uniform = lambda *a, u=uniform, s=seen, **k: s.append(u(*a, **k)) or s[-1]  # type: ignore[method-assign]
        policy.labels(torch.arange(500).unsqueeze(0) % 2, own)
        coins = seen[-1]
        assert coins.dtype == torch.float64
        assert not torch.equal(coins, coins.float().double())
        assert policy.guarantee(1 / 30, RunFacts(uses=Uses(1))).epsilon == pytest.approx(30)
        assert policy.guarantee(1 / 40, RunFacts(uses=Uses(1))).epsilon is None
    assert 1 - float(1 / (1 + math.exp(-30))) > 0  # float64 knows the chance of a flip


def test_rr_prior_buys_its_prior() -> None:
    """26 positives of 100 never released a one, 27 released 28 or more: one label, told surely."""
    policy, n, strength = make("rr_prior"), 1500, 1.0
    none = []
    for positives in (26, 27):
        y = (torch.arange(100) < positives).long().expand(n, -1)
        own = owner(policy, [strength] * n, seeds=range(n))
        none.append(policy.labels(y, own).sum(1) == 0)
    assert told_apart(*none) < 1 / strength
    assert told_apart(~none[0], ~none[1]) < 1 / strength
    assert 0.05 < float(none[0].double().mean()) < 0.95  # the event that gave it away does happen
    given = make("rr_prior", prior=[0.6, 0.4])
    assert given.spent == 1.0
    assert "not of these labels" in given.guarantee(1.0, RunFacts(uses=Uses(1))).given
    assert make("rr_prior", share=0.2).spent == pytest.approx(0.8)


def test_rr_prior_spends_no_more_than_epsilon_in_all() -> None:
    """Counts at share x epsilon, answers at the rest: ratios of both multiply to e^epsilon."""
    from vflsec.defenses.rr_prior import matrix

    policy, epsilon = make("rr_prior", share=0.25), 2.0
    m = matrix(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), policy.spent * epsilon)
    kept = m[:, (m > 0).all(0)]
    worst = (kept.unsqueeze(1) / kept.unsqueeze(0)).log().max().item()
    counts = 2 / (2 / (policy.share * epsilon))  # L1 change of counts over their noise scale
    assert worst + counts <= epsilon + 1e-9


def test_laplace_noise_may_use_the_renyi_bound_at_its_delta() -> None:
    found = make("noise", clip=1.0).guarantee(40.0, RunFacts(uses=Uses(300)))
    assert found.epsilon is not None
    assert found.epsilon < 0.6 * 300 * 2 / 40
    assert found.delta == 1e-5


@pytest.mark.parametrize("order", [1.0, 2.0])
def test_the_grid_never_lengthens_a_row(order: float) -> None:
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    on = accountants.round_to_grid(x, torch.zeros_like(x))
    assert bool((on.norm(p=order, dim=1) <= x.norm(p=order, dim=1)).all())
    assert (on - x).abs().max().item() <= accountants.GRID


def test_a_stratified_split_tells_the_last_label() -> None:
    """With all other labels known, the counts of a split say which label fits."""
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.3).astype(np.int64)

    def ones(labels: np.ndarray) -> int:
        """Of class 1 among the first 100 rows of any stratified order."""
        return int(labels[stratified_order(labels, np.random.default_rng(1))[:100]].sum())

    test = stratified_order(y, np.random.default_rng(7))[:100]
    told = right = 0
    for row in test:
        fits = []
        for guess in (0, 1):
            labels = y.copy()
            labels[row] = guess
            fits.append(int(labels[test].sum()) == ones(labels))
        told += sum(fits) == 1
        right += sum(fits) == 1 and fits[y[row]]
    assert told == right >= 90


def test_every_claim_of_labels_is_given_the_split_and_of_one_training() -> None:
    for name, entry in registry.defenses.entries().items():
        policy = make(name, clip=1.0) if name == "noise" else make(name)
        found = policy.guarantee(1.0, RunFacts(classes=2, uses=Uses(1)))
        if found.epsilon is not None and found.protects == "label":
            assert "stratified by label" in found.given, name
            assert "further trainings" in found.leaves, entry.name
        elif found.epsilon is not None:
            assert "columns" in found.given, name


def test_amplification_is_for_who_does_not_see_the_batches() -> None:
    made = make("dpsgd", accountant="rdp")
    sampled = Uses(3, batches=(Batches("train", 0.1, 30, 1, 0.0),))
    assert "or batches" in made.guarantee(2.0, RunFacts(uses=sampled)).provided
    assert "batches" not in make("dpsgd").guarantee(2.0, RunFacts(uses=Uses(3))).provided
