"""What T releases of a mechanism add up to: the accountants behind every epsilon that is stated.

Exact or upper bounds only. Opacus (PRV or RDP, which is 8 to 18 % looser) is used for subsampled
Gaussians and imported when it is needed; its GDP accountant is a central-limit approximation that
can understate epsilon and is not offered.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from vflsec.core import check
from vflsec.errors import MissingDependencyError

FINEST = 36.0
"""The largest epsilon of one use that is stated: noise of 53 bits knows no chance below 2^-53."""
GRID = 2.0**-24
REACH = 8.4
"""Standard deviations at which normal numbers of 53 bits end, sqrt(106 ln 2) = 8.57, less a bit."""


def beyond_normal(noise: float, releases: int = 1) -> float:
    """The chance that some release with Gaussian noise of `noise` times the sensitivity lies where
    the noise of a neighbour, drawn in 53 bits, never gets: that much more is delta.
    """
    return releases * float(scipy.special.ndtr(1 / noise - REACH))


def widen_delta(delta: float, lost: float) -> float:
    """`delta` with what :func:`beyond_normal` found, if its first four digits change by it."""
    return delta + lost if lost > 1e-4 * delta else delta


def beyond_laplace(shift: float, releases: int = 1) -> float:
    """The same of Laplace noise and a number that moves by `shift` of its scale."""
    return releases * 0.5 * math.exp(min(shift - FINEST, 0.0))


def round_to_grid(value: Tensor, noise: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """`value` + `scale` x `noise`, in units of the noised quantity's bound, on a grid, float64.

    The grid is 2^-24, and for a scale above 1 the smallest power of two above that many of it: a
    finer one would have points that noise of 53 bits reaches from some values alone. The value is
    cut off towards zero, so no norm grows, and the noise is rounded; for a value on
    the grid this is the rounded sum, so what is released is computed from a release with ideal
    noise, and which numbers can come out does not depend on the value. Floating-point sums of
    continuous noise give the value away by their last bits.

    Source: Mironov, "On significance of the least significant bits for differential privacy", CCS
    2012; Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020.
    """
    size = torch.as_tensor(scale, dtype=torch.float64)
    grid = GRID * torch.exp2(torch.ceil(torch.log2(size.clamp_min(1.0))))
    return (torch.trunc(value.double() / grid) + torch.round(size * noise.double() / grid)) * grid


Profile = tuple[tuple[float, float], ...]
"""Pairs of epsilon and delta, each of which holds."""
_BEYOND = (0.1, 0.02, 1e-3)
"""Other deltas of a profile whose every pair takes a sum of its own."""


@dataclass(frozen=True)
class Account:
    """An epsilon, its delta, and who computed it.

    Attributes:
        profile: other pairs that hold.
    """

    epsilon: float
    delta: float
    accountant: str
    profile: Profile = ()

    def widen(self, lost: float) -> Account:
        """The same where every delta is so much more."""
        wide = tuple((e, min(1.0, d + lost)) for e, d in self.profile)
        return replace(self, delta=widen_delta(self.delta, lost), profile=wide)


def bound_hits(profile: Profile, rate: float, rows: int = 1) -> float:
    """The largest share of hits, at this rate of false alarms, of any test of a row's secret.

    1 - f of the trade-off function f that all pairs together leave: at each (epsilon, delta) hits
    are at most e^epsilon rate + delta and 1 - e^-epsilon (1 - rate - delta). For a group of rows
    the bound is applied to itself.

    Source: Dong, Roth, Su, "Gaussian differential privacy", Journal of the Royal Statistical
    Society B 2022, proposition 2.12 and theorem 2.14.
    """
    for _ in range(rows):
        ends = [(math.exp(min(e, 700.0)) * rate + d, 1 - math.exp(-e) * (1 - rate - d))
                for e, d in profile]  # fmt: skip
        rate = min(1.0, *(x for pair in ends for x in pair))
    return rate


def bound_group(profile: Profile, rows: int, delta: float) -> tuple[float, float]:
    """(epsilon, delta) of a group of so many rows: (k e, d (e^(k e) - 1) / (e^e - 1)).

    Of the pairs whose delta stays within `delta` the least, else the one with the least delta.

    Source: Vadhan, "The complexity of differential privacy", 2017, lemma 2.2.
    """
    made = []
    for e, d in profile:
        terms = scipy.special.logsumexp(e * np.arange(rows))
        made.append((rows * e, math.exp(min(0.0, math.log(d) + terms)) if d else 0.0))
    fit = [pair for pair in made if pair[1] <= delta]
    return min(fit) if fit else min(made, key=lambda pair: pair[1])


def check_delta(name: str, delta: Any) -> float:
    """`delta`, if it is a number in (0, 1).

    Raises:
        ConfigError: it is not.
    """
    return check.in_unit(name, delta, low_open=True, high_open=True)


def gaussian(noise: float, releases: int, delta: float) -> Account:
    """Gaussian noise of `noise` times the L2 sensitivity, released `releases` times; exact.

    T Gaussian releases are one whose noise is sqrt(T) smaller; delta(epsilon) is
    Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m) with m = sqrt(T) / noise (Balle and Wang 2018,
    theorem 8).
    """
    check.positive("accountant: noise", noise)
    check.integer("accountant: releases", releases)
    check_delta("accountant: delta", delta)
    from scipy import optimize

    m = math.sqrt(releases) / noise

    def excess(epsilon: float) -> float:
        near = scipy.special.log_ndtr(m / 2 - epsilon / m)
        far = epsilon + scipy.special.log_ndtr(-m / 2 - epsilon / m)
        return float(near + math.log1p(-min(math.exp(min(far - near, 0.0)), 1 - 1e-16)))

    target, epsilon = math.log(delta), 0.0
    if excess(0.0) > target:
        high = m * m / 2 + m * math.sqrt(2 * math.log(1 / delta)) + 1e-9
        epsilon = float(optimize.brentq(lambda e: excess(e) - target, 0.0, high, xtol=1e-12))
    profile = tuple((e, math.exp(excess(e))) for e in np.linspace(0.0, 4 * epsilon, 33).tolist())
    return Account(epsilon, delta, "analytic Gaussian mechanism", profile)


def laplace(shift: float, releases: int, delta: float = 0.0) -> Account:
    """Laplace noise on a number, released `releases` times.

    By the distribution of its privacy loss, whose law is moved to a grid of 1 / 32 of the shift and
    less such that neither chance nor likelihood changes (Doroshenko, Ghazi, Kamath, Kumar,
    Manurangsi 2022, "Connect the dots": never below the truth), tilted to where delta is decided,
    so that its sum over the releases is precise there, and summed by a Fourier transform.

    Args:
        shift: by how much the number may move, in units of the noise scale.
        releases: T; k numbers that move by `shift` each are k times as many.
        delta: 0 gives pure composition, T x shift; so does a delta at which that is within 1 %.
    """
    pure = check.integer("accountant: releases", releases) * check.positive(
        "accountant: shift", shift
    )
    if delta == 0:
        return Account(pure, 0.0, "pure composition")
    check_delta("accountant: delta", delta)
    least = _sum_laplace(shift, releases, delta) if shift <= FINEST else pure
    if least > 0.99 * pure:
        return Account(pure, 0.0, "pure composition")
    others = tuple((_sum_laplace(shift, releases, d), d) for d in _BEYOND)
    told = "privacy loss distribution of Laplace noise"
    return Account(least, delta, told, ((pure, 0.0), *others))


@cache
def _sum_laplace(shift: float, releases: int, delta: float) -> float:
    from scipy import fft, optimize

    points = max(2, min(64, 2**22 // releases))
    grid = shift * np.linspace(-1.0, 1.0, points + 1)
    near = (grid - shift) / 2
    chance = np.exp(near[:-1]) * np.expm1(np.diff(near)) / 2  # of losses between two points
    other = np.exp(-near[1:] - shift) * np.expm1(np.diff(near)) / 2  # the same of the neighbour
    low, high = np.exp(-grid[:-1]), np.exp(-grid[1:])
    left = (other - chance * high) / (low - high)
    law = np.concatenate([left, [0.5]]) + np.concatenate([[math.exp(-shift) / 2], chance - left])

    def cumulant(t: float) -> float:
        return float(scipy.special.logsumexp(t * grid, b=law))

    def bound(t: float) -> float:
        return (releases * cumulant(t) - math.log(delta)) / t

    most = 100 + 100 / shift
    tilt = float(optimize.minimize_scalar(bound, bounds=(1e-3, most), method="bounded").x)
    size = releases * points + 1
    wide = fft.next_fast_len(size, real=True)
    tilted = np.exp(tilt * grid - cumulant(tilt)) * law
    total = fft.irfft(fft.rfft(tilted, wide) ** releases, wide)[:size].clip(1e-15)
    loss = releases * shift * np.linspace(-1.0, 1.0, size)
    total = np.exp(np.minimum(np.log(total) + releases * cumulant(tilt) - tilt * loss, 0.0))
    total, loss = total[loss >= 0], loss[loss >= 0]
    above, beside = (np.cumsum(x[::-1])[::-1] for x in (total, total * np.exp(-loss)))
    near = np.exp(loss[loss < 700])
    within = above[: len(near)] - near * beside[: len(near)] <= delta
    i = int(within.argmax())
    return max(0.0, math.log((above[i] - delta) / beside[i])) if within[i] else math.inf


def subsampled_gaussians(
    history: Sequence[tuple[float, float, int]], delta: float, accountant: str = "prv"
) -> Account:
    """Gaussian noise on Poisson samples, of several kinds one after the other, by Opacus.

    Args:
        history: of each kind (noise multiplier, sampling rate q in (0, 1], number of releases).
        delta: in (0, 1).
        accountant: ``prv`` or ``rdp``; PRV gives the upper end of its numerical error.

    Raises:
        MissingDependencyError: opacus is not installed.
    """
    return _subsampled(tuple(history), delta, accountant)


@cache
def _subsampled(
    history: tuple[tuple[float, float, int], ...], delta: float, accountant: str
) -> Account:
    for noise, rate, steps in history:
        check.positive("accountant: noise", noise)
        check.in_unit("accountant: rate", rate, low_open=True)
        check.integer("accountant: steps", steps)
    check_delta("accountant: delta", delta)
    check.one_of("accountant", accountant, ("prv", "rdp"))
    if all(rate == 1 for _, rate, _ in history):
        spent = sum(steps / noise**2 for noise, _, steps in history)
        return gaussian(1 / math.sqrt(spent), 1, delta)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants import create_accountant
    except ImportError as error:
        raise MissingDependencyError.lacks("DP-SGD", "opacus") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = create_accountant(accountant)
        made.history = [tuple(h) for h in history]
        epsilon = float(made.get_epsilon(delta=delta))
        if accountant == "prv" and epsilon < 1:  # its numerical error is 0.01 unless told
            epsilon = float(made.get_epsilon(delta=delta, eps_error=max(1e-4, 0.01 * epsilon)))
        profile = tuple((float(made.get_epsilon(delta=d)), d) for d in _BEYOND)
    return Account(epsilon, delta, f"Opacus {accountant.upper()}", profile)
