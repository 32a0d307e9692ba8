"""`vflsec init`: roles are read off the tables, and what is written checks and runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from vflsec import cli, load_scenario


def write(path: Path, **columns: object) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))  # type: ignore[call-overload]
    return path


def init(*args: object) -> int:
    return cli.main(["init", *(str(a) for a in args)])


@pytest.fixture
def world() -> dict[str, list[object]]:
    """120 people: two columns that tell of the label, and one that is the label in other words."""
    rng = np.random.default_rng(3)
    y = (rng.random(120) < 0.4).astype(int)
    x = rng.normal(size=(120, 3)) + y[:, None]
    return {
        "Customer_ID": [f"c{i}" for i in rng.permutation(120)],
        "income": x[:, 0].round(4).tolist(), "age": x[:, 1].round(2).tolist(),
        "score": x[:, 2].round(3).tolist(), "status": [("good", "lost", "late")[a + (a and i % 2)]
                                                       for i, a in enumerate(y.tolist())],
        "region": [("n", "s")[i % 2] for i in range(120)], "default": y.tolist(),
    }  # fmt: skip


def test_one_table_says_its_id_and_what_gives_the_label_away(
    world: dict[str, list[object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = write(tmp_path / "people.v1.csv", **world), tmp_path / "case.toml"
    assert init(table, "--label", "default", "--out", out) == 0
    data = load_scenario(out).root.data[0]
    assert (data.id, data.drop) == ("Customer_ID", ["status"])
    assert data.columns == {"active": ["income", "age"], "passive": ["score", "region"]}
    text = out.read_text(encoding="utf-8")
    assert "# Customer_ID has another value in every row, so it is taken as the id." in text
    assert "# Left out: every value goes with one default only, as its twin would." in text
    capsys.readouterr()
    assert cli.main(["check", str(out), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["plan"]["data"][0]["name"] == "people"


def test_what_is_given_is_not_guessed(world: dict[str, list[object]], tmp_path: Path) -> None:
    world["row_id"] = list(range(120))
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    assert init(table, "--label", "default", "--id", "row_id", "--out", out) == 0
    assert load_scenario(out).root.data[0].id == "row_id"
    assert "taken as the id" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "unique", "expected"),
    [("member", True, "member"), ("member", False, ""), ("ssn", True, "ssn")],
)
def test_several_tables_find_the_one_column_that_links_them(
    name: str, unique: bool, expected: str, world: dict[str, list[object]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    keys = world.pop("Customer_ID") if unique else [i // 2 for i in range(120)]
    left = write(tmp_path / "bank.csv", **{name: keys, "income": world["income"],
                                           "default": world["default"]})  # fmt: skip
    right = write(tmp_path / "shop.csv", **{name: keys, "region": world["region"]})
    out = tmp_path / "case.toml"
    code = init(left, right, "--label", "default", "--out", out)
    assert code == (0 if expected else 2)
    if expected:
        assert load_scenario(out).root.data[0].id == expected
    else:
        assert "several tables need --id" in capsys.readouterr().err
        assert not out.exists()


def test_what_is_written_runs(
    world: dict[str, list[object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a table to verdicts without editing anything, with fewer epochs and seeds."""
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    assert init(table, "--label", "default", "--out", out) == 0
    few = ("algorithm.epochs=1", "audit.seeds=2", "audit.references=[]",
           "audit.positive_control=false", "defense.0.strength=[5]")  # fmt: skip
    args = [x for one in few for x in ("--set", one)]
    code = cli.main(["audit", str(out), "--out", str(tmp_path / "o"), "-q", *args])
    assert code in (1, 3), capsys.readouterr().err
    summary = json.loads((tmp_path / "o" / "summary.json").read_text(encoding="utf-8"))
    assert {v["label"] for v in summary["gates"]} == {
        "advantage of any attack <= 0.1", "utility_drop <= 0.05",
    }  # fmt: skip
    attacked = {p["attack"] for p in summary["points"] if p["status"] == "ok"} - {""}
    assert attacked == {"model_completion", "norm", "direction"}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "label", "split", "dropped"),
    [
        (["adult/adult"], "label", "split", []),
        (["diabetes130/diabetes130"], "label", "split", ["readmitted"]),
        (["criteo_dac_10k/criteo_dac_10k"], "label", "split", []),
        (["covtype_20k/covtype_20k"], "label", "split", []),
        (["credit_default/fate_default_credit_hetero_guest",
          "credit_default/fate_default_credit_hetero_host"], "y", "", []),
    ],
    ids=["adult", "diabetes", "criteo", "covtype", "two tables"],
)  # fmt: skip
def test_real_tables(
    tables: list[str], label: str, split: str, dropped: list[str], tmp_path: Path,
    data_folder: Path,
) -> None:  # fmt: skip
    out = tmp_path / "case.toml"
    assert init(*(data_folder / f"{t}.csv.gz" for t in tables), "--label", label, "--out", out) == 0
    data = load_scenario(out).root.data[0]
    assert (data.id, data.split, data.drop) == ("id", split, dropped)
    assert cli.main(["check", str(out)]) == 0
