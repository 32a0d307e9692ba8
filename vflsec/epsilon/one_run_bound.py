"""What right guesses of canaries' coins say of epsilon, and what was found of named noise.

Lower bounds and p-values of a claim, of one training and of several together. Sources: Steinke,
Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023; Fisher (1925) for
p-values of several trainings; Neyman and Pearson (1933) for the power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from vflsec.audit.intervals import binomial_tail, clopper_pearson
from vflsec.core import check

SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)  # of the canaries on which the attacker dares to guess
Looks = tuple[tuple[int, int], ...]
"""Guesses and right ones at each of `SHARES`; at the first all scored canaries are guessed."""


def one_run(
    guesses: int, right: int, *, delta: float = 0.0, canaries: int = 0, confidence: float = 0.95
) -> float:
    """The largest epsilon that so many right guesses refute (Steinke et al. 2023, algorithm 1).

    With V ~ Bin(r, e^eps / (1 + e^eps)), the p-value of (epsilon, delta) is P[V >= v] + 2 m delta
    max_i P[v > V >= v - i] / i; at delta = 0 this is the Clopper-Pearson bound of the success
    probability.

    Args:
        guesses: r, canaries on which a guess was made.
        right: v of them.
        delta: of the claim, in [0, 1).
        canaries: m, all canaries; `guesses` if 0.
        confidence: one-sided.

    Returns:
        0 where nothing is refuted.
    """
    check.integer("canary: guesses", guesses, low=0)
    check.integer("canary: right", right, low=0, high=guesses)
    check.in_unit("canary: confidence", confidence, low_open=True, high_open=True)
    check.in_unit("canary: delta", delta, high_open=True)
    alpha = 1 - confidence
    m = max(canaries, guesses)

    def p_value(epsilon: float) -> float:
        return compute_chance(guesses, right, epsilon, delta, m)

    if delta == 0:
        low = clopper_pearson(right, guesses, confidence, "lower").low if guesses else 0.0
        return math.log(low / (1 - low)) if low > 0.5 else 0.0
    if guesses == 0 or p_value(0.0) >= alpha:
        return 0.0
    low, high = 0.0, 60.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) < alpha else (low, middle)
    return low


def compute_chance(guesses: int, right: int, epsilon: float, delta: float, canaries: int) -> float:
    """Of (epsilon, delta), at so many right guesses; see :func:`one_run`."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binomial_tail(right, guesses, q))
    if delta == 0 or right == 0:
        return tail
    i = np.arange(1, right + 1)
    below = binomial_tail(right - i, guesses, q) - tail
    return tail + 2 * canaries * delta * float((below / i).max())


def best_bound(
    lead: NDArray[np.float64], right: NDArray[np.bool_], delta: float, confidence: float
) -> tuple[float, int, int, Looks]:
    """(epsilon, guesses, right ones, all looks) of guesses (m,), the surest shares of them.

    Args:
        lead: how sure each guess is, by its size.
        right: which are right.
        delta: of the claim.
        confidence: of the bound, corrected for the number of shares (Bonferroni).
    """
    order = np.argsort(-np.abs(lead), kind="stable")
    each = 1 - (1 - confidence) / len(SHARES)
    counts = [max(1, round(share * len(lead))) for share in SHARES]
    looks = tuple((r, int(right[order[:r]].sum())) for r in counts)
    bounds = [
        (one_run(r, v, delta=delta, canaries=len(lead), confidence=each), r, v) for r, v in looks
    ]
    return *max(bounds), looks


def bound_together(looks: Sequence[Looks], delta: float = 0.0, confidence: float = 0.95) -> float:
    """The bound of `bound_epsilon` from several trainings with coins of their own, as one audit.

    Trainings side by side are one mechanism, to which every coin matters in one of them: guesses
    and right ones add up, share by share.
    """
    each = 1 - (1 - confidence) / len(SHARES)
    sums, m = _added(looks)
    return max(one_run(r, v, delta=delta, canaries=m, confidence=each) for r, v in sums)


def compute_p_value(looks: Sequence[Looks], epsilon: float, delta: float = 0.0) -> float:
    """p-value of (epsilon, delta) by guesses of several trainings, see :func:`bound_together`."""
    sums, m = _added(looks)
    return min(1.0, len(sums) * min(compute_chance(r, v, epsilon, delta, m) for r, v in sums))


def find_least(guesses: int, epsilon: float, delta: float, alpha: float) -> float:
    """The largest share of an epsilon's inverse that so many guesses tell from it, 0 if none.

    Where the true epsilon is the claimed one over that share, guesses that are right as often as
    it lets them be refute the claim at `alpha` with a chance of 0.8.
    """
    if epsilon <= 0 or compute_chance(guesses, guesses, epsilon, delta, guesses) > alpha:
        return 0.0
    low, high = 0, guesses  # right ones that do not refute, and that do
    while high - low > 1:
        middle = (low + high) // 2
        refutes = compute_chance(guesses, middle, epsilon, delta, guesses) <= alpha
        low, high = (low, middle) if refutes else (middle, high)
    chance = float(scipy.special.betaincinv(high, guesses - high + 1, 0.8))
    return epsilon / max(epsilon, math.log(chance / (1 - chance))) if chance > 0.5 else 1.0


def _added(looks: Sequence[Looks]) -> tuple[list[tuple[int, int]], int]:
    sums = [tuple(map(sum, zip(*at, strict=True))) for at in zip(*looks, strict=True)]
    return [(r, v) for r, v in sums], sum(of[0][0] for of in looks)


POWER = 0.8


class Fault(StrEnum):
    """In what a mechanism differs from what it says of its noise."""

    LESS = "less_noise"
    SHARED = "shared_noise"
    MISSING = "missing_noise"
    LAW = "another_law"
    REPEATED = "repeated_noise"
    TOO_FAR = "row_moves_too_far"
    COUPLED = "row_moves_others"
    SAMPLING = "no_poisson_batches"


@dataclass(frozen=True)
class Heard:
    """What was found of the noise of one training.

    Attributes:
        numbers: that were noised.
        p: of each fault that was looked for, the chance of such a finding without it.
    """

    numbers: int
    p: Mapping[Fault, float]

    def fields(self) -> dict[str, Any]:
        """As it is stored."""
        return {"numbers": self.numbers, **{str(fault): p for fault, p in self.p.items()}}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Heard:
        """What :meth:`fields` made."""
        return cls(stored["numbers"], {Fault(k): p for k, p in stored.items() if k != "numbers"})


def find_least_noise(numbers: int, alpha: float) -> float:
    """The largest share of the claimed noise that is told from it at `alpha`, with a chance of 0.8.

    Args:
        numbers: that were noised.
        alpha: error of the test.
    """
    least = scipy.special.gammaincinv(numbers / 2, alpha) / scipy.special.gammaincinv(
        numbers / 2, POWER
    )
    return math.sqrt(float(least))


def combine(heard: Sequence[Heard]) -> dict[Fault, float]:
    """p-values of several trainings together (Fisher 1925), each with noise of its own."""
    out = {}
    for fault in dict.fromkeys(f for h in heard for f in h.p):
        p = [max(h.p[fault], 1e-300) for h in heard if fault in h.p]
        out[fault] = float(scipy.special.gammaincc(len(p), -sum(map(math.log, p))))
    return out
