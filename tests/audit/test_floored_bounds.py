"""Bounds beside controls that waver about chance: how often they are above the truth."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from vflsec.audit.controls import CHANCE, Leakage, floor_at_chance

AUDITS = 2000
ALPHAS = (0.05, 0.01, 0.0025)
Draw = Callable[[np.random.Generator, int], np.ndarray]
KINDS: dict[str, Draw] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "skewed": lambda rng, n: 1 - rng.exponential(1, n),
    "falls": lambda rng, n: rng.normal(0, 0.3, n) - 3 * (rng.random(n) < 0.1),
}


def count_wrong(draw: Draw, mean: float, sd: float, n: int) -> dict[float, int]:
    """Audits in which the bound is above the mean advantage, by level."""
    rng, wrong = np.random.default_rng(7), dict.fromkeys(ALPHAS, 0)
    truth = 0.75 - np.clip(mean + sd * draw(rng, 10**6), 0, 1).mean()
    for _ in range(AUDITS):
        control, attack = np.clip(mean + sd * draw(rng, n), 0, 1), rng.normal(0.75, 0.01, n)
        own = {"c": dict(enumerate(control)), CHANCE: dict.fromkeys(range(n), 0.5)}
        gained = {k: {s: attack[s] - x for s, x in of.items()} for k, of in own.items()}
        leak = Leakage.between(gained, own, "c", floor_at_chance(gained))
        assert leak is not None
        for alpha in ALPHAS:
            low = next(a for a in leak.against if a.name == "c").bound("lower", alpha)
            wrong[alpha] += low is not None and low > truth
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_wrong_no_more_often_than_they_say(kind: str, n: int) -> None:
    for mean in (0.52, 0.58, 0.66):
        for sd in (0.1, 0.2):
            wrong = count_wrong(KINDS[kind], mean, sd, n)
            for alpha, most in zip(ALPHAS, (0.055, 0.013, 0.004), strict=True):
                assert wrong[alpha] <= stats.binom.ppf(1 - 1e-4, AUDITS, most), (mean, sd, alpha)
