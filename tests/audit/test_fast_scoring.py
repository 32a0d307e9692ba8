"""The fast ways through joining, ranking and tails equal the plain ones, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_the_book import by_row, called, components, join
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vflsec.audit import intervals
from vflsec.audit import truth_join as fast
from vflsec.core.guess import Guess, Truth
from vflsec.errors import ShapeError


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a, b)
    assert np.asarray(a).tobytes() == (np.asarray(b) + 0.0).astype(np.asarray(a).dtype).tobytes()


def case(seed: int, groups: bool, silent: bool, classes: int, order: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 60))
    ids = np.sort(rng.choice(200, n, replace=False)) if order == "sparse" else np.arange(n)
    y = rng.integers(0, 2, n)
    y[:2] = (0, 1)
    truth = Truth("label", ids, y)
    rows, group = ids.copy(), None
    if groups:
        rows = np.concatenate((ids, rng.choice(ids, n // 2, replace=False)))
        group = np.concatenate((np.zeros(n, int), np.ones(n // 2, int)))
    if order == "shuffled":
        mixed = rng.permutation(len(rows))
        rows, group = rows[mixed], None if group is None else group[mixed]
    shape = (len(rows),) if classes == 0 else (len(rows), 2)
    scores = rng.integers(-3, 4, shape) / 2 if seed % 2 else rng.normal(size=shape)
    abstain = rng.random(len(rows)) < 0.2 if silent else None
    wanted = rng.permutation(ids)[: max(3, n // 2)]
    return Guess("label", rows, scores, group, abstain), truth, wanted


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([0, 2]),
       st.sampled_from(["dense", "sparse", "shuffled"]))  # fmt: skip
def test_joins(seed: int, groups: bool, silent: bool, classes: int, order: str) -> None:
    guess, truth, wanted = case(seed, groups, silent, classes, order)
    found, plain = fast.join(guess, truth, wanted), join(guess, truth, wanted)
    for name in ("rows", "values", "scores", "answered"):
        same(getattr(found, name), plain[name])
    assert len(found.groups) == len(plain["groups"])
    for (at, s), (at2, s2) in zip(found.groups, plain["groups"], strict=True):
        same(at, at2)
        same(s + 0.0, s2)


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_ranks_quotas_and_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 80))
    s = rng.integers(0, 6, n) / 3 if seed % 3 else rng.normal(size=n)
    y = rng.random(n) < 0.4
    y[:2] = (True, False)
    rows = np.sort(rng.choice(1000, n, replace=False))
    same(intervals.midranks(np.sort(s)), stats.rankdata(np.sort(s)))
    same(intervals._components(s, y), components(s, y))
    truth = Truth("label", rows, y.astype(int))
    joined = fast.join(Guess("label", rows, s), truth, rows)
    for count in (0, 1, n // 2, n - 1, n):
        decided = fast.decide(joined, np.array([1 - count / n, count / n]))
        for of in (y, ~y):
            assert decided.called(1, of) == pytest.approx(called(s, of, count))
            assert decided.called(0, of) == pytest.approx(of.sum() - called(s, of, count))
    values = [rng.normal(size=n) for _ in range(3)]
    for r in ([rows], [rows, rows, rows], [rows, rng.permutation(rows), rows[::-1].copy()]):
        summed, repeats = intervals._by_row(r, values[: len(r)])
        plain, again = by_row(r, values[: len(r)])
        same(summed, plain)
        assert repeats == again


@settings(max_examples=200)
@given(st.integers(1, 10**5), st.floats(0, 1), st.floats(0.001, 0.4))
def test_tails_are_those_of_scipy_stats(n: int, share: float, p: float) -> None:
    k = max(1, round(share * n))
    assert intervals.beta_quantile(p, k, n - k + 1) == stats.beta.ppf(p, k, n - k + 1)
    assert intervals.beta_quantile(1 - p, k + 1, n) == stats.beta.ppf(1 - p, k + 1, n)
    assert intervals.normal_quantile(1 - p) == stats.norm.ppf(1 - p)
    tried = np.array([0, 1, k, n, n + 1])
    same(intervals.binomial_tail(tried, n, p), stats.binom.sf(tried - 1, n, p))
    shares = np.array([p, share, 0.5])
    assert intervals.entropy(shares) == stats.entropy(shares)


def test_empty_edges() -> None:
    assert intervals.midranks(np.empty(0)).shape == (0,)
    same(intervals.binomial_tail([0, 1], 0, 0.3), [1.0, 0.0])


@pytest.mark.parametrize("rows", [[3, 1, 1, 2], [0, 1, 1, 2]])
def test_repeated_ids_are_still_refused(rows: list[int]) -> None:
    truth = Truth("label", np.arange(5), np.array([0, 1, 0, 1, 0]))
    with pytest.raises(ShapeError, match="must not repeat"):
        fast.join(Guess("label", rows, np.zeros(4)), truth, [1, 2])


@pytest.mark.parametrize("wanted", [[0, 7], [-1, 2], [5]])
def test_a_row_without_truth_is_still_refused(wanted: list[int]) -> None:
    """Also where places and ids are the same, so that -1 would name the last one."""
    truth = Truth("label", np.arange(5), np.array([0, 1, 0, 1, 0]))
    ids = np.array(sorted({*wanted, *range(8), -1}))
    with pytest.raises(ShapeError, match="the truth must cover every scored row"):
        fast.join(Guess("label", ids, np.zeros(len(ids))), truth, wanted)
    with pytest.raises(ShapeError, match="the guess must cover every scored row"):
        fast.join(Guess("label", np.arange(5), np.zeros(5)), Truth("label", ids, ids % 2), wanted)
