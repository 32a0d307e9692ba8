"""What somebody may do to stored results, as data.

Of what carries its seal every edit is refused (2). Where the seals are gone too, as in results of
versions that had none, the second code comes: never 0 for a gate that fails, never 4.
"""

from __future__ import annotations

from typing import Any

GATED = "update measures set {} where attack != ''"

# name: (statement, code of `vflsec gate` without seals)
SQL: dict[str, tuple[str, int]] = {
    "no measures": ("drop table measures", 2),
    "no cells": ("drop table cells", 2),
    "no done": ("drop table done", 2),
    "no meta": ("drop table meta", 2),
    "no record": ("delete from meta where key = 'audit'", 2),
    "a record of a list": ("update meta set value = '[1]' where key = 'audit'", 2),
    "a record of text": ("update meta set value = '\"x\"' where key = 'audit'", 2),
    "a record cut off": ("update meta set value = substr(value, 1, 99) where key = 'audit'", 2),
    "an empty record": ("update meta set value = '{}' where key = 'audit'", 2),
    "a binary record": ("update meta set value = x'ff00' where key = 'audit'", 2),
    "a deep record": ("update meta set value = replace(hex(zeroblob(50000)), '0', '[')", 2),
    "another version": ("update meta set value = '7' where key = 'schema_version'", 2),
    "a version of text": ("update meta set value = 'x' where key = 'schema_version'", 2),
    "a spec of a list": ("update cells set spec = '[1]'", 2),
    "a spec cut off": ("update cells set spec = substr(spec, 1, 20)", 2),
    "a spec of nothing": ("update cells set spec = '{}'", 2),
    "a seed of text": (
        "update cells set spec = replace(spec, '\"seed\": 1', '\"seed\": \"x\"')", 2
    ),
    "a ledger of numbers": ("update cells set ledger = '[1]'", 2),
    "a ledger of text": ("update cells set ledger = 'x'", 2),
    "guarantees of numbers": ("update cells set guarantees = '[1]'", 2),
    "a guarantee of text": ("update cells set guarantees = '[{\"epsilon\": \"x\"}]'", 2),
    "facts of a list": ("update cells set facts = '[1]'", 2),
    "parties of a number": ("update cells set facts = '{\"parties\": 3}'", 2),
    "seconds of text": ("update cells set seconds = 'long'", 2),
    "trainings deleted": ("delete from cells where rowid % 2", 1),
    "values of text": ("update measures set value = 'high'", 2),
    "values made chance": (GATED.format("value = 0.55"), 3),
    "values in reverse": (GATED.format("value = -7.0"), 3),
    "values gone": (GATED.format("value = null"), 3),
    "controls made strong": (
        GATED.format("controls = '{\"x\": {\"value\": 0.999, \"cv\": 1}}'"), 3
    ),
    "controls of text": (GATED.format("controls = '{\"x\": \"y\"}'"), 2),
    "controls of a word": (GATED.format("controls = '{\"x\": {\"value\": \"y\", \"cv\": 1}}'"), 2),
    "controls cut off": ("update measures set controls = '{'", 2),
    "controls of a list": ("update measures set controls = '[1]'", 2),
    "a status not applicable": (GATED.format("status = 'not-applicable', value = null"), 3),
    "an unknown status": (GATED.format("status = 'fine'"), 3),
    "measures deleted": ("delete from measures where attack != ''", 3),
    "what is done deleted": ("delete from done where attack_key != ''", 1),
    "an attack of bytes": (GATED.format("attack = x'ff00'"), 2),
    "a victim of a number": ("update measures set victim = 3", 1),
    "counts of text": ("update measures set n = 'many'", 2),
    "notes of text": ("update measures set notes = 'x'", 2),
}  # fmt: skip

# name: (key of the audit's record, its new value, code of `vflsec gate` without seals)
RECORD: dict[str, tuple[str, Any, int]] = {
    "lax gates": ("gates", [{"max": 0.9}], 0),
    "no gates": ("gates", [], 2),
    "gates of text": ("gates", ["x"], 2),
    "a limit of text": ("gates", [{"max": "x"}], 2),
    "a limit of nothing": ("gates", [{"max": None}], 2),
    "nothing wanted": ("wanted", {}, 3),
    "wanted numbers": ("wanted", {"a": 3}, 2),
    "no data sets": ("datasets", {}, 3),
    "data sets of lists": ("datasets", {"audit:x": [1]}, 3),
    "a confidence of 5": ("confidence", 5.0, 2),
    "a low confidence": ("confidence", 0.5, 2),
    "no looks": ("looks", 0, 2),
    "looks of text": ("looks", "x", 2),
    "looks without end": ("looks", 10**30, 2),
    "a source of a number": ("scenario_source", 3, 2),
    "a source elsewhere": ("scenario_source", {"path": "../../../../dev/zero"}, 1),
    "a source with a null": ("scenario_source", {"path": "a\0b"}, 1),
    "an escape in the file": ("scenario_file", "\x1b[31mx\n::error::y", 1),
    "a date of a number": ("when", 3, 1),
    "visibility of text": ("visibility", ["x"], 2),
    "lines of text": ("gate_lines", "xyz", 1),
    "algorithms of a number": ("algorithms", 3, 2),
    "attacks of a number": ("attacks", 3, 2),
    "known rows of text": ("known_rows", {"x": "y"}, 1),
    "versions of a list": ("versions", [], 2),
}  # fmt: skip


def _each(**change: Any) -> Any:
    return lambda old: [{**entry, **change} for entry in old]


# name: (key of summary.json, its new value or a function of the old, code of `vflsec report --to`
# without a seal)
SUMMARY: dict[str, tuple[str, Any, int]] = {
    "an exit code of 0": ("exit_code", 0, 0),
    "a passed gate": ("gates", _each(verdict="PASS"), 0),
    "no gate": ("gates", [], 0),
    "an unknown verdict": ("gates", _each(verdict="MAYBE"), 2),
    "a verdict of a list": ("gates", _each(verdict=[1]), 2),
    "a value of text": ("gates", _each(value="x"), 2),
    "points of text": ("points", _each(value="x"), 2),
    "curves of text": ("curves", ["x"], 2),
    "alive of numbers": ("alive", {"x": 3}, 2),
    "findings of numbers": ("findings", [3], 2),
    "costs of text": ("cost", {"training_seconds": "x"}, 2),
    "costs of a number": ("cost", {"training_seconds": 1, "run_seconds": None, "points": 3}, 2),
    "parties of a number": ("parties", {"t": 3}, 2),
    "cells of nothing": ("cells", {}, 2),
    "a confidence of 7": ("confidence", 7.0, 2),
    "visibility of numbers": ("visibility", [3], 2),
    "attacks of numbers": ("attacks", [3], 2),
    "defenses of numbers": ("defenses", [3], 2),
    "doses of numbers": ("dosing", [3], 2),
    "pictures of numbers": ("pictures", [3], 2),
    "epochs of numbers": ("over_time", [3], 2),
    "no versions": ("versions", {}, 2),
}  # fmt: skip
