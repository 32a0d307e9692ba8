"""What cannot be right is doubted: values far away, parties of constants, floats as ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vflsec.cli import main
from vflsec.data.odd_values import describe_far_values
from vflsec.data.table_spec import TableSpec
from vflsec.data.table_warnings import find_weaknesses
from vflsec.data.tables import load_tables

N = 120
COLUMNS = {"a": ["z"], "b": ["x"]}


def column(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(50, 10, N)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1e30], "1 value (1e+30) far beyond all others"),
        ([999999, 999999], "2 values (999999) far beyond all others"),
        ([-999], "1 value (-999)"),
        ([1e30, 1e29], "2 values (1e+29, 1e+30)"),
        ([-99999, 99999], "2 values (-99999, 99999)"),
    ],
)
def test_values_far_beyond_all_others_are_said(values: list[float], said: str) -> None:
    x = column()
    x[: len(values)] = values
    assert describe_far_values(x).startswith(said)


@pytest.mark.parametrize(
    "values",
    [
        column(), np.arange(N), np.arange(N) % 2, (np.arange(N) == 7) * 1000,
        np.random.default_rng(1).lognormal(0, 1, N), np.random.default_rng(2).poisson(0.3, N),
        np.full(N, np.nan), np.full(N, 3), [1e300] * N, [0.0, 1.0, 2.0, 1e30],
    ],
)  # fmt: skip
def test_usual_values_are_not(values: np.ndarray) -> None:
    assert describe_far_values(np.asarray(values, dtype=float)) == ""


def test_a_huge_value_is_a_note_and_changes_no_number(tmp_path: Path) -> None:
    x = column().round(2)
    x[5] = 1e30
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": x, "z": np.arange(N) % 7, "y": np.arange(N) % 2}).to_csv(path, index=False)
    source = load_tables(path, TableSpec(label="y", columns=COLUMNS))
    (note,) = source.facts["notes"]
    assert "column 'x' is read as number, but has 1 value (1e+30) far beyond all others" in note
    assert source.parties["b"].values[:, 0].tolist() == x.tolist()
    quiet = load_tables(path, TableSpec(label="y", columns=COLUMNS, numeric=["x"]))
    assert quiet.facts["notes"] == []


@pytest.mark.parametrize(
    ("x", "w", "constant"),
    [
        ("5", "same", True), ("", "", True), ("", "same", True), (range(N), "same", False),
        ("5", ["same", None] * (N // 2), False), (["5", None] * (N // 2), "same", True),
    ],
)  # fmt: skip
def test_a_party_of_constants_is_called_that(
    x: object, w: object, constant: bool, tmp_path: Path
) -> None:
    table = {"x": x, "w": w, "z": np.arange(N) * 3 % 7, "y": np.arange(N) % 2}
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    spec = TableSpec(label="y", columns={"a": ["z"], "b": ["x", "w"]})
    said = [
        s
        for s in find_weaknesses(load_tables(tmp_path / "t.csv", spec))
        if "two different values" in s
    ]
    assert [s.split(":")[0] for s in said] == ["No column of b has two different values"] * constant


@pytest.mark.parametrize("text", [False, True])
def test_measurements_are_no_ids(
    text: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A unique float column, even one that is called like an id, links no rows."""
    for name, values in (("bank", column()), ("shop", column()[::-1])):
        frame = pd.DataFrame({"key": values, "x": np.arange(N) % 7})
        frame = frame.astype({"key": str}) if text else frame
        if name == "bank":
            frame["y"] = np.arange(N) % 2
        frame.to_parquet(tmp_path / f"{name}.parquet")
    files = [str(tmp_path / f"{name}.parquet") for name in ("bank", "shop")]
    out = str(tmp_path / "s.toml")
    assert main.main(["init", *files, "--label", "y", "--out", out]) == 2
    assert "several tables need --id" in capsys.readouterr().err
    assert main.main(["init", *files, "--label", "y", "--id", "key", "--out", out]) == 0


def test_floats_beyond_counting_are_not_taken_for_row_numbers(tmp_path: Path) -> None:
    x = [1e300 + i * 1e285 for i in range(N)]
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": x, "z": np.arange(N) % 7, "y": np.arange(N) % 2}).to_csv(path, index=False)
    source = load_tables(path, TableSpec(label="y", columns=COLUMNS))
    assert source.facts["notes"] == []
