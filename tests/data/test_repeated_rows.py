"""Several rows of one id: refused, or made one as the user says; what is left has its own rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from user_tables import load_one, load_pair, refused, write

from vflsec.cli.draft import Wishes, draft_scenario
from vflsec.data.divide import Division
from vflsec.data.source import Source
from vflsec.data.table_spec import TableSpec
from vflsec.data.table_warnings import find_weaknesses
from vflsec.data.tables import load_tables
from vflsec.errors import ConfigError, DataError

N = 30
VISITS = [(i, k, 10 * i + k, "ab"[k % 2]) for i in range(N) for k in range(1 + i % 3)]


BANK = "id,x,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(N))


def read(folder: Path, shop: str, **how: Any) -> Source:
    return load_pair(folder, BANK, shop, **how)


def visits() -> str:
    return "id,k,spend,kind\n" + "".join(f"{i},{k},{v},{c}\n" for i, k, v, c in VISITS)


def test_equal_rows_become_one(tmp_path: Path) -> None:
    plain = "id,v\n" + "".join(f"{i},{i * i}\n" for i in range(N))
    twice = "id,v\n" + "".join(f"{i},{i * i}\n" * (1 + i % 2) for i in range(N))
    with pytest.raises(DataError):
        read(tmp_path, twice)
    one, other = read(tmp_path, twice, duplicates="first"), read(tmp_path, plain)
    assert one.ids == other.ids
    assert np.array_equal(one.parties["shop"].values, other.parties["shop"].values)
    assert {p: o.rows for p, o in one.facts.tables.overlap.items()} == {"bank": N, "shop": N}


def test_rows_that_differ_are_no_duplicates(tmp_path: Path) -> None:
    # rows 2 (id 0) and 3 (id 1) come before
    with refused(DataError, "row 4", "--aggregate"):
        read(tmp_path, visits(), duplicates="first")


@pytest.mark.parametrize(
    ("way", "of"),
    [("mean", np.mean), ("sum", np.sum), ("min", np.min), ("max", np.max), ("count", len),
     ("first", lambda v: v[0]), ("last", lambda v: v[-1])],
)  # fmt: skip
def test_rows_of_one_id_become_what_was_asked(tmp_path: Path, way: str, of: Any) -> None:
    source = read(tmp_path, visits(), aggregate={"shop.spend": way})
    shop = source.parties["shop"]
    wanted = [of([v for j, _, v, _ in VISITS if j == i]) for i in range(N)]
    assert shop.names == ("spend",)
    assert np.array_equal(shop.values[:, 0], wanted)
    assert source.facts.left_out == {"shop.csv": ["k", "kind"]}
    assert source.facts.tables.overlap[source.active].common == N


def test_one_row_of_an_id_is_put_together_too_and_a_table_without_several_is_left(
    tmp_path: Path,
) -> None:
    single = "id,v,w\n" + "".join(f"{i},{i * i},1\n" for i in range(N))
    counted = read(tmp_path, single, aggregate={"shop.v": "count"}).parties["shop"]
    assert (counted.names, set(counted.values[:, 0])) == (("v",), {1.0})
    plain, asked = read(tmp_path, single), read(tmp_path, single, duplicates="first")
    several = read(tmp_path, single + "3,9,1\n", duplicates="first")
    notes = [source.facts.notes for source in (plain, asked, several)]
    assert notes[0] == notes[1]
    assert len(notes[2]) == len(notes[0]) + 1


def test_missing_values_are_none_of_the_sum(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i},b\n{i},,c\n" for i in range(1, N)) + "0,,b\n"
    source = read(tmp_path, f"id,v,c\n{rows}", aggregate={"v": "mean", "c": "last"})
    values = source.parties["shop"].values
    assert np.isnan(values[:, 0]).sum() == 1
    assert np.nansum(values[:, 0]) == sum(range(1, N))
    assert source.parties["shop"].categories == (None, ("b", "c"))


@pytest.mark.parametrize(
    ("aggregate", "error"),
    [({"kind": "sum"}, DataError), ({"spent": "sum"}, ConfigError), ({"y": "first"}, DataError)],
)
def test_what_cannot_be_put_together_is_refused(
    tmp_path: Path, aggregate: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        read(tmp_path, visits(), aggregate=aggregate)


def test_labels_of_one_id_must_agree(tmp_path: Path) -> None:
    bank = "id,x,y\n" + "".join(f"{i % N},{i},{i // N}\n" for i in range(2 * N))
    shop = "id,v\n" + "".join(f"{i},{i}\n" for i in range(N))
    with refused(DataError, f"row {N + 2}"):
        load_pair(tmp_path, bank, shop, aggregate={"x": "mean"})


def test_one_table_puts_the_columns_of_all_parties_together(tmp_path: Path) -> None:
    rows = "".join(f"{i % N},{i},{2 * i},{i % N % 2}\n" for i in range(2 * N))
    path = write(tmp_path / "all.csv", "id,a,b,y\n" + rows)
    columns, ways = {"active": ["a"], "passive": ["b"]}, {"active.a": "mean", "passive.b": "max"}
    source = load_one(path, columns, id="id", aggregate=ways)
    a, b = (source.parties[p].values[:, 0] for p in ("active", "passive"))
    assert np.array_equal(a, np.arange(N) + N / 2)
    assert np.array_equal(b, 2 * (np.arange(N) + N))


def test_the_column_that_repeats_is_named_by_init(tmp_path: Path) -> None:
    rows = "".join(f"{i % N},{i * i % 5}\n" for i in range(3 * N))
    bank, shop = write(tmp_path / "bank.csv", BANK), write(tmp_path / "shop.csv", "id,v\n" + rows)
    with pytest.raises(ConfigError, match=r"'id' is nearly that, but .*shop.csv has '0' in 3 rows"):
        draft_scenario([bank, shop], Wishes("y"), tmp_path)
    with pytest.raises(DataError, match=r"--duplicates first`.*--aggregate COLUMN=mean"):
        draft_scenario([bank, shop], Wishes("y", ["id"]), tmp_path)
    asked = Wishes("y", ["id"], aggregate=["v=mean"])
    assert draft_scenario([bank, shop], asked, tmp_path).tables.overlap["shop"].common == N


def test_columns_that_aggregate_leaves_out_are_named(tmp_path: Path) -> None:
    wishes = {"spend": "mean", "k": "max"}
    found = [
        read(tmp_path, visits(), aggregate=wishes),
        read(tmp_path, visits(), aggregate=wishes | {"kind": "first"}),
    ]
    assert [s.facts.left_out for s in found] == [{"shop.csv": ["kind"]}, {}]
    said = [[text for text in find_weaknesses(s) if "--aggregate" in text] for s in found]
    assert ["kind" in text for text in said[0]] == [True]
    assert said[1] == []


def test_a_column_that_aggregate_left_out_can_be_dropped_too(tmp_path: Path) -> None:
    """It is one of the table's columns, and no warning need name it; others are none."""
    wishes = {"spend": "mean", "k": "max"}
    plain = read(tmp_path, visits(), aggregate=wishes)
    dropped = read(tmp_path, visits(), aggregate=wishes, drop=["kind"])
    assert plain.parties["shop"].names == dropped.parties["shop"].names == ("spend", "k")
    assert np.array_equal(plain.parties["shop"].values, dropped.parties["shop"].values)
    assert [s.facts.left_out for s in (plain, dropped)] == [{"shop.csv": ["kind"]}, {}]
    assert len(find_weaknesses(dropped)) == len(find_weaknesses(plain)) - 1
    with pytest.raises(DataError):
        read(tmp_path, visits(), aggregate=wishes, drop=["kin"])


def test_a_table_that_is_divided_has_the_columns_that_aggregate_names(tmp_path: Path) -> None:
    rows = [f"{i},{k},{v},{(7 * i + v) % 11},{c},{i % 2}" for i, k, v, c in VISITS]
    path = write(tmp_path / "one.csv", "\n".join(["id,k,spend,age,kind,y", *rows, ""]))
    ways = {"spend": "mean", "age": "mean", "k": "max"}
    spec = TableSpec(label="y", id="id", aggregate=ways, divide=Division(alpha=1.0))  # type: ignore[arg-type]
    for asked in (spec, replace(spec, drop=["kind"])):
        source = load_tables(path, asked)
        assert sorted(c for p in source.parties.values() for c in p.names) == sorted(ways)
        assert len(source.ids) == N
