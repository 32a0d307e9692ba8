"""Concordance: the AUC where the truth has two values, Kendall's tau where it has many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scored import score_rows

from vflsec.audit import concordance, metrics


def figures(scores: np.ndarray, y: np.ndarray, metric: str = "concordance"):
    return score_rows(scores, y, metric, prior=[1.0], target="value")[metric]


def by_pairs(s: np.ndarray, y: np.ndarray) -> float:
    right = total = 0.0
    for i in range(len(y)):
        for j in range(i):
            if y[i] != y[j]:
                total += 1
                right += 0.5 + 0.5 * np.sign(s[i] - s[j]) * np.sign(y[i] - y[j])
    return right / total


@pytest.mark.parametrize("ties", [0, 1])
def test_it_is_the_share_of_pairs_ranked_rightly(ties: int) -> None:
    rng = np.random.default_rng(ties)
    y, s = rng.standard_normal((2, 60))
    if ties:
        y, s = np.round(y), np.round(s + y)
    assert figures(s, y).value == pytest.approx(by_pairs(s, y), abs=1e-12)


@pytest.mark.parametrize("held", [1 << 22, 50])
def test_its_interval_is_of_the_rows_own_shares(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, row by row; a tied row without a pair counts half; however many at once."""
    monkeypatch.setattr(concordance, "PAIRS", held)
    rng = np.random.default_rng(4)
    y, s = np.round(rng.standard_normal((2, 80)), 1)
    s = s + y
    own = []
    for i in metrics.shuffled_order(np.arange(80)).argsort():
        there = y != y[i]
        agree = np.sign(s[there] - s[i]) * np.sign(y[there] - y[i])
        own.append(0.5 + agree.mean() / 2 if there.any() else 0.5)
    half = metrics.normal_quantile(0.975) * 2 * float(np.std(own, ddof=1)) / math.sqrt(80)
    found = figures(s, y)
    assert (found.low, found.high) == (found.value - half, found.value + half)


def test_one_pass_over_all_pairs_is_not_a_pass_for_each_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    ranked = concordance._ranked

    def counted(s: np.ndarray, y: np.ndarray, some: np.ndarray) -> np.ndarray:
        calls.append(len(some))
        return ranked(s, y, some)

    monkeypatch.setattr(concordance, "_ranked", counted)
    rng = np.random.default_rng(5)
    figures(rng.standard_normal(400), rng.standard_normal(400))
    assert calls == [400]


def test_for_two_values_it_is_the_auc() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200).astype(float)
    s = y + rng.standard_normal(200)
    u = stats.mannwhitneyu(s[y == 1], s[y == 0]).statistic
    assert figures(s, y).value == pytest.approx(u / ((y == 1).sum() * (y == 0).sum()), abs=1e-12)


def test_a_constant_ranks_nothing_and_a_reversed_order_is_zero() -> None:
    y = np.arange(50.0)
    assert figures(np.zeros(50), y).value == 0.5
    assert figures(-y, y).value == 0.0
    assert figures(y**3, y).value == 1.0
    assert figures(y, np.ones(50)).value is None


def test_its_interval_covers_the_truth() -> None:
    """Normal scores of correlation .5: c = 1/2 + asin(.5)/pi = 2/3."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        y, e = rng.standard_normal((2, 150))
        found = figures(0.5 * y + np.sqrt(0.75) * e, y)
        inside += found.low <= 2 / 3 <= found.high
    assert 180 <= inside <= 199


def test_absolute_error_and_r2() -> None:
    y = np.array([0.0, 1.0, 2.0, 3.0])
    assert figures(y + 0.5, y, "mae").value == 0.5
    assert figures(np.full(4, 1.5), y, "r2").value == 0.0
