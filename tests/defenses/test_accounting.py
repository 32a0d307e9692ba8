"""Accountants against published figures, closed forms and dp-accounting where it is installed."""

from __future__ import annotations

import math

import pytest

from vflsec.core import accountants
from vflsec.errors import ConfigError


@pytest.mark.parametrize(
    ("noise", "releases", "epsilon"), [(1.0, 1, 4.377), (0.5, 1, 9.997), (4.0, 100, 13.2067)]
)
def test_analytic_gaussian(noise: float, releases: int, epsilon: float) -> None:
    made = accountants.gaussian(noise, releases, 1e-5)
    assert made.epsilon == pytest.approx(epsilon, abs=6e-4)
    # delta at that epsilon, from the definition, with tails of a normal distribution
    from scipy.stats import norm

    m = math.sqrt(releases) / noise
    e = made.epsilon
    delta = norm.cdf(m / 2 - e / m) - math.exp(e) * norm.cdf(-m / 2 - e / m)
    assert delta == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "rdp", "prv"),
    [(1.0, 0.01, 1000, 2.1014, 1.8384), (0.8, 512 / 30000, 2000, 8.4874, 7.6750)],
)
def test_subsampled_gaussian(noise: float, rate: float, steps: int, rdp: float, prv: float) -> None:
    pytest.importorskip("opacus")
    for accountant, epsilon in (("rdp", rdp), ("prv", prv)):
        made = accountants.subsampled_gaussians([(noise, rate, steps)], 1e-5, accountant)
        assert made.epsilon == pytest.approx(epsilon, abs=2e-4)
        assert made.accountant == f"Opacus {accountant.upper()}"


def test_the_central_limit_accountant_is_not_offered() -> None:
    with pytest.raises(ConfigError, match="'prv', 'rdp', got 'gdp'"):
        accountants.subsampled_gaussians([(1.0, 0.01, 1000)], 1e-5, "gdp")


def test_agrees_with_dp_accounting() -> None:
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    for noise, rate, steps in ((1.0, 0.01, 1000), (4.0, 1.0, 100)):
        account = pld.PLDAccountant()
        event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
        account.compose(event, steps)
        mine = accountants.subsampled_gaussians([(noise, rate, steps)], 1e-5).epsilon
        assert mine == pytest.approx(account.get_epsilon(1e-5), rel=0.01)
    account = pld.PLDAccountant()
    account.compose(dp.LaplaceDpEvent(2.0), 30)
    mine = accountants.laplace([0.5], 30, 1e-5).epsilon
    assert account.get_epsilon(1e-5) <= mine + 1e-6
    assert mine <= 1.2 * account.get_epsilon(1e-5)


def test_pure_composition_of_laplace_noise_and_the_renyi_bound_below_it() -> None:
    assert accountants.laplace([0.5, 0.5], 30).epsilon == pytest.approx(30.0)
    few = accountants.laplace([0.5, 0.5], 1, 1e-5)
    assert (few.epsilon, few.delta) == (pytest.approx(1.0), 0.0)
    many = accountants.laplace([0.05, 0.05], 300, 1e-5)
    assert many.epsilon < 0.35 * 30
    assert many.accountant == "Renyi DP of Laplace noise"


def test_epsilon_falls_with_noise_and_grows_with_releases() -> None:
    by_noise = [accountants.gaussian(s, 10, 1e-5).epsilon for s in (0.5, 1, 2, 8, 100)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_time = [accountants.gaussian(2.0, t, 1e-5).epsilon for t in (1, 10, 100, 1000)]
    assert by_time == sorted(by_time)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2])
def test_bad_delta(delta: float) -> None:
    with pytest.raises(ConfigError, match=r"delta must be a number in \(0, 1\)"):
        accountants.gaussian(1.0, 1, delta)


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan])
def test_bad_noise(noise: float) -> None:
    with pytest.raises(ConfigError, match="noise must be a finite number > 0"):
        accountants.gaussian(noise, 1, 1e-5)


def test_what_noise_of_53_bits_never_reaches_is_in_delta() -> None:
    """Normal numbers are made of uniform ones on a grid of 2^-53, so none is beyond 8.572.

    Of two rows at distance 5 (clipped, strength 0.4) one sends beyond that with a chance of
    1.8e-4, the other never: no epsilon goes with delta 1e-5, and 33.1 was claimed.
    """
    from scipy.stats import norm

    from vflsec.core.privacy_usage import RunFacts, Uses
    from vflsec.plugins import registry

    last = math.sqrt(-2 * math.log(2.0**-53))
    for name, hook in (("noise", {"clip": 1.0}), ("embedding_noise", {})):
        for delta in (1e-5, 1e-9, 1e-15):
            params = {**hook, "distribution": "gaussian", "delta": delta}
            policy = registry.defenses.create(name, params)
            for strength in (0.4, 0.5, 0.8, 1.3, 2.0, 8.0):
                for uses in (1, 30):
                    made = policy.guarantee(strength, RunFacts(uses=Uses(counted=uses)))
                    alone = uses * float(norm.sf(last - 2 / strength))
                    assert made.epsilon is None or made.delta >= (delta + alone) / 1.0001
                    assert made.epsilon is not None or alone > delta / 10 or strength < 1
    laplace = registry.defenses.create("embedding_noise", {"distribution": "laplace"})
    none = laplace.guarantee(1 / 15, RunFacts(uses=Uses(counted=1)))  # exceptions of 1.2e-3
    assert none.epsilon is None
    assert "finer than coins and noise" in none.reason
    dpsgd = registry.defenses.create("dpsgd", {})
    assert dpsgd.guarantee(0.2, RunFacts(uses=Uses(counted=1))).epsilon is None  # a distance of 5
    assert dpsgd.guarantee(1.0, RunFacts(uses=Uses(counted=1))).epsilon == pytest.approx(
        4.377, abs=1e-3
    )
