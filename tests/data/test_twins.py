"""One person under two ids: rows that equal another row in everything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vflsec.data.duplicates import count_duplicates
from vflsec.data.source import PartyData, Source
from vflsec.data.table_warnings import find_weaknesses

N = 400


def table(copies: int, values: int = 0, parties: int = 2, missing: bool = False) -> Source:
    """A drawn source whose last `copies` rows are its first ones again; 0 `values`: numbers."""
    g = np.random.default_rng(0)
    x = g.integers(0, values, (N, 6)).astype(float) if values else g.standard_normal((N, 6))
    if missing:
        x[:, 0] = np.nan
        x[1, 1] = -0.0
        x[N - copies + 1, 1] = 0.0
    y = g.integers(0, 2, N)
    if copies:
        x[N - copies :, 1:] = np.where(x[:copies, 1:] == 0, 0.0, x[:copies, 1:])
        x[N - copies :, 0] = x[:copies, 0]
    width = 6 // parties
    made = {
        f"p{k}": PartyData(
            x[:, k * width : (k + 1) * width], np.arange(N),
            tuple(f"c{k}{j}" for j in range(width)), (None,) * width,
        )
        for k in range(parties)
    }  # fmt: skip
    return Source("drawn", made, "p0", y, ("no", "yes"))


@pytest.mark.parametrize(("copies", "found"), [(0, 0), (1, 0), (2, 4), (20, 40), (200, 400)])
def test_equal_rows_are_counted_from_one_in_a_hundred_on(copies: int, found: int) -> None:
    assert count_duplicates(table(copies)) == ((found, N) if found else (0, 0))


def test_gaps_and_signs_of_zero_are_equal() -> None:
    assert count_duplicates(table(20, missing=True)) == (40, N)


@pytest.mark.parametrize("kind", ["float32", "float16", "int64"])
def test_tables_of_a_plug_in_may_hold_other_numbers(kind: str) -> None:
    """An odd number of short ones has no bits of float64."""
    of = table(20, parties=2)
    parties = {name: replace(p, values=(100 * p.values).astype(kind)) for name, p in
               of.parties.items()}  # fmt: skip
    parties["p1"] = replace(parties["p1"], values=parties["p1"].values[:, :2])
    assert count_duplicates(replace(of, parties=parties)) == (40, N)


def test_rows_of_one_group_are_no_twins_of_each_other() -> None:
    source = table(20)
    group = np.arange(N)
    group[N - 20 :] = group[:20]
    assert count_duplicates(replace(source, group=group)) == (0, 0)
    group[N - 10 :] = np.arange(N - 10, N)
    assert count_duplicates(replace(source, group=group)) == (20, N)


def test_tables_of_few_values_have_equal_rows_by_chance() -> None:
    of = table(0, values=3)
    assert len(np.unique(np.hstack([p.values for p in of.parties.values()]), axis=0)) < N
    assert count_duplicates(of) == (0, 0)


def test_parties_in_another_order_and_rows_of_one_alone() -> None:
    source = table(20)
    back = source.parties["p1"]
    other = replace(back, values=back.values[::-1][5:], rows=back.rows[::-1][5:])
    parties = {**source.parties, "p1": other}
    assert count_duplicates(replace(source, parties=parties)) == (
        30,
        N - 5,
    )  # 5 of the copies are elsewhere


def test_init_and_check_tell_them() -> None:
    (said,) = [n for n in find_weaknesses(table(20)) if "two ids" in n]
    assert said.startswith("40 of 400 rows equal another one in every column")
    assert "data.group" in said
    assert not [n for n in find_weaknesses(table(0)) if "two ids" in n]
