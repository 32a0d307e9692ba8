"""Scenarios are strict: every mistake has its line, key path, value and remedy, all at once."""

from __future__ import annotations

import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import SCENARIO

from vflsec import load_scenario
from vflsec.config.overrides import ask_seeds, asked_form
from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import packaged_scenarios
from vflsec.errors import VflsecError


def write(folder: Path, text: str) -> Path:
    path = folder / "case.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path | str, overrides: list[str] | None = None) -> tuple[Any, ...]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides or [])
    return caught.value.problems


BAD = {  # text that replaces SCENARIO's first match of the left -> (line, path, value, in the rule)
    "unknown section": ("[audit]", "[audot]", 14, "audot", None, "Did you mean 'audit'?"),
    "unknown key": ("seeds = 3", "sedes = 3", 15, "audit.sedes", 3, "Did you mean 'seeds'?"),
    "unknown grant": ("known_rows = 20", "knwon_rows = 20", 13, "attack.1.knwon_rows", 20,
                      "Did you mean 'known_rows'?"),
    "unknown parameter": ('name = "norm"', 'name = "norm"\nepok = "last"', 11, "attack.0.epok",
                          "last", "Did you mean 'epoch'?"),
    "algorithm parameter": ('name = "splitnn"', 'name = "splitnn"\nepohcs = 3', 6,
                            "algorithm.epohcs", 3, "Did you mean 'epochs'?"),
    "dataset parameter": ('name = "breast_cancer"', 'name = "control_gaussian"\nparams = {row = 9}',
                          4, "data.params.row", 9, "Did you mean 'rows'?"),
    "wrong type": ('name = "splitnn"', 'name = "splitnn"\nepochs = "many"', 6, "algorithm.epochs",
                   "many", "must be of type int"),
    "refused value": ('name = "splitnn"', 'name = "splitnn"\nepochs = -3', 6, "algorithm.epochs",
                      -3, "an integer >= 0"),
    "refused choice": ('name = "norm"', 'name = "norm"\nepoch = "lats"', 11, "attack.0.epoch",
                       "lats", "Did you mean 'last'?"),
    "refused setting": ('name = "norm"', 'name = "membership"\nreferences = 2', 11,
                        "attack.0.references", 2, "0 or at least 4"),
    "refused together": ('name = "splitnn"', 'name = "secureboost"\ntop = 0.8\nother = 0.5', 4,
                         "algorithm", "secureboost", "top + other must"),
    "unknown attack": ('name = "norm"', 'name = "nrom"', 10, "attack.0.name", "nrom",
                       "Did you mean 'norm'?"),
    "unknown defense": ('name = "iso"', 'name = "isso"', 7, "defense.0.name", "isso",
                        "Did you mean 'iso'?"),
    "unknown algorithm": ('name = "splitnn"', 'name = "splitn"', 5, "algorithm.name", "splitn",
                          "Did you mean 'splitnn'?"),
    "unknown data set": ('name = "breast_cancer"', 'name = "breast_canser"', 3, "data.name",
                         "breast_canser", "Did you mean 'breast_cancer'?"),
    "bool for number": ("known_rows = 20", "known_rows = true", 13, "attack.1.known_rows", True,
                        "must be an integer"),
    "negative grant": ("known_rows = 20", "known_rows = -1", 13, "attack.1.known_rows", -1, ">= 0"),
    "negative strength": ("strength = [0, 5]", "strength = [0,\n -5]", 9, "defense.0.strength.1",
                          -5, ">= 0"),
    "negative scalar": ("strength = [0, 5]", "strength = -5", 8, "defense.0.strength", -5, ">= 0"),
    "text strength": ("strength = [0, 5]", 'strength = "high"', 8, "defense.0.strength", "high",
                      "a number >= 0 or a list of them"),
    "empty grid": ("strength = [0, 5]", "strength = []", 8, "defense.0.strength", [],
                   "a list of at least 1"),
    "infinite": ("strength = [0, 5]", "strength = [inf]", 8, "defense.0.strength.0", float("inf"),
                 "finite"),
    "repeated seed": ("seeds = 3", "seeds = [4, 1, 4]", 15, "audit.seeds.2", 4, "repeat"),
    "no seed": ("seeds = 3", "seeds = 0", 15, "audit.seeds", 0, "1 to 10000"),
    "confidence": ("seeds = 3", "confidence = 1.5", 15, "audit.confidence", 1.5, "< 1"),
    "reference": ('["local"]', '["lokal"]', 16, "audit.references.0", "lokal",
                  "Did you mean 'local'?"),
    "gate without limit": ("[audit]", "[[gate]]\nsplit = 'test'\n[audit]", 14, "gate.0", None,
                           "one of max"),
    "gate metric": ("[audit]", "[[gate]]\nmax = 1\nmetric = 'advantag'\n[audit]", 16,
                    "gate.0.metric", "advantag", "Did you mean 'advantage'?"),
    "gate name twice": ("[audit]", "[[gate]]\nmax = 0.1\nname = 'leaks'\n[[gate]]\nmax = 0.2\n"
                        "name = 'leaks'\n[audit]", 19, "gate.1.name", "leaks", "no other gate's"),
    "coalition": ("known_rows = 20", "adversary = ['a', 'a']", 13, "attack.1.adversary",
                  ["a", "a"], "repeat"),
    "own-table key": ('name = "breast_cancer"', 'name = "breast_cancer"\nid = "x"', 4, "data.id",
                      "x", "needs file or files"),
    "no label": ('name = "breast_cancer"', 'files = {a = "a.csv"}\nid = "x"', 2, "data", None,
                 "label"),
    "share": ('name = "breast_cancer"', 'name = "breast_cancer"\ntest = 1.5', 4, "data.test", 1.5,
              "< 1"),
    "date": ("seeds = 3", "seeds = 2020-01-01", 15, "audit.seeds", "2020-01-01", "date"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, case: str) -> None:
    old, new, line, path, value, rule = BAD[case]
    assert old in SCENARIO
    file = write(tmp_path, SCENARIO.replace(old, new, 1))
    found = problems(file)
    assert [(p.file, p.line, p.path) for p in found] == [(str(file), line, path)], found
    if value is not None:
        assert found[0].value == value
    assert rule in found[0].rule
    assert str(found[0]).startswith(f"{file}:{line}: {path} ")


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = SCENARIO.replace("[0, 5]", "[-1]").replace("= 20", "= -2").replace("= 3", "= [1, 1]")
    text += 'dtype = "float16"\nspeed = 3\n'
    text = text.replace('"norm"', '"nrom"').replace('"splitnn"', '"splitnn"\ncutt = 3')
    found = problems(write(tmp_path, text))
    assert [(p.line, p.path) for p in found] == [
        (6, "algorithm.cutt"),
        (9, "defense.0.strength.0"),
        (11, "attack.0.name"),
        (14, "attack.1.known_rows"),
        (16, "audit.seeds.1"),
        (19, "audit.dtype"),
        (20, "audit.speed"),
    ]


def test_the_order_of_sections_does_not_move_the_lines(tmp_path: Path) -> None:
    text = '[[attack]]\nname = "norm"\nknown_rows = -1\n' + SCENARIO
    (found,) = problems(write(tmp_path, text))
    assert (found.line, found.path) == (3, "attack.0.known_rows")


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("[data]\nname = breast", 2, "not valid TOML"),
        ("[data]\nname = 'a'\nname = 'b'", 3, "not valid TOML"),
        ("[data]\nname = 'a'\n[algorithm]\nname = 'unclosed", 4, "not valid TOML"),
        ("[[gate]]\nmax = .1", 2, "Write 0.5."),
        ("[[gate]]\nmax = 1.\nname = 'a'", 2, "Write 0.5."),
        ("[[gate]]\nmax = 0,1", 2, "Write 0.5, with a point."),
        ("[[attack]]\nprior = True  # yes", 2, "Write true or false."),
        ("[[attack]]\nprior = yes", 2, "Strings need quotes; lists need [ ]."),
    ],
)
def test_syntax_errors_have_their_line(tmp_path: Path, text: str, line: int, rule: str) -> None:
    (found,) = problems(write(tmp_path, text))
    assert found.line == line
    assert rule in found.rule


def test_missing_sections_are_named(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "[audit]\nseeds = 2\n"))
    assert sorted(p.path for p in found) == ["algorithm", "data"]
    assert all("is missing" in p.rule for p in found)


def test_a_file_that_is_not_there_names_the_nearest_scenario() -> None:
    (found,) = problems("quikstart")
    assert "Did you mean 'quickstart'?" in found.rule


def test_a_folder_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (folder,) = problems(tmp_path)
    assert "is a folder" in folder.rule
    path = tmp_path / "latin.toml"
    path.write_bytes(b"name = '\xe9'")
    (found,) = problems(path)
    assert "UTF-8" in found.rule


SET = [
    ("audit.sedes=3", "audit.sedes", "Did you mean 'seeds'?"),
    ("attack.0.known_rows=-1", "attack.0.known_rows", ">= 0"),
    ("attack.7.known_rows=1", "attack.7.known_rows", "index below 2"),
    ("attack.known_rows=1", "attack.known_rows", "needs an index"),
    ("audit.seeds.x=1", "audit.seeds.x", "has no keys"),
    ("audit.seeds", "'audit.seeds'", "KEY.PATH=VALUE"),
    ("defense.0.strength=[0, nan]", "defense.0.strength.1", "finite"),
    ("defense.0.strenght=1", "defense.0.strenght", "Did you mean 'strength'?"),
]


@pytest.mark.parametrize(("text", "path", "rule"), SET)
def test_set_goes_through_the_same_door(tmp_path: Path, text: str, path: str, rule: str) -> None:
    (found,) = problems(write(tmp_path, SCENARIO), [text])
    assert (found.file, found.line, found.path) == ("--set", 0, path)
    assert rule in found.rule


@pytest.mark.parametrize(("seeds", "path"), [(0, "audit.seeds"), ([3, 3], "audit.seeds.1")])
def test_a_value_of_an_option_is_at_that_option(
    tmp_path: Path, seeds: int | list[int], path: str
) -> None:
    texts: list[str] = ["form=splitnn", pickle.loads(pickle.dumps(ask_seeds(seeds)))]
    (found,) = problems(write(tmp_path, SCENARIO), asked_form(texts)[1])
    assert (found.file, found.line, found.path) == ("--seeds", 0, path)


def test_set_changes_values_and_makes_sections(tmp_path: Path) -> None:
    path = write(tmp_path, SCENARIO)
    texts = ["defense.0.strength=[0, 2]", "audit.seeds=[7]",
             "attack.1.known_rows = 4", "algorithm.aggregation=sum", 'name="other"',
             "audit.positive_control=true"]  # fmt: skip
    loaded = load_scenario(path, texts)
    root = loaded.root
    assert (root.defense[0].strength, root.audit.seeds) == ([0, 2], [7])
    assert (root.attack[1].known_rows, loaded.name) == (4, "other")
    assert root.algorithm[0].model_extra == {"aggregation": "sum"}
    assert root.audit.positive_control is True


def test_the_same_value_by_file_and_by_set_is_the_same_scenario(tmp_path: Path) -> None:
    path = write(tmp_path, SCENARIO)
    direct = write(tmp_path / "..", SCENARIO.replace("seeds = 3", "seeds = 2"))
    assert load_scenario(path, ["audit.seeds=2"]).hash == load_scenario(direct).hash
    assert load_scenario(path).hash != load_scenario(direct).hash
    direct.unlink()


@pytest.mark.parametrize("name", sorted(packaged_scenarios()))
def test_packaged_scenarios_are_valid_and_resolve_to_themselves(name: str, tmp_path: Path) -> None:
    loaded = load_scenario(name)
    again = load_scenario(write(tmp_path, loaded.to_toml()))
    assert again.hash == loaded.hash
    assert again.resolved() == {**loaded.resolved(), "name": loaded.name}
    assert again.root.defense == loaded.root.defense


def test_one_table_of_data_is_written_back_as_one_table(tmp_path: Path) -> None:
    text = load_scenario(write(tmp_path, SCENARIO)).to_toml()
    assert tomllib.loads(text)["data"] == {"name": "breast_cancer", "shuffle_labels": False}
    assert "[data]" in text
    assert "[[data]]" not in text


def test_phases_are_another_way_to_write_parameters(tmp_path: Path) -> None:
    text = SCENARIO.replace('"splitnn"', '"splitnn"\n[algorithm.phases.batch]\nsize = 16')
    from vflsec.config.components import flat_params

    section = load_scenario(write(tmp_path, text)).root.algorithm[0]
    assert flat_params(section) == {"batch_size": 16}
    text = text.replace("size = 16", "sizes = 16")
    (found,) = problems(write(tmp_path, text))
    assert (found.line, found.path) == (7, "algorithm.phases.batch.sizes")
    assert found.value == 16


def test_a_dictionary_is_a_scenario_too() -> None:
    sections = tomllib.loads(SCENARIO)
    assert load_scenario(sections).root.audit.seeds == [0, 1, 2]
    with pytest.raises(VflsecError, match=r"<scenario>: audit\.sedes is not a known key"):
        load_scenario({**sections, "audit": {"sedes": 1}})


def test_a_section_that_is_written_once_is_set_without_an_index() -> None:
    sections = tomllib.loads(SCENARIO)
    load_scenario(sections, overrides=["algorithm.epochs=3"])
    with pytest.raises(VflsecError, match=r"algorithm\.0 is not a known key.* has no index"):
        load_scenario(sections, overrides=["algorithm.0.epochs=3"])


def test_gate_keys_are_those_of_the_gate() -> None:
    from dataclasses import fields

    from vflsec.audit.gate import Gate as Judged
    from vflsec.config.sections import Gate

    defaults = {f.name: f.default for f in fields(Judged) if f.name not in ("confidence", "line")}
    found = {k: f.default for k, f in Gate.model_fields.items() if k != "confidence"}
    assert found == defaults
