"""Users' tables: what is read, and the one clear error for each thing that can be wrong."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from user_tables import load_one, load_pair, refused, write

from vflsec.data.divide import Division
from vflsec.data.features import MOST_CATEGORIES
from vflsec.data.load import load_source, split_options
from vflsec.data.prepare import make_task
from vflsec.data.read_table import read_frame
from vflsec.data.table_spec import TableSpec
from vflsec.data.table_warnings import count_missing
from vflsec.data.tables import load_tables
from vflsec.errors import ConfigError, DataError

BANK = """id,balance,job,y
1,10.5,cook,1
2,,nurse,0
3,7,?,1
5,-2e1,cook,
"""
SHOP = """ id ,visits,member
3,4,true
 1,2,false
2,3,true
9,0,
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bank.csv").write_text(BANK)
    (tmp_path / "shop.csv").write_text(SHOP)
    return tmp_path


def two(folder, **more):
    files = {"shop": folder / "shop.csv", "bank": folder / "bank.csv"}
    return load_tables(files, TableSpec(**{"id": "id", "label": "y", **more}))


def test_two_files_join_on_ids(folder):
    source = two(folder)
    assert source.name == "shop_bank"  # and not as the party that holds one of the tables
    assert source.active == "bank"
    assert list(source.parties) == ["bank", "shop"]
    assert list(source.ids) == ["1", "2", "3", "5", "9"]
    assert source.y.tolist() == [1, 0, 1, -1, -1]
    assert source.class_names == ("0", "1")
    bank, shop = source.parties["bank"], source.parties["shop"]
    assert bank.rows.tolist() == [0, 1, 2, 3]
    assert shop.rows.tolist() == [2, 0, 1, 4]
    assert bank.names == ("balance", "job")
    np.testing.assert_array_equal(bank.values[:, 0], [10.5, np.nan, 7, -20])
    assert bank.categories == (None, ("cook", "nurse"))
    np.testing.assert_array_equal(bank.values[:, 1], [1, 2, np.nan, 1])
    assert shop.categories == (None, ("false", "true"))
    np.testing.assert_array_equal(shop.values[:, 1], [2, 1, 2, np.nan])
    assert source.facts.tables.overlap[source.active].common == 3
    assert source.facts.unlabelled == 2
    assert count_missing(source) == {"bank": {"balance": 1, "job": 1}, "shop": {"member": 1}}


def test_parquet_gzip_and_csv_read_alike(folder):
    csv = two(folder)
    bank = pd.DataFrame(
        {"id": [1, 2, 3, 5], "balance": [10.5, None, 7, -20],
         "job": ["cook", "nurse", None, "cook"], "y": [1.0, 0.0, 1.0, None]}
    )  # fmt: skip
    bank.to_parquet(folder / "bank.parquet")
    (folder / "shop.csv.gz").write_bytes(gzip.compress(("\ufeff" + SHOP).encode()))
    files = {"shop": folder / "shop.csv.gz", "bank": folder / "bank.parquet"}
    other = load_tables(files, TableSpec(id="id", label="y"))
    assert other.ids == csv.ids
    np.testing.assert_array_equal(other.y, csv.y)
    assert other.class_names == csv.class_names
    for p in csv.parties:
        np.testing.assert_array_equal(other.parties[p].values, csv.parties[p].values)
        assert other.parties[p].categories == csv.parties[p].categories
    assert other.digest != csv.digest


def test_an_index_that_pandas_wrote_is_no_column(tmp_path):
    frame = pd.DataFrame({"a": [3.5, 2, 1], "y": ["no", "yes", "no"]}, index=[4, 2, 9])
    frame.to_parquet(tmp_path / "t.parquet")
    assert list(read_frame(tmp_path / "t.parquet").columns) == ["a", "y"]
    frame.rename_axis("person").to_parquet(tmp_path / "t.parquet")
    assert list(read_frame(tmp_path / "t.parquet").columns) == ["a", "y", "person"]


def test_parquet_types_decide_the_kind(tmp_path):
    pd.DataFrame(
        {"n": [1, 2, 3], "code": ["01", "02", "01"], "flag": [True, False, True],
         "cat": pd.Categorical(["b", "a", "b"]), "y": ["no", "yes", "no"]}
    ).to_parquet(tmp_path / "t.parquet")  # fmt: skip
    source = load_one(tmp_path / "t.parquet", {"a": ["n", "code"], "b": ["flag", "cat"]})
    assert source.parties["a"].categories == (None, ("01", "02"))
    assert source.parties["b"].categories == (("false", "true"), ("a", "b"))
    assert source.parties["b"].values[:, 1].tolist() == [2, 1, 2]
    assert source.class_names == ("no", "yes")
    assert source.y.tolist() == [0, 1, 0]


def test_one_file_with_column_groups(folder):
    source = load_one(folder / "bank.csv", {"p": ["job"], "active": ["balance"]}, id="id")
    assert source.active == "active"
    assert source.parties["p"].rows.tolist() == [0, 1, 2, 3]
    assert source.ids == ("1", "2", "3", "5")
    assert source.name == "bank"
    no_id = load_one(folder / "bank.csv", {"a": ["job"], "b": ["balance"]})
    assert no_id.ids == ("0", "1", "2", "3")
    assert no_id.active == "a"
    assert no_id.facts.unused == ["id"]


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (["1", "2", "3"], ["3.0", "1.0", "7.0"], 2),
        (["a ", " b", "c"], ["c", "b", "x"], 2),
        (["01", "02", "03"], ["1", "02", "4"], 1),
        (["1.5", "2", "3"], ["3", "1.5", "2.0"], 2),
    ],
)
def test_ids_match_as_trimmed_text(tmp_path, left, right, common):
    bank, shop = {"id": left, "a": [1, 2, 3], "y": [0, 1, 0]}, {"id": right, "b": [1, 2, 3]}
    source = load_pair(tmp_path, bank, shop)
    assert source.facts.tables.overlap[source.active].common == common


@pytest.mark.parametrize("kind", [pa.decimal128(20, 0), pa.float64(), pa.float32(), pa.int64()])
@pytest.mark.parametrize("first", [7, 10**9, 10**12, 2**60])
def test_whole_numbers_are_ids_whatever_their_type(tmp_path, kind, first):
    ids = [first + i for i in range(6)]
    given = [str(i) if pa.types.is_decimal(kind) else i for i in ids]
    given = pa.array(given).cast(kind, safe=False)
    table = pa.table({"id": given, "a": range(6), "y": [0, 1] * 3})
    pq.write_table(table, tmp_path / "a.parquet")
    other = write(tmp_path / "b.csv", {"id": [*ids[2:], "x"], "b": range(5)})
    files = {"a": tmp_path / "a.parquet", "b": other}
    bits = {pa.float32(): 24, pa.float64(): 53}.get(kind, 63)
    if first < 2**bits:
        source = load_tables(files, TableSpec(id="id", label="y"))
        assert source.ids[:6] == tuple(map(str, ids))
        assert source.facts.tables.overlap[source.active].common == 4
        return
    with pytest.raises(DataError, match=rf"or numbers below 2\^{bits}, got \d+ .* in row 2"):
        load_tables(files, TableSpec(id="id", label="y"))


def test_declared_kinds_win(folder):
    source = two(folder, categorical=["shop.visits"], numeric=["balance"])
    assert source.parties["shop"].categories[0] == ("0", "2", "3", "4")
    assert source.parties["bank"].categories[0] is None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["True", "False", "True"], ("False", "True")),
        (["1.0", "0.0", "2.0"], ("0", "1", "2")),
        (["b", "a", "B"], ("B", "a", "b")),
        (["0.5", "1", "0.5"], ("0.5", "1")),
    ],
)
def test_classes_are_ordered(tmp_path, values, names):
    rows = "\n".join(f"{v},1,2" for v in values)
    source = load_one(write(tmp_path / "t.csv", f"y,a,b\n{rows}\n"), {"p": ["a"], "q": ["b"]})
    assert source.class_names == names
    wanted = [names.index(v.removesuffix(".0")) for v in values]
    assert source.y.tolist() == wanted


def test_rare_categories_are_folded(tmp_path):
    n = MOST_CATEGORIES + 50
    names = [f"k{i}" for i in range(n)] + [f"k{i}" for i in range(20, n)]
    table = {"k": names, "x": 1.0, "y": np.arange(len(names)) % 2}
    source = load_one(write(tmp_path / "t.csv", table), {"a": ["k"], "b": ["x"]})
    known = source.parties["a"].categories[0]
    assert len(known) == MOST_CATEGORIES + 1
    assert known[-1] == "(rare)"
    assert source.facts.folded == {"a.k": 50}
    every = {"k": [f"k{i}" for i in range(n)], "x": 1.0, "y": np.arange(n) % 2}
    told = load_one(write(tmp_path / "u.csv", every), {"a": ["k"], "b": ["x"]}).facts.tables
    assert f"{n} different texts in {n} rows" in told.tables[0].columns[0].warning
    rare = source.parties["a"].values[:, 0] == len(known)
    assert rare[:20].all()
    assert rare.sum() == 20 + 2 * 30


def test_a_nearly_numeric_column_is_asked_or_reported(tmp_path):
    columns = {"a": ["x"], "b": ["z"]}
    rows = "\n".join(f"{i},{i % 2},1" for i in range(50))
    path = write(tmp_path / "t.csv", f"x,y,z\n{rows}\nabc,1,1\n")
    with pytest.raises(DataError, match=r"t\.csv: column 'x' must .* such as 'abc'"):
        load_one(path, columns)
    few = "\n".join(f"{i % 3},{i % 2},1" for i in range(50))  # 0, 1, 2 and 3+ may be meant
    source = load_one(write(path, f"x,y,z\n{few}\n3+,1,1\n"), columns)
    assert len(source.parties["a"].categories[0]) == 4
    assert "t.csv: column 'x'" in source.facts.notes[0]
    assert "'3+'" in source.facts.notes[0]


def test_split_and_group_columns(tmp_path):
    bank = "id,x,y,part,who\n1,1,0,train,p\n2,2,1,Test,q\n3,3,0,train,p\n4,1,1,validation,\n"
    shop = "id,v,part\n2,1,test\n1,5,train\n8,1,train\n"
    source = load_pair(tmp_path, bank, shop, split="part", group="who")
    assert source.split.tolist() == ["train", "test", "train", "validation", "train"]
    assert source.group[0] == source.group[2]
    assert len(set(source.group.tolist())) == 4
    assert source.parties["bank"].names == ("x",)
    assert source.parties["shop"].names == ("v",)


def test_digest_follows_content_and_options(folder):
    first, same = two(folder), two(folder)
    assert first.digest == same.digest
    assert two(folder, drop=["job"]).digest != first.digest
    (folder / "shop.csv").write_text(SHOP.replace("2,3", "2,4"))
    assert two(folder).digest != first.digest


# what to write over the good tables, options, and what the message must name
BAD_TABLES = {
    "missing file": ({"bank.csv": None}, {}, ["bank.csv", "existing file"]),
    "empty": ({"bank.csv": ""}, {}, ["bank.csv", "have rows"]),
    "blank": ({"bank.csv": "\n\n"}, {}, ["bank.csv", "have rows"]),
    "header only": ({"bank.csv": "id,x,y\n"}, {}, ["bank.csv", "have rows"]),
    "header without end": ({"bank.csv": "id,x,y"}, {}, ["bank.csv", "have rows"]),
    "short row": ({"bank.csv": "id,x,y\n1,2\n"}, {}, ["bank.csv", "Row #2", "Expected 3"]),
    "long row": ({"bank.csv": "id,x,y\n1,2,3,4\n"}, {}, ["bank.csv", "Row #2", "got 4"]),
    "nameless column": ({"bank.csv": ",id,x,y\n0,1,2,3\n"}, {}, ["bank.csv", "column 1", "name"]),
    "repeated column": ({"bank.csv": "id,x,x,y\n1,2,3,0\n"}, {}, ["bank.csv", "'x'", "twice"]),
    "no id column": ({"shop.csv": "ID,v\n1,2\n"}, {}, ["shop.csv", "'id'", "'ID'"]),
    "missing id": ({"shop.csv": "id,v\n1,2\n,3\n"}, {}, ["shop.csv", "'id'", "row 3", "1 in all"]),
    "repeated ids": (
        {"shop.csv": "id,v\n1,2\n2,1\n1,3\n 2,1\n"}, {},
        ["shop.csv", "'id'", "2 ids more than once", "'1', '2'"],
    ),
    "no overlap": (
        {"shop.csv": "id,v\n001,2\n002,3\n"}, {},
        ["no common id", "bank.csv", "'1'", "shop.csv", "'001'",
         "2 ids of bank and shop", "'9' and '009'", "--id-match zeros"],
    ),
    "no overlap, of nothing alike": (
        {"shop.csv": "id,v\na1,2\nb2,3\n"}, {}, ["no common id"],
    ),
    "no label column": ({}, {"label": "Y"}, ["label column 'Y'", "bank.csv", "'balance'"]),
    "two label columns": (
        {"shop.csv": "id,v,y\n1,2,0\n"}, {}, ["label column 'y'", "bank.csv", "shop.csv"],
    ),
    "active without labels": ({}, {"active": "shop"}, ["active", "'bank'", "'shop'"]),
    "constant label": ({"bank.csv": "id,x,y\n1,2,0\n2,3,0\n"}, {}, ["bank.csv", "'y'", "only '0'"]),
    "empty label": ({"bank.csv": "id,x,y\n1,2,\n2,3,NA\n"}, {}, ["bank.csv", "'y'", "got none"]),
    "infinite label": ({"bank.csv": "id,x,y\n1,2,inf\n2,3,1\n"}, {}, ["bank.csv", "'y'", "inf"]),
    "regression": (
        {"bank.csv": "id,x,y\n" + "".join(f"{i},1,{i / 7:.3f}\n" for i in range(30))}, {},
        ["bank.csv", "'y'", "30 numbers", "regression"],
    ),
    "too many classes": (
        {"bank.csv": "id,x,y\n" + "".join(f"{i},1,{i}\n" for i in range(1001))}, {},
        ["bank.csv", "'y'", "at most 1000 classes", "1001"],
    ),
    "text in numeric": ({}, {"numeric": ["job"]}, ["bank.csv", "'job'", "'cook'", "row 2"]),
    "number with a comma": (
        {"shop.csv": 'id,v\n1,"1,5"\n2,3\n'}, {"numeric": ["shop.v"]},
        ["shop.csv", "'v'", "'1,5'", "row 2"],
    ),
    "infinite value": (
        {"shop.csv": "id,v\n1,2\n2,-inf\n"}, {}, ["shop.csv", "'v'", "-inf", "row 3"],
    ),
    "unknown drop": ({}, {"drop": ["jobs"]}, ["drop", "'jobs'", "Did you mean 'job'"]),
    "unknown column": (
        {}, {"columns": {"shop": ["visit"]}}, ["shop.csv", "'visit'", "Did you mean 'visits'"],
    ),
    "unknown party": ({}, {"columns": {"shops": ["visits"]}}, ["columns", "'shops'", "'shop'"]),
    "unknown declared": ({}, {"categorical": ["jobb"]}, ["categorical", "'jobb'", "'job'"]),
    "declared twice": (
        {}, {"categorical": ["job"], "numeric": ["job"]}, ["bank.csv", "'job'", "both"],
    ),
    "label as a feature": (
        {}, {"columns": {"bank": ["y", "job"]}}, ["bank.csv", "'y'", "label column"],
    ),
    "id as a feature": ({}, {"columns": {"bank": ["id"]}}, ["bank.csv", "'id'", "id column"]),
    "column once, got twice": (
        {}, {"columns": {"bank": ["job", "job"]}}, ["bank.csv", "'job'", "once, got twice"],
    ),
    "party without columns": (
        {"shop.csv": "id\n1\n2\n"}, {}, ["shop.csv", "party 'shop'", "a feature column"],
    ),
    "all dropped": ({}, {"drop": ["balance", "job"]}, ["bank.csv", "party 'bank'", "a feature"]),
    "no id option": ({}, {"id": None}, ["id", "joins the tables"]),
    "unknown split column": ({}, {"split": "part"}, ["bank.csv", "split column", "'part'"]),
    "bad split value": (
        {"bank.csv": "id,x,y,s\n1,2,0,train\n2,3,1,tset\n"}, {"split": "s"},
        ["bank.csv", "'s'", "'tset'", "row 3"],
    ),
    "split without test": (
        {"bank.csv": "id,x,y,s\n1,2,0,train\n2,3,1,train\n"}, {"split": "s"},
        ["bank.csv", "'s'", "'test'"],
    ),
    "split in conflict": (
        {"bank.csv": "id,x,y,s\n1,2,0,train\n2,3,1,test\n",
         "shop.csv": "id,v,s\n1,2,train\n2,3,train\n"},
        {"split": "s"}, ["shop.csv", "'s'", "'train' in row 3", "'test'"],
    ),
    "unknown group column": ({}, {"group": "who"}, ["bank.csv", "group column", "'who'"]),
    "two roles": ({}, {"group": "y"}, ["different columns", "'y'"]),
}  # fmt: skip


@pytest.fixture
def one(tmp_path):
    """Sixty rows: an id, a split, a group, and columns of which b says all of y and c is a word."""
    g = np.random.default_rng(0)
    a, b = g.normal(size=(2, 60)).round(3)
    table = pd.DataFrame({"id": np.arange(60) + 7, "a": a, "b": b, "c": np.where(a > 0, "u", "v"),
                          "d": g.normal(size=60).round(3), "y": (b > 0).astype(int),
                          "side": ["train", "test"] * 30, "who": np.arange(60) // 2})  # fmt: skip
    table.loc[table.side == "test", "y"] = 1 - table.y  # there another column would say it
    table.to_csv(tmp_path / "one.csv", index=False)
    return tmp_path / "one.csv"


def test_a_division_of_quantities_takes_labelled_rows_and_stands_with_one_file(one):
    table = pd.read_csv(one)
    table["y"] = table.b.where(table.index > 9)
    table.to_csv(one, index=False)
    spec = TableSpec(label="y", task="regression", drop=frozenset({"id", "side", "who"}))
    made = load_tables(one, replace(spec, divide=Division(importance=0.6)))
    assert "b" in made.parties["passive"].names
    assert made.facts.unlabelled == 10
    for wrong in ({"columns": {"active": ["a"], "passive": ["b"]}}, {"active": "active"}):
        with pytest.raises(DataError, match="divide"):
            load_tables(one, replace(spec, divide=Division(importance=0.6), **wrong))
    with pytest.raises(DataError, match="divide"):
        load_tables({"a": one, "b": one}, replace(spec, divide=Division(importance=0.6)))
    table.assign(y=None).to_csv(one, index=False)
    with pytest.raises(DataError):
        load_tables(one, replace(spec, divide=Division(importance=0.6)))


def test_classes_are_merged_dropped_and_cut_and_that_is_part_of_the_identity(one):
    def load(**more):
        return load_one(one, **{"columns": {"p": ["a"], "q": ["c"]}, "active": "p", **more})

    other = {"label": "c", "columns": {"p": ["a"], "q": ["b"]}}
    plain, merged = load(**other), load(**other, merge_classes={"w": ["u"]})
    edges = load(label="d", label_edges=(0.0,))
    digests = {plain.digest, merged.digest, edges.digest, load().digest,
               load(label="d", label_edges=(0.1,)).digest,
               load(label="b", task="regression").digest}  # fmt: skip
    assert len(digests) == 6
    with pytest.raises(DataError, match="task"):
        load(label="d", task="regression", label_edges=(0.0,))


def test_the_identity_of_a_table_is_pinned(tmp_path):
    """Another figure here makes every stored result another data set's."""
    path = write(tmp_path / "t.csv", "id,x,z,y\n1,2,3,0\n2,3,4,1\n3,1,5,0\n")
    source = load_one(path, {"p": ["x"], "q": ["z"]}, id="id", active="p")
    assert source.digest[:24] == "80d59dffc91a3f38bc232ad7"


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_gives_one_clear_error(folder, case):
    texts, options, parts = BAD_TABLES[case]
    for name, text in texts.items():
        if text is None:
            (folder / name).unlink()
        else:
            write(folder / name, text)
    with refused(DataError, " must ", ", got ", *parts):
        two(folder, **options)


BAD_FILES = {
    "folder": ("dir.csv", None, ["dir.csv", "a folder"]),
    "pickle": ("t.pkl", b"\x80\x04N.", ["t.pkl", "'.pkl'", ".parquet"]),
    "no suffix": ("table", "id,y\n1,2\n", ["table", ".csv"]),
    "not gzip": ("t.csv.gz", "id,y\n1,2\n", ["t.csv.gz", "gzip"]),
    "not parquet": ("t.parquet", "id,y\n1,2\n", ["t.parquet", "Parquet file"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_table_is_refused(folder, case):
    name, content, parts = BAD_FILES[case]
    if content is None:
        (folder / name).mkdir()
    else:
        write(folder / name, content)
    with refused(DataError, *parts):
        load_tables({"a": folder / name, "b": folder / "shop.csv"}, TableSpec(id="id", label="y"))


BAD_GROUPS = {
    "no groups": (None, {}, ["columns", "at least two parties", "'balance'"]),
    "one group": ({"a": ["job"]}, {}, ["columns", "at least two parties", "'a'"]),
    "shared column": (
        {"a": ["job"], "b": ["job"]}, {}, ["column 'job' of b", "also in 'a'"],
    ),
    "empty group": ({"a": ["job"], "b": []}, {}, ["party 'b'", "a feature column"]),
    "unknown column": (
        {"a": ["job"], "b": ["blance"]}, {}, ["'blance'", "Did you mean 'balance'"],
    ),
    "label in a group": ({"a": ["job"], "b": ["y"]}, {}, ["b's", "'y'", "label column"]),
    "unknown active": ({"a": ["job"], "b": ["balance"]}, {"active": "c"}, ["active", "'c'"]),
    "bad party name": ({"a+b": ["job"], "c": ["balance"]}, {}, ["party name", "'a+b'"]),
    "unknown label": (
        {"a": ["job"], "b": ["balance"]}, {"label": "z"}, ["label column", "'z'", "bank.csv"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_bad_column_groups_are_refused(folder, case):
    columns, options, parts = BAD_GROUPS[case]
    with refused(DataError, *parts):
        load_one(folder / "bank.csv", columns, **{"id": "id", **options})


def test_one_class_in_a_split_is_refused(tmp_path):
    rows = "\n".join(f"{i},{i},{int(i < 4)},{i % 7}" for i in range(100))
    path = write(tmp_path / "t.csv", f"id,x,y,z\n{rows}\n")
    source = load_one(path, {"a": ["x"], "b": ["z"]}, id="id")
    with pytest.raises(DataError, match=r"t: class '1' must have at least 5 rows .* got 4"):
        make_task(source, 0)


def test_section_with_relative_paths(folder):
    section = {
        "files": {"bank": "bank.csv", "shop": "shop.csv"}, "id": "id", "label": "y",
        "drop": ["job"], "labelled": 30, "scale": "rank", "active": None, "name": "my tables",
    }  # fmt: skip
    source = load_source(section, 0, folder)
    assert source.name == "my tables"
    assert source.parties["bank"].names == ("balance",)
    assert split_options(section) == {"labelled": 30, "scale": "rank"}
    direct = load_tables(
        {p: folder / f"{p}.csv" for p in ("bank", "shop")},
        TableSpec(id="id", label="y", drop=["job"]),
    )
    assert direct.digest == source.digest


BAD_SECTIONS = [
    ({}, "one of alike, avazu, bhi, breast_cancer"),
    ({"name": "brest_cancer"}, "Did you mean 'breast_cancer'"),
    ({"name": "digits", "params": {"partys": 2}}, "no parameter 'partys'"),
    ({"name": "digits", "label": "y"}, "'label' is for tables"),
    ({"nmae": "digits"}, "Did you mean 'name'"),
    ({"file": "bank.csv", "files": {}}, "not both"),
    ({"file": "bank.csv"}, "lacks a label"),
    ({"file": "bank.csv", "label": "y", "params": {}}, "`params` are for"),
    ({"files": "bank.csv", "label": "y"}, "one path for each party"),
    ({"file": "bank.csv", "label": 3}, "data: label must be text, got 3"),
    ({"file": "bank.csv", "label": "y", "drop": "job"}, "data: drop must be a list"),
    ({"file": "bank.csv", "label": "y", "columns": ["job"]}, "a list for each party"),
    ({"file": "bank.csv", "label": "y", "columns": {"a": "job"}}, "data: columns.a must be a list"),
]


@pytest.mark.parametrize(("section", "text"), BAD_SECTIONS, ids=lambda v: str(v)[:30])
def test_a_bad_section_is_refused(folder, section, text):
    with refused(ConfigError, text):
        load_source(section, 0, folder)


@pytest.mark.real
def test_credit_default_as_two_files(real_data):
    folder = real_data / "credit_default"
    files = {"bank": "guest", "bureau": "host"}
    source = load_tables(
        {p: folder / f"fate_default_credit_hetero_{f}.csv.gz" for p, f in files.items()},
        TableSpec(id="id", label="y"),
    )
    assert len(source.y) == 30_000
    assert source.facts.tables.overlap[source.active].common == 30_000
    assert source.active == "bank"
    assert [len(d.names) for d in source.parties.values()] == [13, 10]
    assert np.bincount(source.y).tolist() == [23_364, 6_636]
    task = make_task(source, 0)
    assert {k: len(v) for k, v in task.sets.items()} == {
        "labelled": 18_000, "aligned": 18_000, "validation": 4_500, "test": 7_500,
        "local:bank": 18_000, "local:bureau": 18_000,
    }  # fmt: skip


@pytest.mark.real
def test_adult_as_one_file_with_its_own_split(real_data):
    folder = real_data / "adult"
    groups = json.loads((folder / "meta.json").read_text())["splits"]["employer_vs_registry"]
    columns = {"active": groups["label_party"], "passive": groups["passive"]}
    source = load_one(folder / "adult.csv.gz", columns, label="label", id="id", split="split")
    missing = {p: sum(of.values()) for p, of in count_missing(source).items()}
    assert missing == {"active": 2799 + 2809, "passive": 857}
    task = make_task(source, 0)
    assert len(task.sets["test"]) == 16_281
    assert task.schema["passive"].cardinalities == (0, 8, 7, 6, 3, 42)
    assert task.schema["active"].numeric == (2, 4, 5, 6, 7)
