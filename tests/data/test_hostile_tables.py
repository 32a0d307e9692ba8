"""Tables and [data] sections made to break the reader: exit 2, the file, the place, the remedy.

Every case has its expected exit code and fragments of its message; `check` is what a user runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Cli
from sound import GOOD, TABLE, changed

from vflsec.config.scenario import load_scenario

N = 60
HUGE = "9" * 5000


def more(line: str) -> str:
    return changed('label = "y"', f'label = "y"\n{line}')


def named(line: str) -> str:
    return changed("[data]\n", f"[data]\n{line}\n")


ROLE = "not be one that names others"
FORMULA = "must begin with a letter or a digit, got"
DEEP = "must not be nested deeper than 20"
INTEGER = "must be an integer of 64 bits"

# scenario over the good table: what the message must hold
SECTIONS: dict[str, tuple[str, list[str]]] = {
    "array of arrays as columns": (changed('["x1"]', '[["x1"]]'), ["case.toml:7", "a string"]),
    "table as columns": (changed('["x1"]', '{x = ["x1"]}'), ["case.toml:7", "must be a list"]),
    "list as file": (changed('"t.csv"', '["t.csv"]'), ["case.toml:2", "data.file"]),
    "table as file": (changed('"t.csv"', "{a = 1}"), ["case.toml:2", "data.file"]),
    "list as id": (changed('id = "id"', 'id = [["id"]]'), ["case.toml:4", "data.id", "a table"]),
    "table as id of one file": (changed('id = "id"', 'id = {a = "id"}'), ["one text with `file`"]),
    "list as label": (changed('"y"', '["y"]'), ["case.toml:3", "data.label"]),
    "arrays without end": (GOOD + "[data.params]\nx = " + "[" * 3000 + "]" * 3000, [DEEP]),
    "arrays never closed": ("a = " + "[" * 100_000, [DEEP]),
    "tables without end": ("a = " + "{a=" * 3000 + "1" + "}" * 3000, [DEEP]),
    "arrays 25 deep": (GOOD + "[data.params]\nx = " + "[" * 25 + "]" * 25, [DEEP]),
    "a key of 3000 parts": (".".join("a" * 3000) + " = 1", [DEEP]),
    "a header of 3000 parts": ("[" + ".".join("a" * 3000) + "]", [DEEP]),
    "5000 digits": (changed("epochs = 1", f"epochs = {HUGE}"), ["case.toml:11", INTEGER]),
    "5000 digits in a list": (changed("= 2", f"= [{HUGE}]"), ["case.toml:15", INTEGER]),
    "5000 hex digits": (changed("epochs = 1", "epochs = 0x" + "f" * 5000), ["64 bits"]),
    "a name of 5000 characters": (changed("t.csv", "x" * 5000 + ".csv"), ["too long"]),
    "nul in a file name": (changed("t.csv", "a\\u0000.csv"), ["a\\x00.csv", "existing file"]),
    "active is passive": (
        changed('active = "a"', 'active = "b"').replace('a = ["x1"]', 'active = ["x1"]'),
        ["party name", ROLE, "'active'"],
    ),
    "passive is active": (
        changed('active = "a"', 'active = "passive"').replace('a = ["x1"]', 'passive = ["x1"]'),
        ["party name", ROLE, "'passive'"],
    ),
    "passive among several": (
        changed('b = ["x2"]', 'passive = ["x2"]\nc = ["id2"]'), [ROLE, "'passive'"],
    ),
    "a party called all": (changed('b = ["x2"]', 'all = ["x2"]'), [ROLE, "'all'"]),
    "a party that is a formula": (changed('b = ["x2"]', '"=b" = ["x2"]'), ["party name", "'=b'"]),
    "nul in a party": (changed('b = ["x2"]', '"b\\u0000" = ["x2"]'), ["party name", "'b\\x00'"]),
    "a data set that is a formula": (
        named('name = "=cmd|\'/C calc\'!A1"'), ["case.toml:2", "data.name", FORMULA, "=cmd|"],
    ),
    "a data set that adds": (named('name = "+1"'), ["data.name", FORMULA]),
    "a data set that looks up": (named('name = "@SUM(A1)"'), ["data.name", FORMULA]),
    "a data set that subtracts": (named('name = "-1+1"'), ["data.name", FORMULA]),
    "a data set behind a tab": (named('name = "\\t=1"'), ["data.name", "printable"]),
    "a data set of two lines": (named('name = "a\\nb"'), ["data.name", "printable"]),
    "a data set with an escape": (named('name = "\\u001b[31m"'), ["data.name", "printable"]),
    "a scenario that is a formula": ('name = "=1"\n' + GOOD, ["case.toml:1", FORMULA]),
    "a scenario with nul": ('name = "a\\u0000"\n' + GOOD, ["case.toml:1", "printable"]),
    "an encoding that is none": (more('encoding = "undefined"'), ["t.csv", "'undefined'"]),
    "an encoding by party": (more('encoding = {a = "utf-8"}'), ["one text with `file`"]),
    "a separator that breaks lines": (more('separator = "\\n"'), ["one ASCII character"]),
    "a wrong separator": (more('separator = "x"'), ["t.csv", "separated by 'x'", "separator ="]),
    "no bytes at all": (more("max_bytes = 0"), ["data.max_bytes", ">= 1"]),
    "few bytes": (more("max_bytes = 10"), ["t.csv", "at most 10 bytes", "max_bytes = NUMBER"]),
    "few columns": (
        more("max_columns = 3"), ["t.csv", "at most 3 columns, got 5", "max_columns = NUMBER"],
    ),
    "no columns at all": (more("max_columns = 0"), ["data.max_columns", ">= 1"]),
    "an edge that is no number": (more("label_edges = [nan]"), ["case.toml:4", "finite"]),
    "a class that is not there": (more('drop_classes = ["z"]'), ["t.csv", "drop_classes", "'z'"]),
    "an empty merger": (more("merge_classes = {a = []}"), ["data.merge_classes.a"]),
}  # fmt: skip

# a text table under the good scenario
TEXTS: dict[str, tuple[bytes, list[str]]] = {
    "nul in a header": (TABLE.replace("x1", "x\x001").encode(), ["t.csv", "NUL byte in line 1"]),
    "nul in an id": ((TABLE + "a\x00b,1,2,0\n").encode(), ["t.csv", "NUL byte in line 62"]),
    "escape in a header": (TABLE.replace("x1", "x\x1b[31m").encode(), ["name 2", "printable"]),
    "escape in an id": ((TABLE + "a\x1b[31m,1,2,0\n").encode(), ["'id'", "row 62", "printable"]),
    "5000 digits in a cell": (
        TABLE.replace("\n8,1,3,0\n", f"\n8,{HUGE},3,0\n").encode(), ["'x1'", "row 10", "finite"],
    ),
    "5000 digits as label": ((TABLE + f"99,1,2,{HUGE}\n").encode(), ["label column 'y'", "finite"]),
    "a header of 200 kB": (TABLE.replace("id,", "id," + "x" * 200_000 + ",").encode(), ["field"]),
    "a quote never closed": ((TABLE + '99,"1,2,0\n').encode(), ["Row #62", "Quote such fields"]),
    "utf-32": (TABLE.encode("utf-32"), ["t.csv", "utf-32", "encoding"]),
    "values behind the last name": (
        TABLE.replace("\n", ",\n").replace("7,0,2,1,\n", "7,0,2,1,5\n").encode(),
        ["t.csv", "column 5 must have a name"],
    ),
    "nothing but excel's line": (b"sep=;\n", ["t.csv", "rows"]),
    "one quote": (b'"', ["t.csv", "rows"]),
    "tabs": (b"\t\t\t\n\t\t\n", ["t.csv"]),
    "surrogates": (TABLE.encode() + b"99,\xed\xa0\x80,1,0\n", ["t.csv", "UTF-8", "line 62"]),
}  # fmt: skip


def parquet(**columns: Any) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        good = {"id": range(N), "x1": [i % 7 for i in range(N)], "x2": [i % 5 for i in range(N)]}
        table = {k: list(v) for k, v in good.items()} | {"y": [i % 2 for i in range(N)]} | columns
        pq.write_table(pa.table(table), path)

    return make


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        parquet()(path)
        path.write_bytes(change(path.read_bytes()))

    return make


def twice(path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1, 2])] * 2, names=["a", "a"]), path)


_AB = pa.array(["ab"] * N).buffers()
BAD_TEXT = pa.Array.from_buffers(pa.string(), N, [None, _AB[1], pa.py_buffer(b"\xff\xfe" * N)])
MAPS = pa.array([[("a", 1)]] * N, type=pa.map_(pa.string(), pa.int32()))
CODES = pa.DictionaryArray.from_arrays(pa.array([0] * N), BAD_TEXT[:1])

# a Parquet table under the good scenario
PARQUETS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "lists": (parquet(x1=[[1]] * N), ["'x1'", "list"]),
    "lists of lists": (parquet(x1=[[[1]]] * N), ["'x1'", "list"]),
    "structs": (parquet(x1=[{"a": 1}] * N), ["'x1'", "struct"]),
    "maps": (parquet(x1=MAPS), ["'x1'", "map"]),
    "bytes": (parquet(x1=[b"a"] * N), ["'x1'", "binary"]),
    "bytes that are no text": (parquet(x1=BAD_TEXT), ["column 'x1'", "UTF-8"]),
    "ids that are no text": (parquet(id=BAD_TEXT), ["column 'id'", "UTF-8"]),
    "labels that are no text": (parquet(y=BAD_TEXT), ["column 'y'", "UTF-8"]),
    "a column nobody uses that is no text": (parquet(z=BAD_TEXT), ["column 'z'", "UTF-8"]),
    "codes that are no text": (parquet(x1=CODES), ["UTF"]),
    "nul in text": (parquet(x1=["a\x00"] * N), ["column 'x1'", "NUL"]),
    "a missing id": (parquet(id=pa.array([None, *range(1, N)])), ["'id'", "row 2"]),
    "nul in ids": (parquet(id=[f"a\x00{i}" for i in range(N)]), ["column 'id'", "NUL"]),
    "escape in ids": (parquet(id=[f"\x1b{i}" for i in range(N)]), ["'id'", "printable", "row 2"]),
    "nul in a name": (parquet(**{"a\x00b": [1] * N}), ["name 5", "printable"]),
    "infinite": (parquet(x1=[float("inf")] * N), ["'x1'", "finite", "row 2"]),
    "no label": (parquet(y=pa.nulls(N)), ["'y'", "got none"]),
    "dates as label": (parquet(y=pd.date_range("2020", periods=N)), ["at least 5 rows"]),
    "no columns": (lambda p: pq.write_table(pa.table({}), p), ["have rows"]),
    "one name twice": (twice, ["'a' twice"]),
    "cut short": (damaged(lambda r: r[:-20]), ["Parquet file"]),
    "a flipped page": (
        damaged(lambda r: bytes(b ^ 255 if 30 < i < 200 else b for i, b in enumerate(r))),
        ["t.parquet", "Parquet file"],
    ),
    "a flipped footer": (
        damaged(lambda r: r[:-200] + bytes(b ^ 85 for b in r[-200:-8]) + r[-8:]), ["Parquet file"],
    ),
}  # fmt: skip


def refused(cli: Cli, folder: Path, parts: list[str]) -> None:
    err = cli.refuses("check", folder / "case.toml")
    assert err.startswith("error: ")
    assert all(c.isprintable() or c == "\n" for c in err), repr(err)
    assert len(err) < 2000
    for part in parts:
        assert part in err, err


@pytest.mark.parametrize("case", SECTIONS)
def test_sections(case: str, tmp_path: Path, cli: Cli) -> None:
    text, parts = SECTIONS[case]
    table = TABLE.replace("id,x1", "id,x1").replace("\n", ",1\n").replace("y,1\n", "y,id2\n")
    (tmp_path / "t.csv").write_text(table)
    (tmp_path / "case.toml").write_text(text, encoding="utf-8")
    refused(cli, tmp_path, parts)


@pytest.mark.parametrize("case", TEXTS)
def test_text_tables(case: str, tmp_path: Path, cli: Cli) -> None:
    table, parts = TEXTS[case]
    (tmp_path / "t.csv").write_bytes(table)
    (tmp_path / "case.toml").write_text(GOOD)
    refused(cli, tmp_path, parts)


@pytest.mark.parametrize("case", PARQUETS)
def test_parquet_tables(case: str, tmp_path: Path, cli: Cli) -> None:
    make, parts = PARQUETS[case]
    make(tmp_path / "t.parquet")
    (tmp_path / "case.toml").write_text(changed("t.csv", "t.parquet"))
    refused(cli, tmp_path, parts)


def test_a_file_called_like_a_formula_needs_another_name(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "=cmd.csv").write_text(TABLE)
    (tmp_path / "case.toml").write_text(changed("t.csv", "=cmd.csv"))
    refused(cli, tmp_path, ["data: name must begin", "'=cmd'", 'name = "..."'])
    text = changed('"t.csv"', '"=cmd.csv"\nname = "mine"')
    (tmp_path / "case.toml").write_text(text)
    assert cli("check", tmp_path / "case.toml") == 0


GOOD_ODD: dict[str, bytes] = {
    "semicolons": TABLE.replace(",", ";").encode(),
    "tabs": TABLE.replace(",", "\t").encode(),
    "byte-order mark": ("\ufeff" + TABLE).encode(),
    "excel's line": ("sep=;\n" + TABLE.replace(",", ";")).encode(),
    "excel's empty columns": TABLE.replace("\n", ", ,\n").encode(),
    "excel's empty rows": (TABLE.replace(",", ";") + ";;;\n" * 3 + " ;;;").encode(),
    "old line ends": TABLE.replace("\n", "\r").encode(),
    "windows line ends": TABLE.replace("\n", "\r\n").encode(),
    "an id of 5000 digits": (TABLE + f"{HUGE},1,2,0\n").encode(),
    "a cell of a megabyte": (TABLE + "99," + "z" * 10**6 + ",2,1\n").encode(),
}


@pytest.mark.parametrize("case", GOOD_ODD)
def test_odd_tables_that_are_fine(case: str, tmp_path: Path) -> None:
    from vflsec.data.load import load_source

    (tmp_path / "t.csv").write_bytes(GOOD_ODD[case])
    (tmp_path / "case.toml").write_text(GOOD)
    data = load_scenario(tmp_path / "case.toml").root.data[0]
    source = load_source(data.model_dump(exclude_defaults=True), 0, tmp_path)
    assert len(source.y) in (N, N + 1)
    assert source.parties["a"].names == ("x1",)
    np.testing.assert_array_equal(source.parties["b"].values[:5, 0], [0, 1, 2, 3, 4])


def test_a_column_that_is_called_like_any_column(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "t.csv").write_text(TABLE.replace("x2", "*"))
    (tmp_path / "case.toml").write_text(changed('["x2"]', '["*"]'))
    refused(cli, tmp_path, ["t.csv", "column '*'", "means any column", "drop"])


def test_a_label_that_is_called_like_a_question(tmp_path: Path, cli: Cli) -> None:
    """Gates set questions aside that few rows do not answer; a label is judged whatever it is."""
    (tmp_path / "t.csv").write_text(
        "id,x1,x2,y,largest tenth\n"
        + "".join(f"{i},{i % 7},{i % 5},{i % 2},{i // 2 % 2}\n" for i in range(120))
    )
    two = changed('label = "y"', 'label = ["y", "largest tenth"]\ntask = "multilabel"')
    (tmp_path / "case.toml").write_text(two)
    refused(cli, tmp_path, ["label", "'largest tenth'", "question", "Rename the column"])


@pytest.mark.parametrize("name", ["a+b", "all", "x\ny", "a:b", "=1", "*"])
def test_parties_of_a_data_set_of_others_are_named_like_all(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those of tables were looked at: `a+b` is two parties together wherever it stands."""
    from types import SimpleNamespace

    from vflsec.data.load import load_source
    from vflsec.data.source import PartyData, Source
    from vflsec.errors import DataError
    from vflsec.plugins import registry

    rows = np.arange(6)
    table = PartyData(rows[:, None] * 1.0, rows, ("v",))

    def given(other: str) -> None:
        parties = {"bank": table, other: table}
        found = Source("theirs", parties, "bank", rows % 2, ("no", "yes"), digest="d")
        made = SimpleNamespace(load=lambda seed: found)
        monkeypatch.setattr(registry.datasets, "create", lambda *_: made)

    given(name)
    with pytest.raises(DataError, match="party name must"):
        load_source({"name": "theirs"}, 0, Path())
    given("shop")
    assert load_source({"name": "theirs"}, 0, Path()).active == "bank"
