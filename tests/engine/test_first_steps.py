"""What somebody sees who has two tables and has never read the manual."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from vflsec import load_scenario
from vflsec.cli import main
from vflsec.config.schema import SCHEMA_FILE
from vflsec.plan.values import DataInfo, Group
from vflsec.report import plan_table
from vflsec.specs import AttackSpec

COMMANDS = ["init", "check", "audit", "report", "gate", "tune", "compare", "attack", "merge",
            "list", "show", "new", "trace"]  # fmt: skip


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bank's table with the label, and a shop's."""
    ids = [f"c{i}" for i in range(120)]
    age = [i % 40 for i in range(120)]
    late = [int(i % 3 == 0) for i in range(120)]
    bank = {"customer": ids, "age": age, "sex": ["m", "f"] * 60, "late this month": late}
    pd.DataFrame(bank).to_csv(tmp_path / "bank.csv", index=False)
    pd.DataFrame({"customer": ids, "basket": [i % 7 for i in range(120)]}).to_csv(
        tmp_path / "shop.csv", index=False
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main.main(list(args))
    said: Any = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_names_commands_in_the_order_of_use_and_cuts_no_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """On 80 columns five of thirteen ended in "..."; `attack` came second."""
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, "--help")
    listed = out.split("Commands:")[1]
    assert re.findall(r"^  (\w+)  ", listed, re.M) == COMMANDS
    assert "..." not in listed
    assert "vflsec init bank.csv shop.csv --label COLUMN" in " ".join(listed.split())
    assert all(len(line) <= columns for line in out.splitlines())
    _, out, _ = run(capsys, "trace", "--help")
    assert "..." not in out.split("Commands:")[1]


def test_without_a_label_the_columns_are_listed(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "Missing option '--label'." to somebody who does not know the names by heart."""
    code, _, err = run(capsys, "init", "bank.csv", "shop.csv")
    assert code == 2
    assert err == (
        "error: init: --label must be the column to predict, got none. bank.csv has 'customer', "
        "'age', 'sex', 'late this month'. shop.csv has 'customer', 'basket'. Columns with "
        "two values: 'sex', 'late this month'.\n"
    )


def test_a_part_of_a_name_is_enough_to_be_told_it(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "init", "bank.csv", "shop.csv", "--label", "late")
    assert code == 2
    assert "Did you mean 'late this month'?" in err


def test_the_scenario_has_a_name_by_default_and_is_not_replaced(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("init", "bank.csv", "shop.csv", "--label", "late this month")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.endswith("Wrote scenario.toml. Next: vflsec check scenario.toml\n")
    assert load_scenario("scenario.toml").root.data[0].label == "late this month"
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "scenario.toml: exists already" in err


def test_the_editor_schema_is_named_relative_to_the_draft(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tables / "drafts").mkdir()
    words = ("init", "bank.csv", "shop.csv", "--label", "late this month")
    assert run(capsys, *words, "--out", "drafts/own.toml")[0] == 0
    draft = (tables / "drafts").rename(tables / "moved") / "own.toml"
    text = draft.read_text(encoding="utf-8")
    assert str(tables) not in text
    assert "://" not in text
    found = re.match(r"#:schema (\S+)\n", text)
    assert found
    schema = json.loads((draft.parent / found[1]).read_text(encoding="utf-8"))
    assert schema == json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.validate(tomllib.loads(text), schema)


def test_check_says_each_thing_once_and_what_comes_next(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The columns were listed as by init, eleven attacks three times, in one narrow column."""
    run(capsys, "init", "bank.csv", "shop.csv", "--label", "late this month")
    code, out, _ = run(capsys, "check", "scenario.toml", "--set", "audit.seeds=3")
    assert code == 0
    assert out.count("message_completion") == 1
    assert "  numbers: age; categories: sex\n" in out
    assert "  id: customer; label: late this month (2 classes)\n" in out
    assert "control: a planted leak" in out
    assert out.splitlines()[-1] == "Next: vflsec audit scenario.toml --set audit.seeds=3"
    assert len(out.splitlines()) < 40


def test_attacks_that_differ_by_training_are_told_apart() -> None:
    def group(role: str, algorithm: str, *names: str) -> Group:
        attacks = tuple(map(AttackSpec, names))
        return Group(role, DataInfo("d", {}, (), 2, 0, ""), (), attacks, title=algorithm)

    one, other = group("audit", "splitnn", "norm", "norm"), group("control", "splitnn", "norm")
    assert plan_table.list_attacks([one, other]) == ["attacks: norm"]
    two = [group("audit", "splitnn", "norm"), group("audit", "fedbcd", "direct"),
           group("control", "splitnn", "output")]  # fmt: skip
    assert plan_table.list_attacks(two) == [
        "attacks (audit of d by splitnn): norm", "attacks (audit of d by fedbcd): direct",
        "attacks (control): output",
    ]  # fmt: skip
    assert plan_table.list_attacks([group("reference", "local")]) == ["attacks: none"]


@pytest.mark.parametrize("verb", ["audit", "check"])
def test_a_table_in_place_of_a_scenario_is_called_one(
    tables: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """It was invalid TOML: "Expected '=' after a key"."""
    code, _, err = run(capsys, verb, "bank.csv")
    assert code == 2
    assert err == ("error: bank.csv: is a table, not a scenario. Run `vflsec init`.\n")


def test_a_row_number_of_an_export_is_doubted(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pandas writes an index with a name into Parquet as a column; it was a feature, as any id."""
    shop = pd.read_csv("shop.csv").assign(row=range(500, 620), half=0.5)
    shop.assign(some=[*range(119), 118]).to_parquet("shop.parquet")
    code, out, _ = run(capsys, "init", "bank.csv", "shop.parquet", "--label", "late this month")
    assert code == 0
    assert out.count("an id?") == 1
    assert "row: 120 different whole numbers in 120 rows: an id?" in " ".join(out.split())
    code, out, _ = run(
        capsys, "init", "bank.csv", "shop.parquet", "--label", "late this month", "--drop", "row",
        "--drop", "half", "--force",
    )  # fmt: skip
    assert code == 0
    assert "an id?" not in out
    assert tomllib.loads(Path("scenario.toml").read_text())["data"]["drop"] == ["row", "half"]


def test_a_new_attack_outside_of_a_package_can_be_registered_as_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It told of YOUR_PACKAGE to somebody who has none."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "new", "attack", "tail_score")
    assert code == 0
    project = tomllib.loads(out[out.index("[build-system]") :])
    assert project["tool"]["setuptools"] == {"py-modules": ["tail_score"]}
    points = project["project"]["entry-points"]
    assert points == {"vflsec.attacks": {"tail_score": "tail_score"}}
    _, out, _ = run(capsys, "new", "defense", "clip_more")
    both = out[out.index("[build-system]") :]
    points["vflsec.defenses"] = {"clip_more": "clip_more"}
    project = tomllib.loads(both)  # of both, for the folder has one
    assert project["project"]["entry-points"] == points
    assert project["tool"]["setuptools"] == {"py-modules": ["clip_more", "tail_score"]}
    (tmp_path / "pyproject.toml").write_text(both)
    _, out, _ = run(capsys, "new", "attack", "alike_rows")
    points["vflsec.attacks"]["alike_rows"] = "alike_rows"
    changed = tomllib.loads(out[out.index("[tool.setuptools]") :])
    assert changed["project"] == {"entry-points": points}
    assert len(changed["tool"]["setuptools"]["py-modules"]) == 3
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    _, out, _ = run(capsys, "new", "defense", "fade_out")
    assert 'fade_out = "YOUR_PACKAGE.fade_out"' in out
