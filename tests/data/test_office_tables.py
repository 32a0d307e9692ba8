"""Excel, Stata and SPSS: the same source as the CSV of the same table; damage is one error."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from user_tables import load_one, refused

from vflsec.data.limits import Limits
from vflsec.data.read_table import read_frame
from vflsec.data.source import Source
from vflsec.errors import DataError

N = 40
TABLE = pd.DataFrame(
    {
        "id": [f"c{i:03d}" for i in range(N)],
        "income": [1000 + 12.5 * i for i in range(N)],
        "city": [("Bern", "Genf", "Zug")[i % 3] for i in range(N)],
        "late": ["yes" if i % 4 == 0 else "no" for i in range(N)],
    }
)


def written(folder: Path, kind: str) -> Path:
    path = folder / f"bank{kind}"
    if kind == ".csv":
        TABLE.to_csv(path, index=False)
    elif kind == ".xlsx":
        pytest.importorskip("openpyxl")
        TABLE.to_excel(path, index=False)
    elif kind == ".dta":
        TABLE.astype({"city": "category"}).to_stata(path, write_index=False)
    else:
        pytest.importorskip("pyreadstat").write_sav(TABLE, path)
    return path


def loaded(path: Path) -> Source:
    return load_one(path, {"active": ["income"], "passive": ["city"]}, label="late", id="id")


@pytest.mark.parametrize("kind", [".xlsx", ".dta", ".sav"])
def test_it_says_what_the_csv_says(tmp_path: Path, kind: str) -> None:
    plain, other = loaded(written(tmp_path, ".csv")), loaded(written(tmp_path, kind))
    assert other.ids == plain.ids
    assert other.class_names == plain.class_names
    assert np.array_equal(other.y, plain.y)
    for party, data in plain.parties.items():
        assert np.array_equal(other.parties[party].values, data.values)
        assert other.parties[party].categories == data.categories


@pytest.mark.parametrize("kind", [".xlsx", ".dta", ".sav"])
def test_a_damaged_file_is_one_error(tmp_path: Path, kind: str) -> None:
    whole = written(tmp_path, kind).read_bytes()
    for raw in (whole[: len(whole) // 2], b"a,b\n1,2\n"):
        path = tmp_path / f"broken{kind}"
        path.write_bytes(raw)
        with refused(DataError, str(path)):
            read_frame(path)


def test_a_workbook_is_as_strict_as_a_csv(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    twice, bomb = tmp_path / "twice.xlsx", tmp_path / "bomb.xlsx"
    pd.DataFrame([["x", "x"], [1, 2]]).to_excel(twice, index=False, header=False)
    with pytest.raises(DataError):  # pandas would call the second one x.1
        read_frame(twice)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", b"0" * 10**6)
    with refused(DataError, "max_bytes"):
        read_frame(bomb, limits=Limits(bytes=10**5))


def test_german_numbers_of_a_workbook_are_numbers(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    path = tmp_path / "zahlen.xlsx"
    pd.DataFrame({"x": [f"{i},5" for i in range(N)], "y": range(N)}).to_excel(path, index=False)
    assert np.array_equal(read_frame(path).numbers("x")[0], np.arange(N) + 0.5)
