"""Families and taxonomies: one list, complete, and the same in SARIF and in the documentation."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from printed import sarif

from vflsec.core.view import as_needs
from vflsec.engine.audit_record import list_families
from vflsec.plugins import registry
from vflsec.report.taxonomies import (
    FAMILIES,
    TAGS,
    TAXONOMIES,
    group_members,
    list_extensions,
    list_read,
    list_references,
)


@pytest.fixture(scope="module")
def log(summary: dict[str, Any]) -> dict[str, Any]:
    return sarif(summary)


def test_every_attack_names_a_known_family() -> None:
    known = {f.key for f in FAMILIES}
    for name, entry in registry.attacks.entries().items():
        if not entry.package:
            assert entry.family in known, name
    assert all(group_members(list_families(()))[f.name] for f in FAMILIES)


def test_a_family_reads_what_its_attacks_need() -> None:
    for family in FAMILIES:
        found: set[str] = set()
        for name in list_families(())[family.name]:
            found |= list_read(str(n) for n in as_needs(registry.attacks.create(name).looks_at))
        assert found == set(family.reads), family.name


def test_tags_are_of_listed_taxonomies_and_all_are_used() -> None:
    keys = {t.key for t in TAXONOMIES}
    assert {t.taxonomy for t in TAGS} == keys
    ids = [t.id for t in TAGS]
    assert len(ids) == len(set(ids))
    used = {tag for f in FAMILIES for tag in f.tags}
    assert used <= set(ids)
    assert set(ids) == used
    for t in TAXONOMIES:
        assert t.version
        assert t.url.startswith("https://")
    for f in FAMILIES:
        assert {"ieee-evaluation", "ieee-tradeoff"} <= set(f.tags)
    for t in TAGS:
        assert t.fit in ("exact", "related")
        assert len(t.why) > 30


def test_sarif_names_the_taxonomies_and_relates_rules_to_them(log: dict[str, Any]) -> None:
    (run,) = log["runs"]
    extensions = run["tool"]["extensions"]
    assert [e["name"] for e in extensions] == [t.name for t in TAXONOMIES]
    assert [e["version"] for e in extensions] == [t.version for t in TAXONOMIES]
    taxa = {x["guid"]: x for e in extensions for x in e["taxa"]}
    assert all(x["properties"]["fit"] in ("exact", "related") for x in taxa.values())
    attacked, main = run["tool"]["driver"]["rules"]
    assert "relationships" not in main
    kinds = {r["target"]["id"]: r["kinds"] for r in attacked["relationships"]}
    assert kinds["section 3, inference"] == ["equal"]
    assert kinds["AML.T0024.001"] == ["relevant"]
    assert "NISTAML.023" not in kinds  # no backdoor was tried
    guids = {e["guid"] for e in extensions}
    for r in attacked["relationships"]:
        assert r["target"]["guid"] in taxa
        assert r["target"]["toolComponent"]["guid"] in guids


AIMS = {
    "label": "nist-attribute", "attribute": "nist-attribute", "feature": "nist-reconstruction",
    "embedding": "nist-reconstruction", "property": "nist-property",
    "membership": "nist-membership", "presence": "nist-membership", "integrity": "nist-backdoor",
}  # fmt: skip
"""What NIST calls the aim of an attack of each target."""


@pytest.mark.parametrize("name", sorted(registry.attacks.entries()))
def test_every_attack_has_the_tags_of_its_aim(name: str) -> None:
    """A gate on one registered attack alone, with its settings in its label, as SARIF tells it."""
    label = f"{name}(known=1)"
    verdict = {
        "label": "g", "defense": "", "verdict": "PASS", "attack": label, "detectable": {label: 0.1},
        "gate": {"attack": name, "max": 0.1}, "warning": "",
    }  # fmt: skip
    summary = {
        "gates": [verdict], "families": list_families(()), "versions": {"vflsec": "0"}, "data": {},
        "exit_code": 0, "scenario_hash": "0",
    }  # fmt: skip
    (run,) = sarif(summary)["runs"]
    (rule,) = run["tool"]["driver"]["rules"]
    by_guid = {x["guid"]: x for e in run["tool"]["extensions"] for x in e["taxa"]}
    told = [by_guid[r["target"]["guid"]] for r in rule["relationships"]]
    assert len(told) == len(rule["relationships"]) == len(by_guid)
    aim = next(t for t in TAGS if t.id == AIMS[registry.attacks.create(name).target])
    assert (aim.ref, aim.name) in {(x["id"], x["name"]) for x in told}
    assert "privacy and security risks evaluation" in {x["id"] for x in told}


def test_two_entries_of_one_place_are_told_apart() -> None:
    """NIST has labels and columns under one number; one is related, the other exact."""
    both = [t for t in TAGS if t.ref == "NISTAML.032"]
    assert {t.fit for t in both} == {"exact", "related"}
    (nist,) = list_extensions(t.id for t in both)
    assert len({x["guid"] for x in nist["taxa"]}) == len(both) == 2
    told = list_references(t.id for t in both)
    assert {r["target"]["guid"] for r in told} == {x["guid"] for x in nist["taxa"]}
    assert sorted(r["kinds"][0] for r in told) == ["equal", "relevant"]


def test_the_page_is_made_from_the_list(root: Path) -> None:
    page = runpy.run_path(str(root / ".ci" / "docs_pages.py"))["make_page"]("taxonomies.md")
    assert (root / "docs" / "taxonomies.md").read_text(encoding="utf-8") == page
