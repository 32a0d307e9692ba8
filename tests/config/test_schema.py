"""The JSON schema editors read, and the reference of sections, both made from the models."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import Cli

from vflsec.cli.catalog import SECTION_NAMES
from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import load_scenario, packaged_scenarios
from vflsec.config.schema import SCHEMA_FILE, SECTIONS, list_fields, make_schema, schema_text

SCHEMA = make_schema()
GOOD = """
[data]
files = { bank = "bank.csv", shop = "shop.csv" }
id = { bank = "customer_id", shop = "Customer ID" }
label = "y"
merge_classes = { rest = ["a", "b"] }
aligned = 0.5
[parties.bank]
hidden = [8]
[algorithm]
name = "splitnn"
epochs = 3
[[defense]]
name = "iso"
strength = 5
[[attack]]
name = "norm"
adversary = ["bank", "shop"]
[audit]
seeds = 3
[[gate]]
max = 0.1
"""


def valid(tree: object) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(tree)


def test_the_schema_is_one_and_what_is_shipped_is_current() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    shipped = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    assert without_defaults(shipped) == without_defaults(json.loads(schema_text())), "make schema"


def without_defaults(tree: Any) -> Any:
    """Releases of pydantic differ in whether they write out what holds anyway, and in how a
    section is referred to.
    """
    if isinstance(tree, dict):
        if len(tree.get("allOf", ())) == 1:
            tree = {k: v for k, v in tree.items() if k != "allOf"} | tree["allOf"][0]
        kept = {k: v for k, v in tree.items() if (k, v) != ("additionalProperties", True)}
        return {k: without_defaults(v) for k, v in kept.items()}
    return [without_defaults(v) for v in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize("path", packaged_scenarios().values(), ids=lambda p: p.stem)
def test_packaged_scenarios_fit(path: Path) -> None:
    errors = jsonschema.Draft202012Validator(SCHEMA).iter_errors(
        tomllib.loads(path.read_text(encoding="utf-8"))
    )
    assert [e.message for e in errors] == []


# where in GOOD, what to write there; both the schema and the reader refuse
WRONG: list[tuple[tuple[str | int, ...], object]] = [
    (("data", "idd"), "x"),
    (("data", "id"), 3),
    (("data", "id"), {"bank": 3}),
    (("data", "files"), "bank.csv"),
    (("data", "merge_classes"), {"rest": []}),
    (("data", "max_bytes"), 0),
    (("data", "test"), 1.5),
    (("data", "scale"), "log"),
    (("parties", "bank", "cut"), 0),
    (("algorithm", "name"), ""),
    (("defense", 0, "strength"), -1),
    (("defense", 0, "strength"), []),
    (("attack", 0, "known_rows"), -1),
    (("attack", 0, "adversary"), []),
    (("audit", "seeds"), 0),
    (("audit", "seeds"), []),
    (("audit", "confidence"), 0.4),
    (("gate", 0, "maxx"), 1),
    (("gates",), []),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda v: str(v)[:40])
def test_schema_and_reader_refuse_alike(path: tuple[str | int, ...], value: object) -> None:
    tree = tomllib.loads(GOOD)
    assert valid(tree)
    load_scenario(tree, components=False)
    wrong = copy.deepcopy(tree)
    spot = wrong
    for key in path[:-1]:
        spot = spot[key]  # type: ignore[index]
    spot[path[-1]] = value  # type: ignore[index]
    assert not valid(wrong)
    with pytest.raises(ScenarioError):
        load_scenario(wrong, components=False)


@pytest.mark.parametrize("key", ["data", "algorithm"])
def test_short_and_long_forms_fit(key: str) -> None:
    tree = tomllib.loads(GOOD)
    tree[key] = [tree[key]]
    assert valid(tree)
    load_scenario(tree, components=False)


@pytest.mark.parametrize("section", SECTION_NAMES)
def test_every_key_has_a_meaning_and_show_prints_it(section: str, cli: Cli) -> None:
    fields = list_fields(section)
    assert [f["name"] for f in fields] == list(SECTIONS[section].model_fields)
    for f in fields:
        assert f["meaning"].endswith("."), f
        assert f["type"], f
    said = cli.says("show", section)
    for f in fields:
        assert f"  {f['name']}: {f['type']}" in said
        assert f["meaning"] in said
    assert cli("show", section, "--format", "json") == 0
    (found,) = [i for i in json.loads(cli.out) if i["kind"] == "section"]
    assert found["parameters"] == fields


def test_a_section_that_does_not_exist_names_the_nearest(cli: Cli) -> None:
    assert "Did you mean 'gate'?" in cli.refuses("show", "gaet")
