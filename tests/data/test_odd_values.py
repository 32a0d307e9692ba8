"""What cannot be right is doubted: values far away, parties of constants, floats as ids."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import Cli
from user_tables import load_one, write

from vflsec.cli import main
from vflsec.data.odd_values import describe_odd_values
from vflsec.data.prepare import make_task
from vflsec.data.table_warnings import find_weaknesses
from vflsec.errors import ConfigError, DataError

N = 120
COLUMNS = {"a": ["z"], "b": ["x"]}


def column(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(50, 10, N)


def table(x: Any) -> dict[str, Any]:
    """A column beside another one and a label that have nothing to do with it."""
    return {"x": x, "z": np.arange(N) * 3 % 7, "y": np.arange(N) % 2}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1e30], "1 value (1e+30) far beyond all others"),
        ([999999, 999999], "2 values (999999) far beyond all others"),
        ([-999], "1 value (-999)"),
        ([1e30, 1e29], "2 values (1e+29, 1e+30)"),
        ([-99999, 99999], "2 values (-99999, 99999)"),
        ([1e30, 2e30, 3e30, 4e30], "4 values (1e+30, 2e+30, 3e+30, ...) far beyond all others"),
        ([-1, -1], "2 values (-1) apart from all others"),
        ([99, 99], "2 values (99) apart from all others"),
    ],
)
def test_values_far_beyond_all_others_are_said(values: list[float], said: str) -> None:
    x = column()
    x[: len(values)] = values
    assert describe_odd_values("x", x).startswith(said)


@pytest.mark.parametrize(
    "values",
    [
        column(), np.arange(N), np.arange(N) % 2, (np.arange(N) == 7) * 1000,
        np.random.default_rng(1).lognormal(0, 1, N), np.random.default_rng(2).poisson(0.3, N),
        np.full(N, np.nan), np.full(N, 3), [1e300] * N, [0.0, 1.0, 2.0, 1e30],
    ],
)  # fmt: skip
def test_usual_values_are_not(values: np.ndarray) -> None:
    assert describe_odd_values("x", np.asarray(values, dtype=float)) == ""


def test_99_among_ages_is_said_if_as_common_as_an_age() -> None:
    """An old person is one; a code for "not asked" stands in many rows, apart from all others."""
    ages = np.random.default_rng(0).integers(18, 91, 400).astype(float)
    few, many = ages.copy(), ages.copy()
    few[0], many[:12] = 99, 99
    assert describe_odd_values("age", few) == ""
    assert describe_odd_values("age", many).startswith("12 values (99) apart from all others")
    low, code = ages.clip(0), ages.copy()
    low[:12], code[:12] = 0, -9
    assert describe_odd_values("age", low) == ""
    assert describe_odd_values("age", code).startswith("12 values (-9)")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_line_that_is_proposed_leaves_codes_empty(kind: str, tmp_path: Path) -> None:
    """What `init` and `check` say is pasted; then nothing is doubted, and the gaps are counted."""
    x = column().round(1)
    x[:9], path = -999, tmp_path / f"t.{kind}"
    frame = pd.DataFrame({"x y": x, "z": np.arange(N) % 7, "w": "a", "y": np.arange(N) % 2})
    frame.loc[3:5, "w"] = "unknown"
    write(path, frame)
    out = str(tmp_path / "s.toml")
    init = ["init", str(path), "--label", "y", "--out", out]
    assert main.main(init) == 0
    (why,) = load_one(path, {"a": ["z"], "b": ["x y"]}).facts.notes
    (asked,) = re.findall(r"add `(.+?)` to your", why)
    assert shlex.split(asked) == ["--missing", "x y=-999"]
    (line,) = re.findall(r"(missing = .+?) under", why)
    missing = tomllib.loads(line)["missing"] | {"b.w": ["unknown"]}
    source = load_one(path, {"a": ["z"], "b": ["x y", "w"]}, missing=missing)
    assert source.facts.notes == []
    values = source.parties["b"].values
    assert np.isnan(values).sum(0).tolist() == [9, 3]
    assert values[9:, 0].tolist() == x[9:].tolist()
    assert main.main([*init, "--force", *shlex.split(asked), "--missing", "w=unknown"]) == 0
    written = tomllib.loads(Path(out).read_text())["data"]
    assert written["missing"] == {"x y": ["-999"], "w": ["unknown"]}


@pytest.mark.parametrize("missing", [{"q": ["1"]}, {"x": ["-998"]}])
def test_what_is_said_to_be_missing_must_be_there(
    missing: dict[str, list[str]], tmp_path: Path
) -> None:
    path = write(tmp_path / "t.csv", table(column()))
    with pytest.raises((ConfigError, DataError)):
        load_one(path, COLUMNS, missing=missing)


def test_a_huge_value_is_a_note_and_changes_no_number(tmp_path: Path) -> None:
    x = column().round(2)
    x[5] = 1e30
    path = write(tmp_path / "t.csv", table(x))
    source = load_one(path, COLUMNS)
    (note,) = source.facts.notes
    assert "column 'x' is read as number, but has 1 value (1e+30) far beyond all others" in note
    assert source.parties["b"].values[:, 0].tolist() == x.tolist()
    assert load_one(path, COLUMNS, numeric=["x"]).facts.notes == []


@pytest.mark.parametrize("task", ["regression", "counts"])
def test_a_huge_label_is_a_note_and_can_be_left_empty(task: str, tmp_path: Path) -> None:
    """Beside it all others are one: nothing is learnt, and nothing said so."""
    y = column().round()
    path = write(tmp_path / "t.csv", table(column()) | {"y": np.where(np.arange(N) == 5, 1e12, y)})
    (note,) = load_one(path, COLUMNS, task=task).facts.notes
    (line,) = re.findall(r"(missing = .+?) under", note)
    source = load_one(path, COLUMNS, task=task, **tomllib.loads(line))
    assert (source.facts.notes, source.facts.unlabelled) == ([], 1)
    assert source.y[5] == -1


@pytest.mark.parametrize("far", [[1e12], [1e12, -1e12], [1e300]])
@pytest.mark.parametrize("of", ["x", "y"])
def test_values_that_leave_nothing_of_all_others_are_refused(
    of: str, far: list[float], tmp_path: Path
) -> None:
    """By what they do, whichever rows a seed trains on; what is proposed mends it."""
    x = column()
    x[: len(far)] = far
    made = table(x) if of == "x" else table(column()) | {"y": x}
    path = write(tmp_path / "t.csv", made)
    task = {"task": "regression"} if of == "y" else {}
    source = load_one(path, COLUMNS, **task)
    for seed in range(3):
        with pytest.raises(DataError, match=r"within .* standard deviations") as found:
            make_task(source, seed)
    (line,) = re.findall(r"(missing = .+?) under", str(found.value))
    mended = load_one(path, COLUMNS, **task, **tomllib.loads(line))
    assert float(make_task(mended, 0).x["b"].std()) == pytest.approx(1, abs=0.3)
    if of == "x":
        assert float(make_task(source, 0, scale="rank").x["b"].std()) == pytest.approx(1, abs=0.3)


NORMAL = np.random.default_rng(0).standard_normal(4000)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).standard_cauchy(N),
        np.random.default_rng(0).standard_cauchy(N) * 1000 ** (np.arange(N) / N),
        1 / (1 + np.exp(-30 * (NORMAL - 1.5))), np.log1p(np.exp(30 * (NORMAL - 1.5))),
        np.exp(9 * NORMAL), np.abs(NORMAL) ** -2.0,
    ],
)  # fmt: skip
def test_long_tails_are_neither_refused_nor_doubted(x: np.ndarray, tmp_path: Path) -> None:
    """Scores of a model are near 0 in most rows and mean the more in others; no gap parts them."""
    made = {"x": x, "z": np.arange(len(x)) * 3 % 7, "y": np.arange(len(x)) % 2}
    source = load_one(write(tmp_path / "t.csv", made), COLUMNS)
    make_task(source, 0)
    assert describe_odd_values("x", x) == ""


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
    path = write(tmp_path / "t.csv", table(x) | {"w": w})
    source = load_one(path, {"a": ["z"], "b": ["x", "w"]})
    said = [s for s in find_weaknesses(source) if "two different values" in s]
    assert [s.split(".")[0] for s in said] == ["No column of b has two different values"] * constant


def test_a_column_of_one_value_is_named_with_what_leaves_it_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table(np.arange(N) % 5) | {"w": 7, "v": ""})
    (said,) = find_weaknesses(load_one(path, {"a": ["z"], "b": ["x", "w", "v"]}))
    assert said.startswith("w, v of b have one value, or none, in all rows")
    assert '["w", "v"]' in said
    assert "--drop w --drop v" in said


ACCOUNTS = np.random.default_rng(5).integers(10**9, 10**10, N)
IDS = {
    "row numbers": (np.arange(N) + 3, True),
    "account numbers": (ACCOUNTS, True),
    "one of them twice": (np.append(ACCOUNTS[:-1], ACCOUNTS[0]), True),
    "some missing": (np.append(ACCOUNTS[:-5].astype(float), [np.nan] * 5), True),
    "beyond exact floats": (ACCOUNTS.astype(float) * 1e9, True),
    "a column of a person": (ACCOUNTS[np.arange(N) // 2], False),
    "amounts": (np.append(ACCOUNTS[:-1] % np.logspace(2, 6, N - 1).astype(int), 5), False),
    "measurements": (column(), False),
    "dates as numbers of few days": (20240101 + np.arange(N) % 28, False),
}


@pytest.mark.parametrize("case", IDS)
def test_account_numbers_stored_as_numbers_are_doubted(case: str, tmp_path: Path) -> None:
    """They name a person, and were features without a word unless every row had another."""
    x, doubted = IDS[case]
    path = write(tmp_path / "t.parquet", table(x))
    asked = [n for n in load_one(path, COLUMNS).facts.notes if "--drop x" in n]
    assert len(asked) == doubted
    assert not load_one(path, COLUMNS, numeric=["x"]).facts.notes


@pytest.mark.parametrize("text", [False, True])
def test_measurements_are_no_ids(text: bool, tmp_path: Path, cli: Cli) -> None:
    """A unique float column, even one that is called like an id, links no rows."""
    for name, values in (("bank", column()), ("shop", column()[::-1])):
        frame = pd.DataFrame({"key": values, "x": np.arange(N) % 7})
        frame = frame.astype({"key": str}) if text else frame
        if name == "bank":
            frame["y"] = np.arange(N) % 2
        frame.to_parquet(tmp_path / f"{name}.parquet")
    files = [str(tmp_path / f"{name}.parquet") for name in ("bank", "shop")]
    out = str(tmp_path / "s.toml")
    assert "needs --id" in cli.refuses("init", *files, "--label", "y", "--out", out)
    assert cli("init", *files, "--label", "y", "--id", "key", "--out", out) == 0


def test_floats_beyond_counting_are_not_taken_for_row_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table([1e300 + i * 1e285 for i in range(N)]))
    assert load_one(path, COLUMNS).facts.notes == []
