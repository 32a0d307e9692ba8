"""Accountants against published figures, closed forms and what dp-accounting gives."""

from __future__ import annotations

import math

import pytest
import torch
from sampled import sampled

from vflsec.core import accountants
from vflsec.errors import ConfigError
from vflsec.runtime.typed_values import write_plain
from vflsec.specs import RATES, Claim


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
    sampled([(1.0, 0.01, 1000, 2.1014, 1.8384), (0.8, 512 / 30000, 2000, 8.4874, 7.6750)]),
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


SETTINGS = [  # law, shift or noise, sampling rate, releases, delta, epsilon by dp-accounting 0.6.0
    ("laplace", 1, 1.0, 2, 1e-05, 1.999960),
    ("laplace", 1, 1.0, 10, 1e-05, 9.989962),
    ("laplace", 0.5, 1.0, 4, 1e-05, 1.999840),
    ("laplace", 0.5, 1.0, 30, 1e-05, 12.204892),
    ("laplace", 0.5, 1.0, 60, 1e-05, 19.857595),
    ("laplace", 0.25, 1.0, 100, 1e-05, 12.222415),
    ("laplace", 0.1, 1.0, 40, 1e-05, 2.451174),
    ("laplace", 0.1, 1.0, 300, 1e-05, 8.159989),
    ("laplace", 0.05, 1.0, 600, 1e-05, 5.474011),
    ("laplace", 0.02, 1.0, 2000, 1e-05, 3.830752),
    ("laplace", 2, 1.0, 3, 1e-05, 5.999920),
    ("laplace", 2, 1.0, 10, 1e-05, 19.989962),
    ("laplace", 0.25, 1.0, 100, 1e-07, 14.295875),
    ("laplace", 0.1, 1.0, 300, 0.001, 6.126241),
    ("laplace", 1, 1.0, 10, 1e-09, 9.999999),
    ("poisson", 1, 0.01, 1000, 1e-05, 1.828244),
    ("poisson", 0.8, 0.017066666666666667, 2000, 1e-05, 7.664524),
    ("poisson", 1, 0.1, 18, 1e-05, 3.459322),
    ("poisson", 2, 0.1, 18, 1e-05, 1.026190),
    ("poisson", 2, 0.1, 90, 1e-05, 2.215010),
    ("poisson", 4, 0.2, 50, 1e-05, 1.452945),
    ("poisson", 0.6, 0.02, 300, 1e-05, 8.393130),
    ("poisson", 1.5, 0.005, 5000, 1e-06, 1.157183),
    ("poisson", 8, 0.1, 200, 1e-05, 0.645983),
    ("poisson", 1.41421356, 0.1067, 27, 1e-05, 2.262670),
    ("poisson", 1.0, 0.25, 12, 1e-05, 6.447119),
    ("poisson", 3, 0.5, 20, 0.0001, 2.902416),
    ("poisson", 20, 0.1, 100, 1e-05, 0.161392),
    ("poisson", 1.1, 0.004266666666666667, 14063, 1e-05, 2.381779),
    ("gaussian", 1, 1.0, 1, 1e-05, 4.377178),
    ("gaussian", 0.5, 1.0, 1, 1e-05, 9.997256),
    ("gaussian", 4, 1.0, 100, 1e-05, 13.206712),
    ("gaussian", 2, 1.0, 3, 1e-05, 3.708635),
    ("gaussian", 10, 1.0, 20, 1e-06, 1.994527),
    ("gaussian", 1, 1.0, 1, 0.001, 3.138671),
]


WITHIN = {"laplace": 1.1e-3, "gaussian": 1e-6, "poisson": 0.012}
ALWAYS = {("poisson", 2, 0.1, 18), ("poisson", 20, 0.1, 100)}


@pytest.mark.parametrize(
    ("law", "of", "rate", "releases", "delta", "epsilon"),
    [
        pytest.param(*s, marks=() if s[0] != "poisson" or s[:4] in ALWAYS else pytest.mark.slow)
        for s in SETTINGS
    ],
)
def test_never_below_dp_accounting_and_within_its_precision(
    law: str, of: float, rate: float, releases: int, delta: float, epsilon: float
) -> None:
    if law == "laplace":
        made = accountants.laplace(of, releases, delta)
    elif law == "gaussian":
        made = accountants.gaussian(of, releases, delta)
    else:
        pytest.importorskip("opacus")
        made = accountants.subsampled_gaussians([(of, rate, releases)], delta)
    assert 1 - 2e-6 <= made.epsilon / epsilon <= 1 + WITHIN[law]
    for other, at in made.profile if law == "laplace" else ():
        pure = (of * releases, 0.0)
        assert (other, at) == (
            pure if at == 0 else (accountants.laplace(of, releases, at).epsilon, at)
        )


def test_laplace_noise_has_pure_composition_and_less_at_a_delta() -> None:
    assert accountants.laplace(0.5, 60).epsilon == pytest.approx(30.0)
    few = accountants.laplace(0.5, 2, 1e-5)
    assert (few.epsilon, few.delta) == (pytest.approx(1.0), 0.0)
    many = accountants.laplace(0.05, 600, 1e-5)
    assert (many.epsilon < 0.19 * 30, many.delta) == (True, 1e-5)
    assert accountants.laplace(1e-3, 10, 0.5).epsilon == 0.0


@pytest.mark.parametrize(
    ("shift", "releases"), sampled([(3.2e-4, 10_000), (2e-4, 30_000), (1e-4, 100_000)])
)
def test_many_small_laplace_releases(shift: float, releases: int) -> None:
    assert accountants.laplace(shift, releases, 1e-5).epsilon < 0.2


def test_a_single_laplace_release_is_the_closed_form() -> None:
    """delta(epsilon) = 1 - exp((epsilon - shift) / 2)."""
    for delta in (1e-3, 0.05, 0.2):
        made = accountants.laplace(1.0, 1, delta)
        exact = 1 + 2 * math.log1p(-delta)
        assert exact - 1e-9 <= made.epsilon <= max(exact * 1.001, 1.0)


def test_epsilon_falls_with_noise_and_grows_with_releases() -> None:
    by_noise = [accountants.gaussian(s, 10, 1e-5).epsilon for s in (0.5, 1, 2, 8, 100)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_time = [accountants.gaussian(2.0, t, 1e-5).epsilon for t in (1, 10, 100, 1000)]
    assert by_time == sorted(by_time)


def test_what_lies_beyond_noise_of_53_bits_by_hand() -> None:
    from scipy.stats import norm

    for noise, releases in ((0.4, 1), (2.0, 30)):
        assert accountants.beyond_normal(noise, releases) == pytest.approx(
            releases * norm.sf(8.4 - 1 / noise), rel=1e-9, abs=0
        )
    assert accountants.beyond_normal(2.0) == accountants.beyond_normal(2.0, 1)
    assert accountants.beyond_laplace(1.0, 3) == pytest.approx(1.5 * math.exp(-35), abs=0)
    assert accountants.beyond_laplace(50.0) == 0.5
    assert accountants.widen_delta(1e-5, 1e-9) == 1e-5  # the fourth digit stays
    assert accountants.widen_delta(1e-5, 2e-9) == pytest.approx(1.0002e-5, rel=1e-9)
    account = accountants.Account(1.0, 1e-5, "x", ((0.5, 0.25), (2.0, 1.0)))
    wide = account.widen(0.1)
    assert (wide.epsilon, wide.delta) == (1.0, 0.1 + 1e-5)
    assert wide.profile == ((0.5, 0.35), (2.0, 1.0))


@pytest.mark.parametrize(("scale", "step"), [(0.5, 1), (1.0, 1), (1.5, 2), (2.0, 2), (3.0, 4)])
def test_numbers_are_cut_and_noise_is_rounded_to_a_grid(scale: float, step: int) -> None:
    """In units of 2^-24; a scale above 1 needs a coarser one, of the next power of two."""
    grid = step * 2.0**-24
    value = torch.tensor([1.7, -1.7, 0.0, 5.0], dtype=torch.float64) * grid
    noise = torch.tensor([0.6, 0.6, -2.4, 0.0], dtype=torch.float64) * grid / scale
    made = accountants.round_to_grid(value, noise, scale) / grid
    assert made.tolist() == [2.0, 0.0, -2.0, 5.0]
    if scale == 1.0:
        assert torch.equal(made * grid, accountants.round_to_grid(value, noise))


def test_the_corners_of_bounds_on_hits_and_groups() -> None:
    assert accountants.bound_hits(((900.0, 0.0),), 1e-3) == pytest.approx(1.0)
    assert accountants.bound_hits(((0.0, 0.25),), 0.5) == 0.75
    assert accountants.bound_hits(((0.0, 0.25),), 0.5, 3) == 1.0
    by_hand = 1 - math.exp(-2.0) * (1 - 0.4 - 0.01)  # less than e^2 0.4
    assert accountants.bound_hits(((2.0, 0.01),), 0.4) == pytest.approx(by_hand)
    pairs = ((0.5, 1e-3), (1.0, 1e-6), (2.0, 0.0))
    assert accountants.bound_group(pairs, 1, 1.1e-3) == (0.5, pytest.approx(1e-3))
    assert accountants.bound_group(pairs, 1, 1e-4) == (1.0, pytest.approx(1e-6))
    assert accountants.bound_group(pairs, 2, 0.0) == (4.0, 0.0)
    assert accountants.bound_group(pairs[:2], 1, 0.0) == (1.0, pytest.approx(1e-6))


@pytest.mark.slow
def test_noise_without_sampling_is_the_gaussian_mechanism() -> None:
    """1 / sigma^2 adds up: 3 / 2^2 + 2 / 1^2 is one release at 1 / sqrt(2.75)."""
    made = accountants.subsampled_gaussians([(2.0, 1.0, 3), (1.0, 1.0, 2)], 1e-5)
    assert made == accountants.gaussian(2.75**-0.5, 1, 1e-5)
    assert len(made.profile) == 33
    assert (made.profile[0][0], made.profile[-1][0]) == (0.0, pytest.approx(4 * made.epsilon))
    within = dict(made.profile)[made.profile[8][0]]
    assert (made.profile[8][0], within) == (pytest.approx(made.epsilon), pytest.approx(1e-5))
    pytest.importorskip("opacus")
    mixed = accountants.subsampled_gaussians([(2.0, 1.0, 3), (2.0, 0.5, 1)], 1e-5, "rdp")
    assert mixed.accountant == "Opacus RDP"
    assert [d for _, d in mixed.profile] == [0.1, 0.02, 1e-3]
    again = accountants.subsampled_gaussians([(2.0, 1.0, 3), (2.0, 0.5, 1)], 0.02, "rdp")
    assert again.epsilon == pytest.approx(mixed.profile[1][0])


def test_little_noise_on_a_large_delta_needs_no_epsilon() -> None:
    made = accountants.gaussian(100.0, 1, 0.1)
    assert (made.epsilon, made.delta) == (0.0, 0.1)
    assert made.profile[0] == (0.0, pytest.approx(3.9894e-3, rel=1e-4))


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(0.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, 0)]
)
def test_bad_history(noise: float, rate: float, steps: int) -> None:
    with pytest.raises(ConfigError):
        accountants.subsampled_gaussians([(noise, rate, steps)], 1e-5)


def test_bad_laplace() -> None:
    for shift, releases, delta in ((0.0, 1, 0.0), (1.0, 0, 0.0), (1.0, 1, 1.0), (1.0, 1, -1.0)):
        with pytest.raises(ConfigError):
            accountants.laplace(shift, releases, delta)
    assert accountants.laplace(40.0, 2, 1e-5) == accountants.laplace(40.0, 2)


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


@pytest.mark.parametrize(("noise", "rows"), [(2.0, 1), (0.7, 1), (2.0, 3), (5.0, 4)])
def test_the_trade_off_of_a_gaussian_is_that_of_its_closed_form(noise: float, rows: int) -> None:
    """Hits are Phi(Phi^-1(a) + k / noise) for a group of k rows (Dong et al. 2022): never less."""
    from scipy.stats import norm

    made = accountants.gaussian(noise, 1, 1e-5)
    pairs = ((made.epsilon, made.delta), *made.profile)
    for rate in RATES:
        truth = norm.cdf(norm.ppf(rate) + rows / noise)
        assert truth - 1e-12 <= accountants.bound_hits(pairs, rate, rows) <= 1.06 * truth


def test_the_trade_off_of_randomised_response_is_exact_at_its_corner() -> None:
    """Keeping a label with chance k: at 1 - k false alarms k hits, and e^(2 epsilon) for two."""
    for epsilon in (0.3, 1.0, 4.0):
        keep = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert accountants.bound_hits(((epsilon, 0.0),), 1 - keep) == pytest.approx(keep)
        assert accountants.bound_hits(((epsilon, 0.0),), 1e-6, 2) == pytest.approx(
            1e-6 * math.exp(2 * epsilon)
        )
    assert accountants.bound_hits(((0.0, 0.0),), 0.05) == pytest.approx(0.05)


def test_a_group_of_rows_has_the_epsilon_of_all_of_them() -> None:
    epsilon, delta = accountants.bound_group(((1.0, 1e-6),), 3, 1e-6)
    assert (epsilon, delta) == (3.0, pytest.approx(1e-6 * (math.exp(3) - 1) / (math.e - 1)))
    assert accountants.bound_group(((0.5, 0.0),), 4, 0.0) == (2.0, 0.0)
    made = accountants.gaussian(2.0, 1, 1e-5)
    epsilon, delta = accountants.bound_group(((made.epsilon, 1e-5), *made.profile), 3, 1e-5)
    assert accountants.gaussian(2 / 3, 1, 1e-5).epsilon <= epsilon < 9
    assert delta <= 1e-5
    assert accountants.bound_group(((800.0, 1e-6),), 2, 0.0)[1] == 1.0


@pytest.mark.parametrize(("group", "said"), [(1, ""), (3, "Of up to 3 rows of one group together")])
def test_a_claim_counts_the_rows_of_one_person(group: int, said: str) -> None:
    from vflsec.core.privacy_usage import RunFacts, Uses
    from vflsec.plugins import registry
    from vflsec.train.mechanism_counts import check_guarantee

    policy = registry.defenses.create("noise", {"clip": 1.0, "distribution": "gaussian"})
    facts = RunFacts(labelled=100, group=group, uses=Uses(counted=1))
    made = check_guarantee(policy, 4.0, facts)
    claim = made.state()
    assert ("rows of one group together" in claim.says) == bool(said)
    assert said in claim.says
    hits = claim.hits_by_rows
    assert list(hits) == sorted({1, group})
    assert all(a <= b for a, b in zip(hits[1], hits[group], strict=True))
    assert "profile" not in write_plain(claim)
    assert Claim().hits_by_rows == {}
