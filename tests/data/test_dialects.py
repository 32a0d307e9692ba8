"""How text tables are written is found out and said; what cannot be is told with its option."""

from __future__ import annotations

import datetime
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from user_tables import load_one, refused, write

from vflsec.data import load, read_table
from vflsec.data.dialect import Dialect
from vflsec.data.limits import Limits
from vflsec.data.load import load_source
from vflsec.data.read_table import read_dates, read_frame, read_numbers
from vflsec.errors import ConfigError, DataError

PLAIN = 'id,"a b",x\n1,"p, q",1.5\n2,r;s,-20\n3,"t\nu",3\n'
ROWS = [["1", "p, q", "1.5"], ["2", "r;s", "-20"], ["3", "t\nu", "3"]]


def spelled(separator: str, decimal: str = ".") -> str:
    out = io.StringIO()
    frame = pd.DataFrame(ROWS, columns=["id", "a b", "x"])
    frame["x"] = frame.x.str.replace(".", decimal)
    frame.to_csv(out, sep=separator, index=False, quoting=1)
    return out.getvalue()


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_are_found_and_said(tmp_path: Path, separator: str, end: str) -> None:
    text = spelled(separator).replace("\n", end).replace(f"t{end}u", "t\nu")
    frame = read_frame(write(tmp_path / "t.csv", text))
    assert frame.dialect == Dialect(separator, ".", "utf-8")
    assert list(frame.columns) == ["id", "a b", "x"]
    assert frame.columns["a b"].to_pylist() == ["p, q", "r;s", "t\nu"]
    assert frame.numbers("x")[0].tolist() == [1.5, -20, 3]
    said = {",": "", ";": "separated by ';'", "\t": "separated by tabs", "|": "separated by '|'"}
    assert frame.dialect.said == said[separator]


def test_decimal_commas_are_found_where_commas_do_not_separate(tmp_path: Path) -> None:
    text = "id;x;big;y\n1;1,5;1.234,5;0\n2;-,25;12;1\n3;;7,0;0\n"
    frame = read_frame(write(tmp_path / "t.csv", text))
    assert frame.dialect.said == "separated by ';', decimal commas"
    np.testing.assert_array_equal(frame.numbers("x")[0], [1.5, -0.25, np.nan])
    np.testing.assert_array_equal(frame.numbers("big")[0], [1234.5, 12, 7])
    assert len(frame.numbers("x")[1]) == 0


@pytest.mark.parametrize(
    ("text", "decimal"),
    [
        ("id;x\n1;1,234\n2;5,678\n", "."),  # thousands or decimals: nobody knows
        ("id;x\n1;1,234\n2;5,67\n", ","),
        ("id;x\n1;1,2\n2;later\n", "."),
        ("id;x\n1;1.5\n2;2.5\n", "."),
        ('id,x\n1,"1,5"\n2,"2,5"\n', "."),  # quoted: asked for, not guessed
    ],
)
def test_decimal_commas_are_not_guessed(tmp_path: Path, text: str, decimal: str) -> None:
    assert read_frame(write(tmp_path / "t.csv", text)).dialect.decimal == decimal


def test_a_decimal_comma_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'id,x\n1,"1,5"\n2,"2,25"\n')
    assert read_frame(path, Dialect(separator=",")).numbers("x")[1].tolist() == [0, 1]
    frame = read_frame(path, Dialect(decimal=","))
    assert frame.numbers("x")[0].tolist() == [1.5, 2.25]


@pytest.mark.parametrize(
    ("texts", "decimal", "expected"),
    [
        (["0.5", "12.25", None], ",", [0.5, 12.25, np.nan]),
        (["1.234", "5"], ",", [1234, 5]),
        (["1.234", "5"], ".", [1.234, 5]),
    ],
)
def test_points_stay_points_where_a_column_has_them(
    texts: list[str | None], decimal: str, expected: list[float]
) -> None:
    found = read_numbers(pa.array(texts), decimal, declared=True).values
    np.testing.assert_array_equal(found, expected)


def test_excel_says_its_separator(tmp_path: Path) -> None:
    frame = read_frame(write(tmp_path / "t.csv", "\ufeffsep=|\r\nid|x\r\n1|a,b\r\n2|c\r\n"))
    assert list(frame.columns) == ["id", "x"]
    assert frame.columns["x"].to_pylist() == ["a,b", "c"]


def test_a_header_with_commas_in_a_semicolon_file(tmp_path: Path) -> None:
    text = 'id;"income, net";y\n1;2;0\n2;3;1\n'
    assert list(read_frame(write(tmp_path / "t.csv", text)).columns) == ["id", "income, net", "y"]


ENCODED: dict[str, tuple[bytes, list[str], str]] = {
    "latin-1": (
        "id,ort\n1,Köln\n".encode("latin-1"),
        ["0xf6 in line 2", "'ö'", 'encoding = "latin-1"'],
        "latin-1",
    ),
    "windows": (
        "id,ort\n1,a€b\n".encode("cp1252"),
        ["0x80 in line 2", "'€'", 'encoding = "windows-1252"'],
        "windows-1252",
    ),
    "utf-16": (
        "id,ort\n1,Köln\n".encode("utf-16"),
        ['encoding = "utf-16"'],
        "utf-16",
    ),
    "utf-16 without a mark": (
        "id,ort\n1,Koln\n".encode("utf-16-le"),
        ["a NUL byte in line 1", "UTF-16"],
        "utf-16-le",
    ),
}


@pytest.mark.parametrize("case", ENCODED)
def test_an_encoding_is_named_and_its_option_reads_it(tmp_path: Path, case: str) -> None:
    raw, parts, encoding = ENCODED[case]
    path = write(tmp_path / "t.csv", raw)
    with refused(DataError, "t.csv: table must be", *parts):
        read_frame(path)
    frame = read_frame(path, Dialect(encoding=encoding))
    assert frame.columns["ort"].to_pylist()[0] in ("Köln", "a€b", "Koln")
    assert frame.dialect.said == f"encoding {encoding}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"encoding": "klingon"}, "data: encoding must be a text encoding"),
        ({"encoding": "base64"}, "data: encoding must be a text encoding"),
        ({"separator": ";;"}, "data: separator must be one ASCII character"),
        ({"separator": '"'}, "data: separator must be one ASCII character"),
        ({"separator": "é"}, "data: separator must be one ASCII character"),
        ({"decimal": "·"}, "data: decimal must be '.' or ','"),
    ],
)
def test_a_dialect_that_is_none(options: dict[str, str], text: str) -> None:
    with refused(ConfigError, text):
        Dialect(**options)


@pytest.mark.parametrize(
    "text",
    ["1", "-2.5", "+3", ".5", "5.", "1e5", "1E-300", "1e309", "-0", "007", "inf", "Infinity", "1_0",
     "0x10", "nan(1)", "١", "1 2", "1e", "1,5", "--1", "4.9e-324", "0.1", "9007199254740993",
     "123456789012345678901234567890.5"],
)  # fmt: skip
def test_fast_and_slow_numbers_agree(text: str) -> None:
    """A column is read at once where it can be; one word of text beside it takes the slow way."""
    fast = read_numbers(pa.array([text, None]), declared=True)
    slow = read_numbers(pa.array([text, "word"]), declared=True)
    assert len(slow.bad) == 1 + len(fast.bad)
    np.testing.assert_array_equal(fast.values[0], slow.values[0])
    assert np.isnan(fast.values[1])


# Dates: days since 1970-01-01


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1970-01-01", "1970-01-31", None], [0, 30, np.nan]),
        (["1970-01-02 12:00", "1969-12-31T18:00:00"], [1.5, -0.25]),
        (["2000-01-01T00:00:00Z", "2000-01-01T02:00:00+02:00"], [10957, 10957]),
        (["1.2.1970", "28.02.1970"], [31, 58]),
        (["31/1/1970", "1/2/1970"], [30, 31]),
        (["1/31/1970", "2/1/1970"], [30, 31]),
        (["3/3/1970"], [61]),
    ],
)
def test_dates_are_days(values: list[str | None], expected: list[float]) -> None:
    found, why = read_dates(pa.array(values))
    assert why == ""
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["1/2/1970", "3/4/1970"], "day and month cannot be distinguished"),
        (["1970-01-01", "soon"], ""),
        (["1970-02-30", "1970-01-01"], ""),
        (["31/1/1970", "1/31/1970"], ""),
        (["1970-01-01 25:00"], ""),
        (["20240131"], ""),
    ],
)
def test_what_is_no_date_stays_text(values: list[str], why: str) -> None:
    assert read_dates(pa.array(values)) == (None, why)


def test_parquet_dates_and_text_dates_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    when = pd.Timestamp("2001-03-04") + pd.to_timedelta(rng.integers(0, 10**8, 50), unit="s")
    day = [datetime.date(2020, 1, 1) + datetime.timedelta(int(i)) for i in rng.integers(0, 999, 50)]
    frame = pd.DataFrame({"when": when, "day": day, "y": np.arange(50) % 2})
    frame["zoned"] = frame.when.dt.tz_localize("UTC")
    frame["span"] = frame.when - frame.when.min()
    frame.to_parquet(tmp_path / "t.parquet")
    frame.drop(columns="span").to_csv(tmp_path / "t.csv", index=False)
    columns = {"a": ["when", "zoned"], "b": ["day"]}
    typed, text = (load_one(tmp_path / n, columns) for n in ("t.parquet", "t.csv"))
    expected = (when - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    for source in (typed, text):
        assert source.parties["a"].categories == (None, None)
        np.testing.assert_allclose(source.parties["a"].values[:, 0], expected, atol=1e-8)
        np.testing.assert_allclose(source.parties["a"].values[:, 1], expected, atol=1e-8)
        first = datetime.date(1970, 1, 1).toordinal()
        assert source.parties["b"].values[:, 0].tolist() == [d.toordinal() - first for d in day]
    spans = load_one(tmp_path / "t.parquet", {"a": ["span"], "b": ["day"]})
    np.testing.assert_allclose(
        spans.parties["a"].values[:, 0], frame.span / pd.Timedelta(days=1), atol=1e-8
    )
    kinds = {c.name: c.kind for c in typed.facts.tables.tables[0].columns}
    assert (kinds["when"], kinds["day"]) == ("date", "date")


def test_dates_that_cannot_be_told_apart_are_said(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 9 + 1}/{i % 7 + 1}/2020,{i % 30},{i % 2}" for i in range(40))
    source = load_one(write(tmp_path / "t.csv", f"d,x,y\n{rows}\n"), {"a": ["d"], "b": ["x"]})
    assert source.parties["a"].categories[0] is not None
    (note,) = source.facts.notes
    assert "column 'd'" in note
    assert "day and month cannot be distinguished" in note


# What is not read


def bomb_gzip(path: Path) -> Path:
    return write(path, gzip.compress(b"id,x\n" + b"1,000000\n" * 400_000))


def bomb_members(path: Path) -> Path:
    return write(path, gzip.compress(b"id,x\n") + gzip.compress(b"1,0\n" * 500_000) * 3)


def bomb_rows(path: Path) -> Path:
    pa.parquet.write_table(pa.table({"x": pa.array(np.zeros(3_000_000, dtype=np.int8))}), path)
    return path


def bomb_text(path: Path) -> Path:
    words = pa.array(["w" * 10_000])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5_000, dtype=np.int32)), words)
    pa.parquet.write_table(pa.table({"x": column, "y": pa.array(range(5_000))}), path)
    return path


@pytest.mark.parametrize(
    ("make", "name", "limits", "key"),
    [
        (bomb_gzip, "t.csv.gz", Limits(bytes=1_000_000), "max_bytes"),
        (bomb_members, "t.csv.gz", Limits(bytes=1_000_000), "max_bytes"),
        (bomb_rows, "t.parquet", Limits(cells=1_000_000), "max_cells"),
        (bomb_rows, "t.parquet", Limits(bytes=1_000_000), "max_bytes"),
        (bomb_text, "t.parquet", Limits(bytes=1_000_000), "max_bytes"),
    ],
)
def test_a_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, make: Callable[[Path], Path], name: str, limits: Limits, key: str
) -> None:
    path = make(tmp_path / name)
    assert path.stat().st_size < 200_000
    with refused(DataError, name, f"{key} = NUMBER"):
        read_frame(path, limits=limits)
    assert read_frame(path).rows > 0  # within the default limits


def test_a_large_file_and_a_wide_one_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "id,x\n" + "1,2\n" * 1000)
    with pytest.raises(DataError, match=r"at most 4,000 bytes, got 4,005.*max_bytes = NUMBER"):
        read_frame(path, limits=Limits(bytes=4000))
    with pytest.raises(DataError, match=r"at most 1,999 cells, got about 2,002"):
        read_frame(path, limits=Limits(cells=1999))


def test_gzip_in_members_is_one_table(tmp_path: Path) -> None:
    parts = gzip.compress(b"id,x\n1,2\n") + gzip.compress(b"2,3\n")
    assert read_frame(write(tmp_path / "t.csv.gz", parts)).columns["x"].to_pylist() == ["2", "3"]
    for damaged in (parts[:-3], parts[:20], parts[:-8] + bytes(8), b"\x1f\x8b"):
        with pytest.raises(DataError, match="gzip"):
            read_frame(write(tmp_path / "t.csv.gz", damaged))


def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="got a device"):
        read_frame(tmp_path / "t.csv")


# Read once


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tables that were parsed, as they are."""
    seen: list[str] = []
    first = read_table.parse_frame

    def counted(path: Path, *args: object) -> object:
        seen.append(path.name)
        return first(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(read_table, "parse_frame", counted)
    monkeypatch.setattr(load, "_kept", load._Kept())
    return seen


SECTION = {"file": "t.csv", "label": "y", "columns": {"a": ["x"], "b": ["z"]}}
TABLE = "x,z,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(30))


def test_a_table_is_parsed_once_for_all_seeds(tmp_path: Path, reads: list[str]) -> None:
    write(tmp_path / "t.csv", TABLE)
    first = load_source(SECTION, 0, tmp_path)
    assert load_source(SECTION | {"test": 0.3, "digest": first.digest}, 7, tmp_path) is first
    assert reads == ["t.csv"]
    assert load_source(SECTION | {"categorical": ["z"]}, 0, tmp_path).digest != first.digest
    assert reads == ["t.csv"] * 2


def test_a_changed_table_is_read_again_however_fast(tmp_path: Path, reads: list[str]) -> None:
    """Same size and, by force, same times: the bytes decide while the file is young."""
    path = write(tmp_path / "t.csv", TABLE)
    first = load_source(SECTION, 0, tmp_path)
    path.write_text(TABLE.replace("0,0,0", "9,0,0"))
    again = load_source(SECTION, 0, tmp_path)
    assert again.digest != first.digest
    assert again.parties["a"].values[0, 0] == 9
    assert len(reads) == 2


def test_what_is_kept_is_bounded(tmp_path: Path, reads: list[str]) -> None:
    kept = load._Kept(most=900)  # bytes: one table has 2 x 30 x 8 = 480
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.csv", TABLE)
        kept.load(SECTION | {"file": f"{name}.csv"}, tmp_path)
    assert len(kept.sources) == 1
    kept.load(SECTION | {"file": "c.csv"}, tmp_path)
    assert reads == ["a.csv", "b.csv", "c.csv"]
