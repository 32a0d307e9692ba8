"""What of the messages that crossed attacks read, and what was not asked."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from printed import coverage, html, junit_xml, workflow_commands


def test_who_reads_a_message_counts_where_it_arrives(summary: dict[str, Any]) -> None:
    (gradient,) = coverage.list_messages(summary)
    assert (gradient.state, gradient.tried) == ("tested", ("model_completion", "norm"))
    assert "cluster" in gradient.others
    other = copy.deepcopy(summary)
    for spec in other["attacks"].values():
        spec["adversary"] = ["third"]
    assert coverage.list_messages(other)[0].state == "not_tested"


def test_a_message_beside_the_one_that_was_kept_is_said_to_be_unread(
    summary: dict[str, Any],
) -> None:
    """Attacks read the first of two names; the report said that they read the second."""
    found = copy.deepcopy(summary)
    for c in found["cost"]["points"]:
        c["traffic"] += [{**t, "name": "second"} for t in c["traffic"]]
        c["unread"] = [["gradient", "second"]]
    first, second = coverage.list_messages(found)
    assert (first.state, second.state) == ("tested", "no_attack")
    assert any("gradient (second) from" in line for line in coverage.list_gaps(found))


def test_what_crossed_where_no_attack_looks_is_said_to_be_unread(summary: dict[str, Any]) -> None:
    """A gradient of a stage that is not attacked, and one beside predictions, are in no view."""
    found = copy.deepcopy(summary)
    for c in found["cost"]["points"]:
        (t,) = c["traffic"]
        c["traffic"] += [{**t, "phase": p} for p in ("warmup", "predict")]
        c["traffic"] += [{**t, "phase": p, "kind": "ids"} for p in ("train", "warmup")]
    states = {(m.kind, m.phase): m.state for m in coverage.list_messages(found)}
    none = "no_attack"
    assert states == {
        ("gradient", ""): "tested", ("gradient", "warmup"): none, ("gradient", "predict"): none,
        ("ids", ""): none,
    }  # fmt: skip
    (line,) = [x for x in coverage.list_gaps(found) if x.startswith("Messages without an attack")]
    assert "gradient in warmup from bank to shop; gradient in predict from bank to shop" in line
    assert "gradient in warmup" in html(found)
    for p in found["points"]:
        p["phase"] = "warmup" if p["phase"] else ""
    states = {(m.kind, m.phase): m.state for m in coverage.list_messages(found)}
    assert states["gradient", ""] == "tested"
    assert states["gradient", "train"] == none


def test_what_no_attack_asks_of_a_label_is_said(summary: dict[str, Any]) -> None:
    """Shares that only a coalition adds up, labels that only together mean something, one class."""
    (name,) = summary["parties"]

    def asked(**facts: Any) -> list[str]:
        other = copy.deepcopy(summary)
        other["parties"][name] |= facts
        every = coverage.list_gaps(other)
        return every[len(coverage.list_gaps(summary)) :]

    assert max(v["gate"]["max"] for v in summary["gates"]) == 0.1
    assert not [line for line in coverage.list_gaps(summary) if 'column = "*"' in line]
    (line,) = asked(parties=["bank", "shop", "mill"])
    assert "(shop, mill)" in line
    (line,) = asked(classes=0, labels=["a", "b"])
    assert "several labels together" in line
    (line,) = asked(classes=1)
    assert "message_completion" in line
    assert asked(classes=9) == []
    (line,) = asked(classes=10)
    assert "one class of 10" in line
    both = copy.deepcopy(summary)
    both["parties"][name]["parties"] = ["bank", "shop", "mill"]
    for spec in both["attacks"].values():
        spec["adversary"] = ["shop", "mill"]
    assert not [line for line in coverage.list_gaps(both) if "coalitions" in line]


def test_what_no_attack_asks_of_columns_is_said(summary: dict[str, Any]) -> None:
    """A gate on their mean passed with one of twelve columns sent plainly, and no word about it."""
    other = copy.deepcopy(summary)
    (name,) = other["parties"]
    other["parties"][name] |= {"parties": ["bank", "shop"], "columns": {"bank": 3, "shop": 12}}
    before = len(coverage.list_gaps(other))
    point = next(p for p in other["points"] if p["attack"] and p["status"] == "ok")
    spec = other["attacks"][point["attack_key"]]
    for key, target in (("f", "feature"), ("a", "attribute")):
        other["attacks"][key] = {**spec, "target": target, "adversary": ["bank"]}
        other["points"].append({**point, "attack_key": key, "victim": "shop"})
    mean, rest = coverage.list_gaps(other)[before:]
    assert "one column of 12 is revealed (0.083" in mean
    assert "limit 0.1" in mean
    bare = coverage.list_gaps({**other, "gates": []})
    assert [("0.083" in x, "limit" in x) for x in bare if "one column of 12" in x] == [
        (True, False)
    ]
    assert "the other 11 of 12 columns" in rest
    assert "(ask, category)" in rest
    tails = copy.deepcopy(other)
    tails["attacks"]["a"]["params"] = {"column": "x", "ask": "largest tenth"}
    assert "(ask, category)" not in coverage.list_gaps(tails)[-1]
    whichever = copy.deepcopy(other)
    whichever["attacks"]["a"]["params"] = {"column": "*"}
    assert coverage.list_gaps(whichever)[before:] == [mean]
    named = copy.deepcopy(other)  # a column may be called so
    named["attacks"]["a"] |= {
        "params": {"column": "x, ask=1, column=*"},
        "label": "attribute(column=x, ask=1, column=*)",
    }
    assert coverage.list_gaps(named)[before:] == [mean, rest]
    asked = copy.deepcopy(other)
    asked["gates"].append({"gate": {"metric": "advantage", "max": 0.1, "of": "r2_column"}})
    assert coverage.list_gaps(asked)[before:] == [rest]
    other["parties"][name]["columns"]["shop"] = 9
    (rest,) = coverage.list_gaps(other)[before:]
    assert "the other 8 of 9 columns" in rest
    other["parties"][name]["columns"]["shop"] = 1
    assert len(coverage.list_gaps(other)) == before


def test_a_second_exchange_of_a_step_is_said_to_be_unread(summary: dict[str, Any]) -> None:
    """It has no line of traffic of its own; the first one is read, and only the other is a gap."""
    other = copy.deepcopy(summary)
    for c in other["cost"]["points"]:
        c["unread"] = [["gradient", "#2"]]
    told = {(m.kind, m.name): m.state for m in coverage.list_messages(other)}
    assert told["gradient", "#2"] == coverage.State.NO_ATTACK
    assert told["gradient", ""] == coverage.State.TESTED
    assert any("gradient (#2) from" in line for line in coverage.list_gaps(other))


def test_a_pipeline_is_told_of_messages_that_no_attack_reads(
    summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PASS stood in JUnit and in a job's annotations without a word of them."""
    other = copy.deepcopy(summary)
    for c in other["cost"]["points"]:
        traffic = c["traffic"][:1]
        c["traffic"] += [{**t, "kind": "state"} for t in traffic]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for of, count in ((summary, 0), (other, 1)):
        found = [line for line in workflow_commands(of) if "No verdict speaks of this." in line]
        assert len(found) == count
        assert junit_xml(of).count("Messages that no attack read: state from") == count
        assert len(coverage.list_unread(of)) == count
    assert found[0].startswith("::notice title=vflsec::No verdict speaks of this. Messages that")
