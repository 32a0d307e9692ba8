"""What people reported in public about tables of several parties; sources in README.md here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vflsec.cli import main
from vflsec.data.source import Source
from vflsec.data.table_spec import TableSpec
from vflsec.data.tables import load_tables
from vflsec.errors import DataError

N = 60
X = np.random.default_rng(0).normal(size=(N, 2)).round(6)
Y = np.arange(N) * np.arange(N) % 3 == 0


def tables(
    folder: Path, guest: Any, host: Any, kinds: tuple[str, str] = ("csv", "csv"), label: Any = None
) -> dict[str, Path]:
    """Both parties' tables; `guest` and `host` are their ids."""
    found = {}
    for i, (name, ids) in enumerate((("guest", guest), ("host", host))):
        frame = pd.DataFrame({"id": ids, f"x{i}": X[:, i]})
        if not i:
            frame["y"] = Y.astype(int) if label is None else label
        found[name] = folder / f"{name}.{kinds[i]}"
        getattr(frame, f"to_{kinds[i]}")(found[name], index=False)
    return found


def load(files: dict[str, Path], **how: Any) -> Source:
    return load_tables(files, TableSpec(id="id", label="y", **how))


def overlap(source: Source) -> int:
    return int(source.facts["overlap"])  # type: ignore[call-overload]


NUMBERS = np.arange(1000, 1000 + N)
LONG = [str(10**19 + 124420001034504343 + i) for i in range(N)]


@pytest.mark.parametrize(
    ("guest", "host", "kinds"),
    [
        (LONG, LONG, ("csv", "csv")),
        (LONG, LONG, ("csv", "parquet")),
        (NUMBERS, NUMBERS.astype(str), ("parquet", "parquet")),
        (NUMBERS, NUMBERS.astype(float), ("csv", "csv")),
        (NUMBERS, pd.array(NUMBERS, dtype="Int64"), ("parquet", "parquet")),
    ],
    ids=["pandas 18622", "pandas 18622, typed", "FATE 4216", "pandas 8596", "pandas 46178"],
)
def test_ids_of_other_types_match(
    guest: Any, host: Any, kinds: tuple[str, str], tmp_path: Path
) -> None:
    assert overlap(load(tables(tmp_path, guest, host, kinds))) == N


def test_rows_in_another_order_are_the_same_data(tmp_path: Path) -> None:
    """PyVertical 7 and 34: jumbled tables, which training in file order would not notice."""
    plain = load(tables(tmp_path, NUMBERS, NUMBERS))
    (host := pd.read_csv(tmp_path / "host.csv")).sample(frac=1, random_state=1).to_csv(
        tmp_path / "host.csv", index=False
    )
    jumbled = load({p: tmp_path / f"{p}.csv" for p in ("guest", "host")})
    of = jumbled.parties["host"]
    assert overlap(jumbled) == N
    assert not np.array_equal(of.values, host[["x1"]])
    assert np.array_equal(of.values[np.argsort(of.rows)], plain.parties["host"].values)


def test_zeros_that_a_reader_stripped_are_named_and_matched(tmp_path: Path) -> None:
    """PyNIDM 84: pandas drops the zeros at the front of subject numbers."""
    files = tables(tmp_path, [f"{i:06d}" for i in NUMBERS], NUMBERS)
    with pytest.raises(DataError, match="zeros"):
        load(files)
    assert overlap(load(files, id_match=["zeros"])) == N


def test_a_header_in_quotes_is_the_same_header(tmp_path: Path) -> None:
    """SecretFlow 1210: columns were not found where a file quotes their names."""
    files = tables(tmp_path, LONG, LONG)
    text = files["host"].read_text()
    files["host"].write_text(text.replace("id,x1", '"id","x1"', 1))
    assert overlap(load(files)) == N


@pytest.mark.parametrize("text", ["", "id,x1\n"], ids=["SecretFlow 411", "header only"])
def test_an_empty_intersection_file_is_one_error(text: str, tmp_path: Path) -> None:
    files = tables(tmp_path, LONG, LONG)
    files["host"].write_text(text)
    with pytest.raises(DataError, match=r"host\.csv"):
        load(files)


def test_ids_of_another_kind_are_shown_side_by_side(tmp_path: Path) -> None:
    """FATE 4626: of several id columns another one was taken, and nothing was in common."""
    with pytest.raises(DataError, match=r"no common id .*'1000'.*'c0'"):
        load(tables(tmp_path, NUMBERS, [f"c{i}" for i in range(N)]))


def test_parties_that_share_the_id_alone_are_joined(tmp_path: Path) -> None:
    """FATE 4732: may two tables have nothing but the id in common?"""
    files = tables(tmp_path, NUMBERS, NUMBERS + N // 2)
    source = load(files)
    assert (overlap(source), len(source.y)) == (N // 2, N + N // 2)


def test_a_missing_id_is_refused_with_its_row(tmp_path: Path) -> None:
    """pandas 46178: a key column with gaps."""
    ids = pd.array(NUMBERS, dtype="Int64")
    ids[3] = pd.NA
    with pytest.raises(DataError, match="row 5"):
        load(tables(tmp_path, NUMBERS, ids))


@pytest.mark.parametrize(
    "label", [np.where(Y, 1, -1), np.where(Y, 1.0, 0.0), np.where(Y, "good", "bad")],
    ids=["FATE 3975, -1 and 1", "1.0 and 0.0", "text"],
)  # fmt: skip
def test_labels_of_any_type_are_classes(label: Any, tmp_path: Path) -> None:
    source = load(tables(tmp_path, NUMBERS, NUMBERS, label=label))
    assert len(source.class_names) == 2
    assert sorted(np.bincount(source.y)) == sorted([int(Y.sum()), N - int(Y.sum())])


def test_text_and_gaps_are_read_and_a_code_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FATE 4707 (text columns) and 496 (missing values, often written as a number)."""
    files = tables(tmp_path, NUMBERS, NUMBERS)
    host = pd.read_csv(files["host"])
    host["town"] = np.where(NUMBERS % 3 == 0, "A", "B")
    host.loc[:5, "x1"], host.loc[6:8, "town"] = -9999, None
    host.to_csv(files["host"], index=False)
    out = str(tmp_path / "s.toml")
    command = ["init", *map(str, files.values()), "--label", "y", "--id", "id", "--out", out]
    assert main.main(command) == 0
    assert "--missing x1=-9999" in " ".join(capsys.readouterr().out.split())
    assert main.main([*command, "--force", "--missing", "x1=-9999"]) == 0
    source = load(files, missing={"x1": ["-9999"]})
    assert np.isnan(source.parties["host"].values).sum(0).tolist() == [6, 3]
