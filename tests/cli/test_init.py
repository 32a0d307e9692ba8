"""`vflsec init`: roles are read off the tables, and what is written checks and runs."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import Cli

from vflsec import load_scenario
from vflsec.cli import draft_text, main
from vflsec.cli.draft import Wishes, draft_scenario
from vflsec.cli.draft_systems import SYSTEMS
from vflsec.config.sections import Data
from vflsec.data.load import load_source
from vflsec.engine.dry_run import make_plan
from vflsec.plugins import registry
from vflsec.report.exports import load_summary

WHOLE = [
    "zero_pattern", "dictionary", "message_completion", "gradient_completion", "joint_completion",
]  # fmt: skip
World = dict[str, list[object]]
BY_THE_LABEL_PARTY = ("embedding_inversion", "attribute", "property")


def write(path: Path, **columns: object) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))  # type: ignore[call-overload]
    return path


def init(*args: object) -> int:
    return main.main(["init", *(str(a) for a in args)])


def draft(world: World, folder: Path, *words: object) -> Path:
    """The scenario that is drafted for a table of these people."""
    table, out = write(folder / "people.csv", **world), folder / "case.toml"
    assert init(table, "--label", "default", *words, "--out", out) == 0
    return out


@pytest.fixture
def world() -> World:
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
    world: World, tmp_path: Path, cli: Cli
) -> None:
    table, out = write(tmp_path / "people.v1.csv", **world), tmp_path / "case.toml"
    assert init(table, "--label", "default", "--out", out) == 0
    data = load_scenario(out).root.data[0]
    assert (data.id, data.drop) == ("Customer_ID", ["status"])
    assert data.columns == {"active": ["income", "age"], "passive": ["score", "region"]}
    text = out.read_text(encoding="utf-8")
    assert "# Found: its values are unique." in text
    assert "# Left out: copies of default, and what you named." in text
    (found,) = json.loads(cli.says("check", out, "--format", "json"))
    assert found["plan"]["data"][0]["name"] == "people"


def test_whole_numbers_that_may_be_codes_are_written_as_a_comment_that_can_be_used(
    world: World, tmp_path: Path, cli: Cli
) -> None:
    """A region of 1 to 5 was a size; children, amounts and what is declared are not asked about."""
    rng, out = np.random.default_rng(5), tmp_path / "case.toml"
    del world["status"]
    world |= {
        "kind": rng.integers(1, 6, 120).tolist(), "children": rng.integers(0, 5, 120).tolist(),
        "zip": rng.choice(rng.integers(10000, 99999, 30), 120).tolist(),
        "amount": rng.choice(rng.integers(1, 9999, 30), 120).tolist(),
    }  # fmt: skip
    table = write(tmp_path / "people.csv", **world)
    assert init(table, "--label", "default", "--out", out) == 0
    text = out.read_text(encoding="utf-8")
    (line,) = re.findall(r"^# (categorical = .+)$", text, re.M)
    assert tomllib.loads(line)["categorical"] == ["kind", "zip"]
    out.write_text(text.replace(f"# {line}", line), encoding="utf-8")
    section = load_scenario(out).root.data[0].model_dump(exclude_unset=True, exclude={"params"})
    parties = load_source(section, 0, tmp_path).parties.values()
    coded = {n for p in parties for n, c in zip(p.names, p.categories, strict=True) if c}
    assert coded == {"kind", "zip", "region"}
    cli.says("check", out)
    assert init(table, "--label", "default", "--categorical", "zip", "--force", "--out", out) == 0
    assert not re.findall(r"^# categorical = .*kind", out.read_text(encoding="utf-8"), re.M)


def test_what_is_given_is_not_guessed(world: World, tmp_path: Path) -> None:
    world["row_id"] = list(range(120))
    out = draft(world, tmp_path, "--id", "row_id")
    assert load_scenario(out).root.data[0].id == "row_id"
    assert "# Found" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "unique", "expected"),
    [("member", True, "member"), ("member", False, ""), ("ssn", True, "ssn")],
)
def test_several_tables_find_the_one_column_that_links_them(
    name: str, unique: bool, expected: str, world: World, tmp_path: Path, cli: Cli
) -> None:
    keys = world.pop("Customer_ID") if unique else [i // 2 for i in range(120)]
    left = write(tmp_path / "bank.csv", **{name: keys, "income": world["income"],
                                           "default": world["default"]})  # fmt: skip
    right = write(tmp_path / "shop.csv", **{name: keys, "region": world["region"]})
    out = tmp_path / "case.toml"
    assert cli("init", left, right, "--label", "default", "--out", out) == (0 if expected else 2)
    if expected:
        assert load_scenario(out).root.data[0].id == expected
    else:
        assert "needs --id" in cli.err
        assert not out.exists()


@pytest.mark.slow
def test_what_is_written_runs(world: World, tmp_path: Path, cli: Cli) -> None:
    """From a table to verdicts without editing anything, with fewer epochs and seeds."""
    out = draft(world, tmp_path)
    few = ("algorithm.epochs=1", "audit.seeds=1", "audit.references=[]",
           "audit.positive_control=false", "defense.0.strength=[0,5]")  # fmt: skip
    args = [x for one in few for x in ("--set", one)]
    assert cli("audit", out, "--out", tmp_path / "o", "-q", *args) in (1, 3), cli.err
    summary = load_summary(tmp_path / "o")
    assert {v["label"] for v in summary["gates"]} == {
        "advantage of any label attack <= 0.1", "utility_drop <= 0.05",
    }  # fmt: skip
    attacked = {p["attack"] for p in summary["points"] if p["status"] == "ok"} - {""}
    assert attacked == {
        "model_completion(columns=True)", "norm", "direction", "similarity", "message_completion",
        "dictionary", "gradient_completion", "joint_completion", "embedding_inversion",
        "attribute(column=*)", "property(column=region)",  # which column, in every report
    }  # fmt: skip
    (why,) = {p["reason"] for p in summary["points"] if p["attack"] == "zero_pattern"}
    assert why.startswith("no zeros, signs or visits")
    judged = [v for v in summary["gates"] if v["label"].startswith("advantage")]
    assert {v["adversary"] for v in judged} == {"passive"}


VOTES, SCORES = ("leaf_vote", "leaf_vote"), "equation_solving"
TREES = ("leaf_columns", "leaf_columns")


@pytest.mark.parametrize(("algorithm", "label", "attacks", "defense"), [
    ("secureboost", ["default"], [*VOTES, *TREES], "local_trees"),
    ("secureboost", ["rare"], [*VOTES, "leaf_counts", *TREES], "local_trees"),
    ("secureboost", ["default", "late"], [*VOTES, *TREES], "local_trees"),
    ("vertical_glm", ["default"], ["glm_gradient", SCORES], "label_dp"),
    ("vertical_glm", ["default", "late"], ["glm_gradient", SCORES], "min_batch"),
    ("vertical_glm", ["income"], ["glm_gradient", SCORES], "min_batch"),
    ("scorecard", ["default"], ["woe_inversion", "glm_gradient", SCORES], "label_dp"),
])  # fmt: skip
def test_systems_that_are_no_networks_get_what_reads_their_messages(
    algorithm: str, label: list[str], attacks: list[str], defense: str,
    world: World, tmp_path: Path, cli: Cli,
) -> None:  # fmt: skip
    """Nothing of the draft is refused, every gate is about the defense that is swept, and what
    tells classes by their sizes is drafted where these differ, for an attacker without labels.
    """
    world["late"] = [i // 2 % 2 for i in range(120)]
    world["rare"] = [int(i % 4 == 0) for i in range(120)]
    world.pop("status")
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    args = [x for one in label for x in ("--label", one)]
    assert init(table, *args, "--algorithm", algorithm, "--out", out) == 0
    root = load_scenario(out).root
    assert root.algorithm[0].name == algorithm
    assert [a.name for a in root.attack] == attacks
    assert {a.known_rows for a in root.attack if a.name == "leaf_counts"} <= {0}
    whom = {a.adversary for g in make_plan(load_scenario(out)).groups for a in g.attacks
            if a.name == SCORES and g.role == "audit"}  # fmt: skip
    assert whom == ({(root.data[0].active,)} if SCORES in attacks else set())
    (swept,) = root.defense
    assert swept.name == defense
    assert {(g.defense, g.strength) for g in root.gate} == {(defense, max(swept.strength or []))}
    (found,) = json.loads(cli.says("check", out, "--format", "json"))
    refused = {r["attack"]["name"] for r in found["plan"]["refused"]}
    assert not refused
    noted = {"gradient_pair", "bin_sums"} if algorithm == "secureboost" else set()
    assert find_commented(out) == noted


def find_commented(path: Path) -> set[str]:
    """The attacks that stand in a draft as a comment."""
    return set(re.findall(r'^# \[\[attack\]\]\n# name = "(\w+)"', path.read_text("utf-8"), re.M))


@pytest.mark.parametrize(("profile", "coded", "noted"), [
    ("fate-2", False, {"gradient_pair"}), ("fate-2", True, {"gradient_pair", "bin_sums"}),
    ("xgboost-open", False, {"bin_sums"}),
])  # fmt: skip
def test_what_cannot_run_on_the_tables_is_a_comment(
    profile: str, coded: bool, noted: set[str], world: World, tmp_path: Path
) -> None:
    """Pairs were to be read where they are encrypted, and sums where columns hold text."""
    kind = [f"k{i % 3}" for i in range(120)] if coded else world["income"]
    bank, shop = ({"id": [f"c{i}" for i in range(120)]} for _ in range(2))
    tables = [write(tmp_path / "bank.csv", **bank, default=world["default"], age=world["income"]),
              write(tmp_path / "shop.csv", **shop, kind=kind)]  # fmt: skip
    wishes = Wishes("default", algorithm="secureboost", params={"profile": profile})
    out = tmp_path / "case.toml"
    out.write_text(draft_scenario(tables, wishes, tmp_path).text, "utf-8")
    assert find_commented(out) == noted
    named = {a.name for a in load_scenario(out).root.attack}
    assert named == {"leaf_vote", "leaf_columns", "gradient_pair", "bin_sums"} - noted


@pytest.mark.parametrize(("algorithm", "drafted"), [
    ("vertical_glm", [(SCORES, "")]),
    ("secureboost", [("leaf_columns", "active"), ("leaf_columns", "passive")]),
])  # fmt: skip
def test_columns_of_several_parties_are_attacked_by_what_can_read_them(
    algorithm: str, drafted: list[tuple[str, str]], world: World, tmp_path: Path, cli: Cli
) -> None:
    """Sums are read of one passive party alone, scores and sides of splits of any number."""
    ids = {"id": [f"c{i}" for i in range(120)]}
    bank = write(tmp_path / "bank.csv", **ids, default=world["default"], income=world["income"])
    others = [write(tmp_path / f"{n}.csv", **ids, **{n: world["income"]}) for n in ("shop", "tel")]
    out = tmp_path / "case.toml"
    args = ("--label", "default", "--algorithm", algorithm, "--out", out)
    assert init(bank, *others, *args) == 0
    named = [(a.name, a.adversary) for a in load_scenario(out).root.attack if a.aux_rows]
    assert named == drafted
    (found,) = json.loads(cli.says("check", out, "--format", "json"))
    assert not found["plan"]["refused"]


def test_a_system_that_is_not_drafted_is_refused(world: World, tmp_path: Path, cli: Cli) -> None:
    table = write(tmp_path / "people.csv", **world)
    said = cli.refuses("init", table, "--label", "default", "--algorithm", "secure_boost")
    said = " ".join(said.split())
    assert "--algorithm must be one of 'splitnn', 'secureboost', 'vertical_glm', 'score" in said
    assert "Did you mean 'secureboost'?" in said
    out = tmp_path / "case.toml"
    assert "scorecard: the label must be a class, got 'a quantity'" in cli.refuses(
        "init", table, "--label", "income", "--algorithm", "scorecard", "--out", out
    )
    assert not out.exists()


def test_attacks_on_one_column_are_drafted_against_each_other_party(
    world: World, tmp_path: Path
) -> None:
    """They looked at the first of the other parties, whatever a second one's embeddings told."""
    n = len(next(iter(world.values())))
    rows = {"id": [f"r{k}" for k in range(n)]}
    files = [write(tmp_path / "bank.csv", **rows, a=[k % 7 for k in range(n)],
                   label=[k % 2 for k in range(n)])]  # fmt: skip
    for name in ("shop", "mill"):
        files.append(write(tmp_path / f"{name}.csv", **rows, **{name: [k % 5 for k in range(n)]}))
    out = tmp_path / "s.toml"
    assert init(*files, "--id", "id", "--label", "label", "--out", out) == 0
    attacks = make_plan(load_scenario(out)).groups[0].attacks
    asked = [(a.name, a.victim) for a in attacks if a.adversary == ("bank",)]
    one = [(name, p) for name in ("attribute", "property") for p in ("shop", "mill")]
    assert asked == [("embedding_inversion", ""), *one]


def data_of(out: Path) -> Data:
    return load_scenario(out).root.data[0]


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two tables whose ids are called otherwise; 40 people are in both."""
    ids = [f"c{i}" for i in range(60)]
    y = [i % 2 for i in range(60)]
    left = write(tmp_path / "bank.csv", customer_id=ids, income=[i * 0.5 for i in range(60)], y=y)
    right = write(tmp_path / "shop.csv", **{"Customer ID": ids[20:], "region": ["n", "s"] * 20})
    return [left, right]


def test_ids_that_are_called_otherwise_are_suggested_and_then_read(
    pair: list[Path], tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "case.toml"
    assert init(*pair, "--label", "y", "--out", tmp_path / "found.toml") == 0
    assert data_of(tmp_path / "found.toml").id == {"bank": "customer_id", "shop": "Customer ID"}
    said = "# Found: its values are unique."
    assert said in (tmp_path / "found.toml").read_text(encoding="utf-8")
    assert '--id bank=customer_id --id shop="Customer ID".' in cli.refuses(
        "init", *pair, "--label", "y", "--id", "customer_id", "--out", out
    )
    assert 'got none for shop. Add --id shop="Customer ID".' in cli.refuses(
        "init", *pair, "--label", "y", "--id", "bank=customer_id", "--out", out
    )
    ids = ("--id", "bank=customer_id", "--id", "shop=Customer ID")
    said = cli.says("init", *pair, "--label", "y", *ids, "--out", out)
    assert data_of(out).id == {"bank": "customer_id", "shop": "Customer ID"}
    lines = [line.split() for line in said.splitlines()]
    assert ["party", "rows", "shared", "with", "a", "label", "unmatched"] in lines
    assert ["bank", "60", "40", "40", "20"] in lines
    assert ["shop", "40", "40", "40", "0"] in lines
    assert ["income", "feature", "number", "60"] in lines
    lines = [line.split() for line in cli.says("check", out).splitlines()]
    assert ["bank", "60", "40", "40", "20"] in lines


def test_many_whole_numbers_with_rare_ones_may_be_a_quantity(
    world: World, tmp_path: Path, cli: Cli
) -> None:
    world["limit"] = [1000 * (i // 5) for i in range(120)]
    world["limit"][:3] = [1, 2, 3]
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    assert "--regression or --bins 2." in cli.refuses(
        "init", table, "--label", "limit", "--out", out
    )
    assert init(table, "--label", "limit", "--regression", "--out", out) == 0


def test_what_check_refuses_init_refuses_first(world: World, tmp_path: Path, cli: Cli) -> None:
    world["default"][:2] = [7, 8]
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    said = cli.refuses("init", table, "--label", "default", "--out", out)
    assert "each class must have at least 5 rows, got '7' 1, '8' 1." in said
    assert "--rare merge" in said
    assert "--rare drop" in said
    assert not out.exists()
    said = cli.says("init", table, "--label", "default", "--rare", "drop", "--out", out)
    assert data_of(out).drop_classes == ["7", "8"]
    assert "left out: '7' 1, '8' 1." in said
    assert "add --force" in cli.refuses(
        "init", table, "--label", "default", "--rare", "merge", "--out", out
    )
    assert init(table, "--label", "default", "--rare", "merge", "--out", out, "--force") == 0
    counts = {c: world["default"].count(c) for c in (0, 1)}
    smaller = min(counts, key=lambda c: counts[c])
    # two rows are still too few, so the smallest class that is large enough joins them
    assert data_of(out).merge_classes == {"other": ["7", "8", str(smaller)]}
    assert cli("check", out) == 0


def test_a_quantity_is_predicted_as_a_number_or_cut(world: World, tmp_path: Path, cli: Cli) -> None:
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    assert "; --bins 2 cuts it" in cli.says("init", table, "--label", "income", "--out", out)
    assert data_of(out).task == "regression"
    names = [a.name for a in load_scenario(out).root.attack]
    assert names == ["value_completion", "residual", "message_completion", *BY_THE_LABEL_PARTY]
    more = ("--regression", "--bins", "3", "--out", tmp_path / "both.toml")
    assert "exclude each other" in cli.refuses("init", table, "--label", "income", *more)
    cut = ("--bins", "3", "--out", out, "--force")
    assert "cut into classes at" in cli.says("init", table, "--label", "income", *cut)
    edges = data_of(out).label_edges
    income = np.array(world["income"], dtype=float)
    assert edges == pytest.approx(np.quantile(income, [1 / 3, 2 / 3]), rel=1e-3)
    assert "must hold numbers, got 'n'" in cli.refuses(
        "init", table, "--label", "region", "--bins", "3", "--out", tmp_path / "o.toml"
    )


def test_several_labels_get_attacks_that_take_them_one_by_one(
    world: World, tmp_path: Path, cli: Cli
) -> None:
    world["late"] = [i // 2 % 2 for i in range(120)]
    world.pop("status")
    out = draft(world, tmp_path, "--label", "late")
    names = [a.name for a in load_scenario(out).root.attack]
    ours = ["model_completion", "norm", "direction", "similarity"]
    assert names == [*ours, *WHOLE, *BY_THE_LABEL_PARTY]
    (found,) = json.loads(cli.says("check", out, "--format", "json"))
    assert found["plan"]["refused"] == []


def test_beyond_so_many_rows_what_keeps_every_message_is_a_comment(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    monkeypatch.setattr(draft_text, "_WHOLE_ROWS", 119)
    assert init(table, "--label", "default", "--out", out) == 0
    attacks = load_scenario(out).root.attack
    ours = ["model_completion", "norm", "direction", "similarity"]
    assert [a.name for a in attacks] == [*ours, "gradient_completion", *BY_THE_LABEL_PARTY]
    assert (attacks[4].model_extra or {})["epochs"] == "mean"
    text = out.read_text(encoding="utf-8")
    out.write_text(re.sub(r"^# (\[\[attack|name = |known_rows = )", r"\1", text, flags=re.M))
    again = [a.name for a in load_scenario(out).root.attack]
    assert again == [*ours, "gradient_completion", *WHOLE, *BY_THE_LABEL_PARTY]
    monkeypatch.setattr(draft_text, "_WHOLE_ROWS", 120)
    assert init(table, "--label", "default", "--out", out, "--force") == 0
    whole = [a.name for a in load_scenario(out).root.attack]
    assert whole == [*ours, *WHOLE, *BY_THE_LABEL_PARTY]


@pytest.mark.parametrize(("most", "drafted"), [(59, 59), (60, None)])
def test_beyond_twice_as_many_rows_attacks_guess_a_sample(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, drafted: int | None
) -> None:
    monkeypatch.setattr(draft_text, "_SAMPLE", most)
    out = draft(world, tmp_path)
    assert load_scenario(out).root.audit.sample == drafted
    assert load_scenario(out).root.audit.messages == "all"


@pytest.mark.parametrize(("most", "drafted"), [(23, "sample"), (24, "all")])
def test_beyond_five_times_as_many_rows_attacks_see_it_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, drafted: str
) -> None:
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    monkeypatch.setattr(draft_text, "_SAMPLE", most)
    drafting = "--label", "default", "--out", out, "--drop", "region", "--algorithm", "secureboost"
    assert init(table, *drafting) == 0
    assert load_scenario(out).root.audit.messages == drafted
    names = {a.name for a in load_scenario(out).root.attack}
    assert {"leaf_vote", "leaf_columns"} <= names
    assert ("bin_sums" in names) is (drafted == "all")


def test_wide_tables_are_guessed_on_fewer_rows(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A category of 30 values has 31 numbers; 2 of 120 rows would do for 62 at most."""
    world["town"] = [f"t{i % 30}" for i in range(120)]
    monkeypatch.setattr(draft_text, "_NUMBERS", 31 * 59)
    monkeypatch.setattr(draft_text, "_LEAST", 20)
    out = draft(world, tmp_path)
    assert 20 <= (load_scenario(out).root.audit.sample or 0) < 59


@pytest.mark.parametrize(("ones", "twos"), [(3, 0), (2, 1), (3, 3)])
def test_only_what_leaves_two_classes_is_advised(
    world: World, tmp_path: Path, cli: Cli, ones: int, twos: int
) -> None:
    """Of two classes one is rare: neither a merge nor a drop leaves two, and both were advised."""
    world["default"] = [1] * ones + [2] * twos + [0] * (120 - ones - twos)
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    said = cli.refuses("init", table, "--label", "default", "--out", out)
    for way in ("merge", "drop"):
        works = init(table, "--label", "default", "--rare", way, "--out", out, "--force") == 0
        assert (f"--rare {way}" in said) == works == (way == "merge" and ones + twos > 3)


def test_a_rare_class_keeps_rows_to_guess(world: World, tmp_path: Path, cli: Cli) -> None:
    """Known rows took every training row of the class: no attack on labels had a figure."""
    world["default"] = [int(i % 10 == 0) for i in range(120)]  # 12 ones, 7 of them for training
    world.pop("status")
    out = draft(world, tmp_path)
    attacks = [a for a in load_scenario(out).root.attack if not a.aux_rows]
    assert {a.known_rows for a in attacks} == {20}
    told = " ".join(cli.says("check", out).split())
    assert "known_rows = 20 leave 3 of 7 training rows of the rarest class" in told


@pytest.mark.parametrize(("every", "ones"), [(10, 3), (3, 0)])
def test_few_test_rows_of_a_class_are_said(
    world: World, tmp_path: Path, cli: Cli, every: int, ones: int
) -> None:
    """An AUC on 3 ones was printed like any other."""
    world["default"] = [int(i % every == 0) for i in range(120)]
    world.pop("status")
    out = draft(world, tmp_path)
    told = " ".join(cli.says("check", out).split())
    said = f"people: only {ones} of 30 test rows are of the rarest class"
    assert (said in told) == bool(ones)
    assert ("test rows" in told) == bool(ones)


def test_several_classes_get_attacks_that_exist_for_them(
    world: World, tmp_path: Path, cli: Cli
) -> None:
    world["default"] = [i % 4 for i in range(120)]
    world.pop("status")
    out = draft(world, tmp_path)
    names = [a.name for a in load_scenario(out).root.attack]
    assert names == ["model_completion", "similarity", "cluster", *WHOLE, *BY_THE_LABEL_PARTY]
    granted = {a.name: a.known_rows for a in load_scenario(out).root.attack}
    assert granted["zero_pattern"] == granted["similarity"] > 0  # batches are named by known rows
    (found,) = json.loads(cli.says("check", out, "--format", "json"))
    assert found["plan"]["refused"] == []
    assert found["summary"].startswith("Does training on these tables leak")
    audited = next(g for g in found["plan"]["groups"] if g["role"] == "audit")
    assert [a["name"] for a in audited["attacks"]] == names


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--rare", "keep"], "init: --rare must be one of 'drop', 'merge', got 'keep'"),
        (["--bins", "1"], "init: --bins must be an integer in [2, 100], got 1"),
        (["--separator", "ab"], "data: separator must be one ASCII character"),
        (["--encoding", "rot13"], "data: encoding must be a text encoding"),
        (["--id", "nobody"], "init: --id must be a column of "),
        (["--id", "a", "--id", "b"], "init: --id must be PARTY=TEXT"),
    ],
)
def test_wishes_that_make_no_sense(
    args: list[str], said: str, world: World, tmp_path: Path, cli: Cli
) -> None:
    world["default"][0] = 9
    table, out = write(tmp_path / "people.csv", **world), tmp_path / "case.toml"
    assert said in cli.refuses("init", table, "--label", "default", "--out", out, *args)
    assert not out.exists()


def test_a_folder_that_is_not_there_is_named_and_not_the_table(
    pair: list[Path], tmp_path: Path, cli: Cli
) -> None:
    """Paths start from the scenario's folder, so the table was said to be missing."""
    assert f"no folder {tmp_path / 'new'}" in cli.refuses(
        "init", *pair, "--label", "y", "--out", tmp_path / "new" / "case.toml"
    )


def test_a_spreadsheet_of_another_country(tmp_path: Path) -> None:
    """Semicolons, decimal commas, Latin-1, day-first dates: one option, and it reads."""
    rows = [f"k{i};{i},5;{i % 28 + 1}.03.2020;Köln;{i % 2}" for i in range(60)]
    table = tmp_path / "bank.csv"
    table.write_bytes("\r\n".join(["Nr;Größe;Tag;Ort;y", *rows]).encode("latin-1"))
    out = tmp_path / "case.toml"
    assert init(table, "--label", "y", "--id", "Nr", "--out", out) == 2
    assert init(table, "--label", "y", "--id", "Nr", "--encoding", "latin-1", "--out", out) == 0
    data = data_of(out)
    assert data.encoding == "latin-1"
    assert data.columns == {"active": ["Größe", "Tag"], "passive": ["Ort"]}
    source = load_source(data.model_dump(exclude_defaults=True), 0, tmp_path)
    assert source.parties["active"].values[:2, 0].tolist() == [0.5, 1.5]
    assert source.parties["active"].values[:2, 1].tolist() == [18322.0, 18323.0]
    assert source.parties["passive"].categories == (("Köln",),)


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
    tables: list[str], label: str, split: str, dropped: list[str], tmp_path: Path, data_folder: Path
) -> None:
    out = tmp_path / "case.toml"
    assert init(*(data_folder / f"{t}.csv.gz" for t in tables), "--label", label, "--out", out) == 0
    data = load_scenario(out).root.data[0]
    assert (data.id, data.split, data.drop) == ("id", split, dropped)
    assert main.main(["check", str(out)]) == 0


def test_ids_of_other_names_are_found_where_they_cannot_be_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Text ids that match are taken; two columns of numbers from 1 are only suggested."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for kind in ("text", "number"):
        ids = [f"K{i}" if kind == "text" else i for i in range(300)]
        bank = pd.DataFrame({"Kunde": ids, "balance": rng.normal(size=300)})
        bank["late"] = (bank.balance > 0).astype(int)
        bank.to_csv("bank.csv", index=False)
        shop = pd.DataFrame({"Customer ID": ids[50:], "visits": rng.poisson(3, 250)})
        shop.to_csv("shop.csv", index=False)
        words = ["init", "bank.csv", "shop.csv", "--label", "late", "--out", f"{kind}.toml"]
        if kind == "number":
            assert '--id bank=Kunde --id shop="Customer ID"' in cli.refuses(*words)
            continue
        assert "note: Kunde in bank, Customer ID in shop are the ids" in cli.says(*words)
        data = load_scenario(tmp_path / "text.toml").root.data[0]
        assert data.id == {"bank": "Kunde", "shop": "Customer ID"}
        assert data.name == "bank_shop"
        assert cli(*words, "--force", "--name", "loans") == 0
        assert load_scenario(tmp_path / "text.toml").root.data[0].name == "loans"


def test_what_joins_a_rare_class_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"LoanId": range(1, 301), "a": rng.normal(size=300), "b": rng.normal(size=300)}
    )
    table["kind"] = ["x"] * 2 + ["y"] * 98 + ["z"] * 200
    table.to_csv("one.csv", index=False)
    words = ["init", "one.csv", "--label", "kind", "--out", "one.toml", "--rare", "merge"]
    said = cli.says(*words)
    assert "become one, 'other': 'x' 2, with 'y' 98." in said
    assert "Using 'LoanId' as the id: its values are unique." in said


@pytest.mark.parametrize("name", SYSTEMS)
def test_settings_that_a_draft_leaves_out_are_the_defaults(name: str) -> None:
    made = registry.algorithms.create(name)
    lines = [line.removeprefix("# ") for line in SYSTEMS[name].settings if " = " in line]
    for key, value in tomllib.loads("\n".join(lines)).items():
        assert getattr(made, key) == value
