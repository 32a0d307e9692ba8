"""Ids by party, what is said of every column, and classes that are merged, left out or cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from user_tables import load_one, load_pair, refused, write

from vflsec.data.label_leakage import count_runs, find_telling_columns
from vflsec.data.table_facts import Overlap
from vflsec.data.table_spec import TableSpec
from vflsec.data.table_warnings import list_warnings
from vflsec.data.tables import load_tables
from vflsec.errors import DataError

# Ids that are called otherwise in each table


def pair(folder: Path) -> dict[str, Path]:
    bank = "".join(f"c{i};{i % 5};{i % 2}\n" for i in range(40))
    shop = "".join(f"c{i}\t{i % 3}\n" for i in range(30, 60))
    return {
        "bank": write(folder / "bank.csv", "customer_id;x;y\n" + bank),
        "shop": write(folder / "shop.csv", "Customer ID\tv\n" + shop),
    }


IDS = {"bank": "customer_id", "shop": "Customer ID"}


def test_ids_by_party_join(tmp_path: Path) -> None:
    source = load_tables(pair(tmp_path), TableSpec(id=IDS, label="y"))
    assert source.facts.tables.overlap == {
        "bank": Overlap(rows=40, common=10, labelled=10, only_here=30),
        "shop": Overlap(rows=30, common=10, labelled=10, only_here=20),
    }
    assert source.parties["bank"].names == ("x",)
    assert source.parties["shop"].names == ("v",)
    said = " ".join(list_warnings(source))
    assert "shop.csv is read as separated by tabs." in said
    assert "10 rows are held by all parties" in said
    assert "bank 30 of 40, shop 20 of 30" in said


COPIES = {
    "other words": lambda y, g: np.where(y, "p", "n"),
    "a few wrong": lambda y, g: np.where(np.arange(len(y)) < 2, 1 - y, y),
    "a number": lambda y, g: -1.0 * y + g.normal(size=len(y)) * 1e-3,
    "whether there is one": lambda y, g: np.where(y, g.integers(0, 9, len(y)).astype(str), ""),
    "when it was closed": lambda y, g: [f"20{20 + v}-01-{1 + i % 28}" for i, v in enumerate(y)],
    "a card number": lambda y, g: [f"{'AB'[v]}{i:04d}" for i, v in enumerate(y)],
}


@pytest.mark.parametrize("kind", [*COPIES, "none"])
def test_a_column_that_tells_the_label_alone_is_said(kind: str, tmp_path: Path) -> None:
    """A copy of the label at another party: nothing is left to leak, and audits passed unwarned."""
    g = np.random.default_rng(0)
    y = g.integers(0, 2, 300)
    weak = y + g.normal(size=300)  # AUC 0.76: a feature as any other
    bank = {"id": np.arange(300), "x": g.normal(size=300), "y": y}
    shop = {"id": np.arange(300), "weak": weak} | (
        {} if kind == "none" else {"told": COPIES[kind](y, g)}
    )
    source = load_pair(tmp_path, bank, shop)
    said = [n for n in list_warnings(source) if "the label alone" in n]
    if kind == "none":
        assert not said
        return
    (one,) = said
    assert re.match(r"told \(AUC (1\.000|0\.99\d)\) of shop reveals the label alone", one)
    assert "no leak to shop can be found" in one


def test_of_several_labels_the_one_that_is_told_is_named(tmp_path: Path) -> None:
    """A copy of one label leaves nothing to be found of that one, and all of the others."""
    g = np.random.default_rng(0)
    flu, cold = g.integers(0, 2, 300), g.integers(0, 2, 300)
    table = {"x": g.normal(size=300), "told": 3 * cold, "flu": flu, "cold": cold}
    source = load_one(
        write(tmp_path / "t.csv", table), {"a": ["x"], "b": ["told"]},
        label=["flu", "cold"], task="multilabel", active="a",
    )  # fmt: skip
    (one,) = (n for n in list_warnings(source) if "alone" in n)
    assert one.startswith("told (AUC 1.000) of b reveals cold alone: a copy of it")
    assert "no leak of cold to b can be found" in one


def test_chance_is_not_told(tmp_path: Path) -> None:
    """Many columns, few rows, three classes, one of them rare: none tells anything."""
    g = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], [90, 90, 12])
    table = {f"c{i}": g.normal(size=192) for i in range(300)} | {"y": y}
    half = {"a": [f"c{i}" for i in range(150)], "b": [f"c{i}" for i in range(150, 300)]}
    source = load_one(write(tmp_path / "t.csv", table), half, active="a")
    assert not find_telling_columns(source, {})


@pytest.mark.parametrize(
    ("one", "other"),
    [("Yes", "yes"), ("1", "1.0"), ("01", "1"), ("cafe\u0301", "caf\u00e9"), ("yes\u200b", "yes")],
)
def test_classes_that_differ_in_spelling_are_said(tmp_path: Path, one: str, other: str) -> None:
    one, other = sorted([one, other])
    rows = "".join(f"{i},{i % 7},{('no', one, other)[i % 3]}\n" for i in range(60))
    path = write(tmp_path / "t.csv", "x,z,y\n" + rows)
    source = load_one(path, {"a": ["x"], "b": ["z"]}, active="a")
    (said,) = (n for n in list_warnings(source) if "spelling" in n)
    assert said.startswith(f"classes {one!r}, {other!r} differ in spelling only")


@pytest.mark.parametrize(
    ("ids", "parts"),
    [
        ({"bank": "customer_id"}, ["'shop'", 'shop = "COLUMN"']),
        (IDS | {"shp": "x"}, ["got 'shp'", "Did you mean 'shop'"]),
        (IDS | {"shop": "Customer"}, ["shop.csv", "id column", "'Customer'", "'Customer ID'"]),
        ("customer_id", ["shop.csv", "id column", "'customer_id'", "'Customer ID'"]),
        (IDS | {"bank": "y"}, ["different columns", "'y' twice"]),
    ],
)
def test_ids_by_party_that_are_wrong(
    tmp_path: Path, ids: str | dict[str, str], parts: list[str]
) -> None:
    with refused(DataError, *parts):
        load_tables(pair(tmp_path), TableSpec(id=ids, label="y"))


def test_one_table_has_one_id_column(tmp_path: Path) -> None:
    rows = "".join(f"{i},1,2,{i % 2}\n" for i in range(9))
    path = write(tmp_path / "t.csv", "id,x,z,y\n" + rows)
    with pytest.raises(DataError, match="id must be one text with `file`"):
        load_one(path, {"a": ["x"], "b": ["z"]}, id={"a": "id"})


# What is in them


def test_columns_are_told(tmp_path: Path) -> None:
    n = 60
    path = write(tmp_path / "t.csv", {
        "id": range(n), "amount": np.linspace(0, 1, n),
        "since": pd.date_range("2020-01-01", periods=n).strftime("%Y-%m-%d"),
        "note": [f"note {i}" for i in range(n)], "zip": [f"0{i % 9}" for i in range(n)],
        "job": ["cook", "nurse", None] * 20, "old": 1, "y": np.arange(n) % 3,
    })  # fmt: skip
    columns = {"a": ["amount", "since", "note"], "b": ["zip", "job"]}
    source = load_one(path, columns, id="id", drop=["old"])
    (table,) = source.facts.tables.tables
    assert (table.file, table.rows, table.read_as) == ("t.csv", n, "")
    found = {c.name: (c.party, c.role, c.kind, c.distinct, c.missing) for c in table.columns}
    assert found == {
        "id": ("", "id", "text", n, 0),
        "amount": ("a", "feature", "number", n, 0),
        "since": ("a", "feature", "date", n, 0),
        "note": ("a", "feature", "category", n, 0),
        "zip": ("b", "feature", "number", 9, 0),
        "job": ("b", "feature", "category", 2, 20),
        "old": ("", "dropped", "text", 1, 0),
        "y": ("a", "label", "3 classes", 3, 0),
    }
    warned = {c.name: c.warning for c in table.columns if c.warning}
    assert set(warned) == {"note", "zip"}
    assert "60 different texts in 60 rows" in warned["note"]
    assert "begin with 0" in warned["zip"]
    quiet = load_one(path, columns, id="id", categorical=["zip", "note"])
    assert quiet.facts.notes == []


def test_numbers_that_parquet_types_as_text_are_told(tmp_path: Path) -> None:
    table = {"x": ["1", "2"] * 20, "z": range(40), "y": [0, 1] * 20}
    path, columns = write(tmp_path / "t.parquet", table), {"a": ["x"], "b": ["z"]}
    note = load_one(path, columns).facts.notes[0]
    assert "'x' is read as category, but has numbers written as text" in note
    assert load_one(path, columns, numeric=["x"]).parties["a"].categories == (None,)


# Classes


CLASSES = "x,z,y\n" + "".join(
    f"{i},{i % 7},{label}\n" for i, label in enumerate(["a"] * 30 + ["b"] * 20 + ["c"] * 2 + ["d"])
)


def classes(tmp_path: Path, text: str = CLASSES, **options: object) -> tuple[tuple[str, ...], list]:
    path = write(tmp_path / "t.csv", text)
    source = load_one(path, {"a": ["x"], "b": ["z"]}, **options)
    return source.class_names, np.bincount(source.y + 1).tolist()


def test_classes_are_merged_dropped_and_cut(tmp_path: Path) -> None:
    assert classes(tmp_path) == (("a", "b", "c", "d"), [0, 30, 20, 2, 1])
    assert classes(tmp_path, merge_classes={"rest": ["c", "d"]}) == (("a", "b", "rest"),
                                                                     [0, 30, 20, 3])  # fmt: skip
    assert classes(tmp_path, drop_classes=["c", "d"]) == (("a", "b"), [3, 30, 20])
    assert classes(tmp_path, merge_classes={"b": ["b", "c", "d"]}) == (("a", "b"), [0, 30, 23])
    quantity = "x,z,y\n" + "".join(f"{i},1,{i / 10}\n" for i in range(40)) + "1,1,\n"
    assert classes(tmp_path, quantity, label_edges=[1, 2.5]) == (
        ("< 1", "1 to < 2.5", ">= 2.5"), [1, 10, 15, 15],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"drop_classes": ["e"]}, "drop_classes"),
        ({"merge_classes": {"r": ["c"]}, "drop_classes": ["c"]}, "'c' twice"),
        ({"drop_classes": ["a", "b", "c"]}, "at least two classes, got only 'd'"),
        ({"drop_classes": ["a", "b", "c", "d"]}, "at least two classes"),
        ({"label_edges": [1.0]}, "must hold finite numbers (label_edges cut it), got 'a' in row 2"),
        ({"label_edges": [2.0, 1.0]}, "label_edges must rise, got"),
    ],
)
def test_changes_of_classes_that_make_no_sense(
    tmp_path: Path, options: dict[str, object], text: str
) -> None:
    with refused(DataError, text):
        classes(tmp_path, **options)


def test_an_edge_that_leaves_a_class_empty(tmp_path: Path) -> None:
    text = "x,z,y\n" + "".join(f"{i},1,{i / 10}\n" for i in range(40))
    with pytest.raises(DataError, match=r"none in '>= 9' of 0 to 3\.9"):
        classes(tmp_path, text, label_edges=[9])


# Ids and orders of rows that tell the label without any message


def told_of(folder: Path, ids: list[str], y: np.ndarray, order: np.ndarray) -> str:
    """What is said of a bank with labels and a shop whose table stands in `order`."""
    g = np.random.default_rng(1)
    bank = pd.DataFrame({"id": ids, "x": g.normal(size=len(y)), "y": y})
    shop = pd.DataFrame({"id": ids, "v": g.normal(size=len(y))}).iloc[order]
    return " ".join(list_warnings(load_pair(folder, bank, shop)))


SAID_OF_IDS = "Sorted by id, rows of one class of the label stand together"
SAID_OF_ROWS = "Rows of one class of the label stand together in shop.csv"


@pytest.mark.parametrize(
    "make",
    [
        lambda y, i: f"{'AB'[y]}{i:05d}",
        lambda y, i: f"{i:05d}-{'AB'[y]}",
        lambda y, i: str(1_000_000 * y + i),
        lambda y, i: str(10 ** (3 + y) + i),
    ],
)
def test_ids_that_tell_the_label_are_said(tmp_path: Path, make: Callable[[int, int], str]) -> None:
    """Every attack of such an audit may end with nothing, and all parties know all labels."""
    g = np.random.default_rng(0)
    y = (g.random(400) < 0.3).astype(int)
    said = told_of(tmp_path, [make(v, i) for i, v in enumerate(y)], y, g.permutation(400))
    assert SAID_OF_IDS in said
    assert SAID_OF_ROWS not in said


def test_a_table_in_the_order_of_the_labels_is_said(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    y = g.integers(0, 3, 400)
    ids = [f"c{i}" for i in g.permutation(400)]
    almost = np.argsort(np.where(g.random(400) < 0.01, 2 - y, y), kind="stable")
    assert SAID_OF_ROWS in told_of(tmp_path, ids, y, almost)
    rare = (np.arange(400) < 15).astype(int)
    assert SAID_OF_ROWS in told_of(tmp_path, ids, rare, np.arange(400))


def test_orders_that_tell_nothing_are_not_said(tmp_path: Path) -> None:
    """Two hundred tables of labels in random order, and ids in the order of time."""
    g = np.random.default_rng(0)
    for _ in range(200):
        y = (g.random(120) < g.choice([0.1, 0.5])).astype(int)
        found, chance = count_runs(y)
        assert found > 0.1 * chance
    y = (g.random(400) < np.linspace(0.1, 0.5, 400)).astype(int)
    said = told_of(tmp_path, [f"c{i:04d}" for i in range(400)], y, np.arange(400))
    assert SAID_OF_IDS not in said
    assert SAID_OF_ROWS not in said


def test_rows_of_one_person_follow_each_other_whatever_the_order_tells(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    person = np.repeat(np.arange(30), 15)
    y = g.integers(0, 2, 30)[person]
    frame = pd.DataFrame(
        {"id": [f"c{i:04d}" for i in range(450)], "who": person, "x": g.normal(size=450), "y": y}
    )
    tables = frame, frame[["id"]].assign(v=g.normal(size=450))
    assert SAID_OF_IDS in " ".join(list_warnings(load_pair(tmp_path, *tables)))
    of_persons = load_pair(tmp_path, *tables, group="who")
    assert SAID_OF_IDS not in " ".join(list_warnings(of_persons))


@pytest.mark.parametrize("changed", [0, 1])
def test_a_column_that_two_parties_hold_is_said(tmp_path: Path, changed: int) -> None:
    """A number of persons in both tables was trained on, and its revelation called a leak."""
    g = np.random.default_rng(0)
    x, y = g.integers(0, 99, 60), g.integers(0, 2, 60)
    bank = pd.DataFrame({"id": range(60), "x": x, "y": y})
    shop = pd.DataFrame({"id": range(60), "x": x + changed * (x == x[0]), "z": -x})
    said = list_warnings(load_pair(tmp_path, bank, shop))
    assert any('drop = ["x"]' in w for w in said) is (not changed)
