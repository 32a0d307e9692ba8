"""Whether labels of known rows go with where these stood: exact chances, by enumeration."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from vflsec.inference.batch_order import compute_chance


def test_the_rarest_order_is_one_of_all_in_each_half_of_the_ids() -> None:
    """Ten rows with ids below ten and ten above; of each half five are of the class."""
    value, told, ids = np.arange(20.0), np.arange(20) < 10, np.arange(20) % 10 * 2
    ids[10:] += 1
    assert compute_chance(value, told, ids, together=False) == pytest.approx(2 / comb(10, 5) ** 2)
    assert compute_chance(-value, told, ids, together=False) == pytest.approx(2 / comb(10, 5) ** 2)


def test_an_order_by_ids_says_nothing_of_labels_that_ids_tell() -> None:
    ids = np.arange(20)
    assert compute_chance(ids.astype(float), ids < 10, ids, together=False) == 1
    assert compute_chance((ids // 5).astype(float), ids < 10, ids, together=True) == 1


def test_rows_without_a_label_of_the_class_or_without_any_say_nothing() -> None:
    assert compute_chance(np.arange(5.0), np.zeros(5, bool), together=False) == 1
    assert compute_chance(np.zeros(6), np.arange(6) < 3, together=True) == 1
    assert compute_chance(np.zeros(0), np.zeros(0, bool), together=True) == 1


@pytest.mark.parametrize("together", [True, False])
def test_chances_are_those_of_all_ways_to_deal_labels(together: bool) -> None:
    g = np.random.default_rng(4)
    for _ in range(20):
        value, told = g.integers(0, 4, 9).astype(float), g.permutation(9) < 4

        def figure(at: tuple[int, ...], value: np.ndarray = value) -> float:
            hot = np.isin(np.arange(9), at)
            if together:
                pairs = (value[:, None] == value) & (hot[:, None] == hot)
                return float(pairs.sum())
            ranks = ((value < value[:, None]).sum(1) + (value <= value[:, None]).sum(1)) / 2
            return abs(float(ranks[hot].sum() - 4 * ranks.mean()))

        every = [figure(at) for at in combinations(range(9), 4)]
        seen = figure(tuple(np.flatnonzero(told)))
        expected = np.mean([x >= seen - 1e-9 for x in every])
        assert compute_chance(value, told, together=together) == pytest.approx(expected)
