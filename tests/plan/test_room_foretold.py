"""Limits that own columns or luck leave no room for are foretold by check."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vflsec.cli.draft_text import _exposed, scenario_text
from vflsec.config.scenario import load_scenario
from vflsec.data.load import load_source
from vflsec.data.source import PartyData, Source
from vflsec.engine.dry_run import make_plan


def said(gate: dict[str, Any], data: dict[str, Any] | None = None, **audit: Any) -> list[str]:
    scenario = {
        "data": data or {"name": "breast_cancer"},
        "algorithm": {"name": "splitnn"},
        "attack": [{"name": "direction"}],
        "audit": {"references": [], "positive_control": False, **audit},
        "gate": [gate],
    }
    notes = make_plan(load_scenario(scenario), try_out=False).notes
    return [n for n in notes if "own columns" in n or "luck alone names" in n]


@pytest.mark.parametrize(
    ("gate", "heard"),
    [
        ({"max": 0.1}, ["passive reaches AUC 0.9"]),
        ({"max": 0.1, "of": "exposed"}, []),
        ({"max": 0.25, "of": "error_removed"}, []),
        ({"max": 0.005}, []),
        ({"metric": "auc", "max": 0.99}, []),
        ({"max": 0.1, "adversary": "passive"}, ["error_removed"]),
        ({"max": 0.01, "of": "exposed"}, ["allows 0.01 of 342 rows", "about 2.3"]),
        ({"metric": "utility", "min": 0.7}, []),
    ],
)
def test_it_says_which_gates_an_audit_may_not_decide(
    gate: dict[str, Any], heard: list[str]
) -> None:
    found = said(gate)
    assert len(found) == bool(heard)
    assert all(text in found[0] for text in heard)


def test_luck_counts_the_rows_that_are_guessed() -> None:
    """3 of 100 rows leave no more room than luck, where 3 of 100 of all 342 do."""
    gate = {"max": 0.03, "of": "exposed"}
    assert said(gate) == []
    assert "allows 0.03 of 100 rows" in said(gate, sample=100)[0]


def test_nothing_is_said_where_own_columns_tell_little() -> None:
    weak = {"name": "control_gaussian", "params": {"rows": 900, "test_rows": 300}}
    assert said({"max": 0.1}, weak) == []


def test_a_draft_limits_the_remaining_error_where_own_columns_leave_no_room() -> None:
    for name, given in (("breast_cancer", {}), ("control_gaussian", {"params": {"rows": 300}})):
        section = {"name": name, **given}
        source = load_source(section, 0, Path())
        text = scenario_text({**section, "label": "y"}, source)
        gates = [g for g in tomllib.loads(text)["gate"] if g.get("of", "") != "exposed"]
        room = name != "breast_cancer"
        assert ({"error_removed"} if not room else set()) == {g["of"] for g in gates if "of" in g}
        assert [g["max"] for g in gates if g["metric"] == "advantage"] == [0.1 if room else 0.25]


@pytest.mark.parametrize(("visits", "people"), [(1, 180), (10, 200)])
def test_labelled_rows_are_taken_off_rows_and_not_off_people(visits: int, people: int) -> None:
    """Of 200 people of ten rows each 20 rows are known, and all of them are scored."""
    who = np.repeat(np.arange(200), visits)
    rows, y = np.arange(len(who)), who % 2
    held = PartyData(np.zeros((len(who), 1)), rows, ("a",), (None,))
    source = Source("drawn", {"bank": held}, "bank", y, ("no", "yes"), group=who)
    assert _exposed(source, rows, 20, 0).rows == people
    assert _exposed(source, rows, 20, 120).rows <= 120
