"""Intervals against printed vectors, closed forms and simulation."""

import numpy as np
import pytest
from scipy import stats

from vflsec.audit import intervals as iv
from vflsec.errors import ConfigError


def slow_delong(s: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Row by row, from the definition."""
    pos, neg = s[y], s[~y]
    psi = np.array([[(a > b) + 0.5 * (a == b) for b in neg] for a in pos])
    v10, v01 = psi.mean(1), psi.mean(0)
    return psi.mean(), np.sqrt(v10.var(ddof=1) / len(pos) + v01.var(ddof=1) / len(neg))


def test_delong_equals_the_slow_definition_with_ties() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(60) < 0.3
    s = np.round(rng.normal(size=60) + y, 1)
    value, se = slow_delong(s, y)
    found = iv.mean_auc([(np.arange(len(s)), s, y)])[0]
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.se == pytest.approx(se, abs=1e-12)


def test_auc_interval_covers_in_simulation() -> None:
    rng = np.random.default_rng(2)
    truth = stats.norm.cdf(1 / np.sqrt(2))
    hits = 0
    for _ in range(400):
        y = np.arange(80) < 30
        auc, pairs = iv.mean_auc([(np.arange(80), rng.normal(size=80) + y, y)])
        low, high = iv.auc_interval(auc, pairs)
        hits += low <= truth <= high
    assert stats.binom.ppf(1e-3, 400, 0.93) <= hits <= stats.binom.ppf(1 - 1e-3, 400, 0.97)


def test_a_row_in_several_batches_counts_as_one_observation() -> None:
    rng = np.random.default_rng(3)
    y = np.arange(60) < 25
    s = rng.normal(size=60) + y
    once = iv.mean_auc([(np.arange(60), s, y)])[0]
    again = iv.mean_auc([(np.arange(60), s, y)] * 5)[0]
    fresh = iv.mean_auc([(np.arange(60) + 60 * i, s, y) for i in range(5)])[0]
    assert again == pytest.approx(once)
    assert fresh.se == pytest.approx(once.se / np.sqrt(5))


@pytest.mark.parametrize(
    ("n", "two", "one"), [(3, 2.48, 1.69), (5, 1.24, 0.95), (6, 1.05, 0.82), (10, 0.715, 0.58)]
)
def test_t_half_widths(n: int, two: float, one: float) -> None:
    assert iv.t_half_width(n) == pytest.approx(two, abs=6e-3)
    assert iv.t_half_width(n, side="upper") == pytest.approx(one, abs=6e-3)


def test_t_interval_sides_and_one_seed() -> None:
    v = [0.1, 0.2, 0.3, 0.4, 0.5]
    low, high = iv.t_interval(v)
    assert (low + high) / 2 == pytest.approx(0.3)
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 4, 0.3, stats.sem(v)))
    assert iv.t_interval(v, side="lower").high is None
    assert iv.t_interval(v, side="upper").low is None
    assert iv.t_interval(v, side="upper").high < high
    assert iv.t_interval([0.3]) == (None, None)
    assert iv.t_interval([]) == (None, None)


def test_holm_by_hand() -> None:
    assert iv.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert iv.holm([0.9, 0.6]) == pytest.approx([1, 1])


def test_conditional_holm_by_hand() -> None:
    p, kept = iv.conditional_holm([0.01, 0.97, 0.019, 0.99], 0.95)
    assert kept == 2
    assert p == pytest.approx([0.02 / 0.95, 1, 0.02 / 0.95, 1])
    p, kept = iv.conditional_holm([0.019], 0.95)
    assert (list(p), kept) == (pytest.approx([0.02]), 1)
    p, kept = iv.conditional_holm([0.01, 0.97], 1)
    assert (list(p), kept) == (pytest.approx([0.02, 0.97]), 2)
    assert iv.conditional_holm([0.99, 0.98], 0.95)[1] == 0
    with pytest.raises(ConfigError, match="keep"):
        iv.conditional_holm([0.1, 0.2], 0)


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("means", [(0, 0, 0, 0), (0, -5, -5, -5), (0, 0, -1, -1), (0, 0, 0, -0.3)])
def test_conditional_holm_accuses_no_more_than_its_level(
    means: tuple[float, ...], shared: float
) -> None:
    """20000 audits of 5 seeds; four attacks at or below the limit, dependent by what they share."""
    rng = np.random.default_rng(7)
    own, common = rng.normal(size=(20_000, 5, 4)), rng.normal(size=(20_000, 5, 1))
    x = np.sqrt(1 - shared) * own + np.sqrt(shared) * common + np.array(means)
    t = np.sqrt(5) * x.mean(1) / x.std(1, ddof=1)
    p = stats.t.sf(t, 4)
    kept = (p <= 0.95).sum(1)
    accused = p.min(1) < 0.05 * 0.95 / np.maximum(kept, 1)
    assert accused.mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 20_000)
    for row, yes in zip(p[:300], accused, strict=False):
        assert (iv.conditional_holm(row, 0.95)[0].min() < 0.05) == yes
