"""What somebody meets who brings a first table: each error names the cause and the cure."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from command_line import Cli

from vflsec.core import check

SCENARIO = """
data = { files = { bank = "a.csv", shop = "b.csv" }, id = "id", label = "LABEL" }
algorithm = { name = "splitnn", epochs = 1 }
attack = [{ name = "norm" }]
audit = { seeds = 2, references = [], positive_control = false }
"""
ROWS = range(80)


def table(*names: str, rows: list[tuple[object, ...]]) -> str:
    return "\n".join([",".join(names), *(",".join(map(str, r)) for r in rows), ""])


def y(i: int) -> int:
    return int(i * i % 3 == 0)


A = table("id", "a1", "y", rows=[(i, i * 3 % 7, y(i)) for i in ROWS])
B = table("id", "b1", rows=[(i, i * 7 % 11) for i in ROWS])


@pytest.fixture
def told(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """What ``vflsec check`` (or init) says of two tables; it must exit with 2."""

    def run(a: str | bytes = A, b: str = B, label: str = "y", command: str = "check") -> str:
        monkeypatch.chdir(tmp_path)
        Path("a.csv").write_bytes(a if isinstance(a, bytes) else a.encode())
        Path("b.csv").write_text(b)
        Path("s.toml").write_text(SCENARIO.replace("LABEL", label))
        init = ["init", "a.csv", "b.csv", "--label", label, "--out", "new.toml"]
        err = cli.refuses(*(init if command == "init" else ["check", "s.toml"]))
        assert err.count("\n") == 1
        return err

    return run


def test_a_name_in_another_case_is_the_nearest() -> None:
    assert check.nearest("Y", ["id", "a1", "y"]) == "Did you mean 'y'?"
    assert check.nearest("Customer ID", ["custom", "customer_id"]) == "Did you mean 'customer_id'?"
    assert check.nearest("eppochs", ["epochs", "batch"]) == "Did you mean 'epochs'?"
    assert check.nearest("--", ["__", "x"]) == ""


def test_a_misspelt_label_is_corrected_or_the_columns_are_listed(told) -> None:  # type: ignore[no-untyped-def]
    assert "Did you mean 'y'?" in told(label="Y")
    assert "Did you mean 'y'?" in told(label="Y", command="init")
    assert "There are: 'a1', 'b1', 'id', 'y'." in told(label="outcome", command="init")


def test_init_says_what_is_nearly_the_id(told) -> None:  # type: ignore[no-untyped-def]
    said = told(a=A + "3,1,1\n", command="init")
    assert "'id' is nearly that, but a.csv has '3' in 2 rows" in said
    assert "--id id, with --duplicates first" in said
    assert "Or add --id a=" not in said
    a, b = ([f"{row},{1000 + i if i else name}" for i, row in enumerate(text.split())]
            for text, name in ((A, "key"), (B, "ref")))  # fmt: skip
    said = told(a="\n".join([*a, "3,1,1,1", ""]), b="\n".join([*b, ""]), command="init")
    assert "Or add --id a=key --id b=ref." in said
    said = told(a=A.replace("\n7,", "\n,"), command="init")
    assert "'id' is nearly that, but a.csv has none in 1 rows" in said


def test_few_labelled_rows_make_no_column_a_copy_of_the_label(told) -> None:  # type: ignore[no-untyped-def]
    few = table("id", "a1", "y", rows=[(i, i * 3 % 7, y(i) if i < 6 else "") for i in ROWS])
    said = told(a=few, command="init")
    assert "each class must have at least 5 rows" in said
    assert "feature" not in said


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"PAR1" + bytes(200), "table must be text, got a Parquet file. Name it .parquet."),
        (gzip.compress(A.encode()), "table must be text, got a gzip file. Name it .csv.gz."),
        (
            b"PK\x03\x04" + b"\x91" * 200,
            "got a zip archive or Excel workbook. Unpack it, or name it .xlsx.",
        ),
    ],
)
def test_what_is_no_text_is_named(told, raw: bytes, words: str) -> None:  # type: ignore[no-untyped-def]
    assert words in told(a=raw)


def test_a_table_without_a_line_of_names_is_told(told) -> None:  # type: ignore[no-untyped-def]
    said = told(a=A.partition("\n")[2])
    assert "got '0' twice: a file without a line of names?" in said


def test_a_small_class_says_of_how_many_rows(told) -> None:  # type: ignore[no-untyped-def]
    """Five rows in common of 80, and of all-different labels one each: the counts say which."""
    late = table("id", "b1", rows=[(i + 75, i % 5) for i in ROWS])
    assert "got 3 of 5, and 1 more." in told(b=late)
    other = table("id", "a1", "y", rows=[(i, i % 7, f"k{i}") for i in ROWS])
    assert "got 1 of 80, and 79 more." in told(a=other)
    assert "'0' 3, '1' 2. " in told(b=late, command="init")
    assert "at least 5 rows of the 5 shared" in told(b=late, command="init")
