"""Whether labels of known rows go with where these stood: exact chances, by enumeration."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from sampled import sampled

from vflsec.inference.batch_order import RARE, bound_chance, compute_chance


def test_the_rarest_order_of_ten_and_ten_is_one_of_all() -> None:
    value, told = np.arange(20.0), np.arange(20) < 10
    assert compute_chance(value, told, together=False) == pytest.approx(2 / comb(20, 10))
    assert compute_chance(-value, told, together=False) == pytest.approx(2 / comb(20, 10))


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


@pytest.mark.parametrize("places", sampled([12, 3, 60]))
def test_only_what_is_usual_is_not_counted_out(places: int) -> None:
    """One epoch of two classes is the mildest limit there is."""
    g = np.random.default_rng(places)
    rare = usual = 0
    for q in (4, 9, 20, 40):
        for _ in range(60):
            told = np.arange(q) % 2 == 0
            value = g.integers(0, places, q) + g.integers(0, 2) * told * places * g.random() * 2
            exact = compute_chance(value, told, together=False)
            found = bound_chance(value, told)
            assert found == exact or (found == 1.0 and exact > 10 * RARE / 3), (q, exact)
            rare, usual = rare + (exact < RARE / 3), usual + (found == 1.0)
    assert rare > 20
    assert usual > 20
