"""A split by groups leaves each row set the rows of each class that figures by class need."""

from __future__ import annotations

import numpy as np
import pytest

from vflsec.data.source import PartyData, Source
from vflsec.data.split import LEAST, row_sets
from vflsec.errors import DataError

PEOPLE, VISITS, SEEDS = 100, 4, 40


def table(rare: int) -> Source:
    """400 rows of 100 people, of whom so many are of class 1."""
    people = np.repeat(np.arange(PEOPLE), VISITS)
    y = (people < rare).astype(np.int64)
    x = np.random.default_rng(0).standard_normal((len(y), 2))
    every = np.arange(len(y))
    a, b = (PartyData(x[:, [j]], every, (n,), (None,)) for j, n in enumerate("ab"))
    return Source("drawn", {"bank": a, "shop": b}, "bank", y, ("no", "yes"), group=people)


def test_groups_are_drawn_again_where_a_row_set_lacks_a_class() -> None:
    """Of 8 of 100 people none is among the 15 % to validate on, in about a quarter of draws."""
    source = table(8)
    for seed in range(SEEDS):
        sets = row_sets(source, seed)
        found = {"test": sets.test, "validation": sets.validation, "train": sets.train}
        for name, rows in found.items():
            assert np.bincount(source.y[rows], minlength=2).min() >= LEAST[name]
        people = [set(source.group[rows]) for rows in found.values()]  # type: ignore[index]
        assert not people[0] & people[1] | people[0] & people[2] | people[1] & people[2]
        assert len(sets.train) == len(row_sets(source, 0).train)


def test_a_class_of_too_few_people_is_an_error() -> None:
    with pytest.raises(DataError, match="class 'yes'"):
        row_sets(table(2), 0)
