"""What somebody may do to stored results, as data.

Every edit is refused (2), and all the more where the seals are gone; only what was deleted whole
counts as not done, with the code that stands there.
"""

from __future__ import annotations

from typing import Any

GATED = "update measures set {} where attack != ''"

# name: statement, or (statement, code of `vflsec gate`)
SQL: dict[str, str | tuple[str, int]] = {
    "no measures": "drop table measures",
    "no cells": "drop table cells",
    "no done": "drop table done",
    "no meta": "drop table meta",
    "no record": "delete from meta where key = 'audit'",
    "a record of a list": "update meta set value = '[1]' where key = 'audit'",
    "a record of text": "update meta set value = '\"x\"' where key = 'audit'",
    "a record cut off": "update meta set value = substr(value, 1, 99) where key = 'audit'",
    "an empty record": "update meta set value = '{}' where key = 'audit'",
    "a binary record": "update meta set value = x'ff00' where key = 'audit'",
    "a deep record": "update meta set value = replace(hex(zeroblob(50000)), '0', '[')",
    "another version": "update meta set value = '7' where key = 'schema_version'",
    "a version of text": "update meta set value = 'x' where key = 'schema_version'",
    "a spec of a list": "update cells set spec = '[1]'",
    "a spec cut off": "update cells set spec = substr(spec, 1, 20)",
    "a spec of nothing": "update cells set spec = '{}'",
    "a seed of text": "update cells set spec = replace(spec, '\"seed\": 1', '\"seed\": \"x\"')",
    "a ledger of numbers": "update cells set ledger = '[1]'",
    "a ledger of text": "update cells set ledger = 'x'",
    "guarantees of numbers": "update cells set guarantees = '[1]'",
    "a guarantee of text": "update cells set guarantees = '[{\"epsilon\": \"x\"}]'",
    "facts of a list": "update cells set facts = '[1]'",
    "parties of a number": "update cells set facts = '{\"parties\": 3}'",
    "seconds of text": "update cells set seconds = 'long'",
    "trainings deleted": ("delete from cells where rowid % 2", 3),
    "values of text": "update measures set value = 'high'",
    "values made chance": GATED.format("value = 0.55"),
    "values in reverse": GATED.format("value = -7.0"),
    "values gone": GATED.format("value = null"),
    "controls made strong": GATED.format("controls = '{\"x\": {\"value\": 0.999, \"cv\": 1}}'"),
    "controls of text": GATED.format("controls = '{\"x\": \"y\"}'"),
    "controls of a word": GATED.format("controls = '{\"x\": {\"value\": \"y\", \"cv\": 1}}'"),
    "controls cut off": "update measures set controls = '{'",
    "controls of a list": "update measures set controls = '[1]'",
    "a status not applicable": GATED.format("status = 'not-applicable', value = null"),
    "an unknown status": GATED.format("status = 'fine'"),
    "measures deleted": "delete from measures where attack != ''",
    "what is done deleted": ("delete from done where attack_key != ''", 3),
    "an attack of bytes": GATED.format("attack = x'ff00'"),
    "a victim of a number": "update measures set victim = 3",
    "counts of text": "update measures set n = 'many'",
    "notes of text": "update measures set notes = 'x'",
}  # fmt: skip

# name: (key of the audit's record, its new value)
RECORD: dict[str, tuple[str, Any]] = {
    "lax gates": ("gates", [{"max": 0.9}]),
    "no gates": ("gates", []),
    "gates of text": ("gates", ["x"]),
    "a limit of text": ("gates", [{"max": "x"}]),
    "a limit of nothing": ("gates", [{"max": None}]),
    "nothing wanted": ("wanted", {}),
    "wanted numbers": ("wanted", {"a": 3}),
    "no data sets": ("datasets", {}),
    "data sets of lists": ("datasets", {"audit:x": [1]}),
    "a confidence of 5": ("confidence", 5.0),
    "a low confidence": ("confidence", 0.5),
    "acting defenses of a number": ("acting", {"gradient": 3}),
    "looks of a number": ("looks", 3),
    "looks at no seed": ("looks", {"seeds": [0, 5]}),
    "looks that go back": ("looks", {"seeds": [10, 5]}),
    "looks of text": ("looks", {"seeds": ["x"]}),
    "looks without end": ("looks", {"seeds": [*range(1, 2000)]}),
    "a source of a number": ("scenario_source", 3),
    "a source elsewhere": ("scenario_source", {"path": "../../../../dev/zero"}),
    "a source with a null": ("scenario_source", {"path": "a\0b"}),
    "an escape in the file": ("scenario_file", "\x1b[31mx\n::error::y"),
    "a date of a number": ("when", 3),
    "visibility of text": ("visibility", ["x"]),
    "algorithms of a number": ("algorithms", 3),
    "attacks of a number": ("attacks", 3),
    "known rows of text": ("known_rows", {"x": "y"}),
    "versions of a list": ("versions", []),
}  # fmt: skip


def _each(**change: Any) -> Any:
    return lambda old: [{**entry, **change} for entry in old]


# name: (key of summary.json, its new value or a function of the old)
SUMMARY: dict[str, tuple[str, Any]] = {
    "an exit code of 0": ("exit_code", 0),
    "a passed gate": ("gates", _each(verdict="PASS")),
    "no gate": ("gates", []),
    "an unknown verdict": ("gates", _each(verdict="MAYBE")),
    "a verdict of a list": ("gates", _each(verdict=[1])),
    "a value of text": ("gates", _each(value="x")),
    "curves of text": ("curves", ["x"]),
    "alive of numbers": ("alive", {"x": 3}),
    "findings of numbers": ("findings", [3]),
    "costs of text": ("cost", {"training_seconds": "x"}),
    "costs of a number": ("cost", {"training_seconds": 1, "run_seconds": None, "points": 3}),
    "parties of a number": ("parties", {"t": 3}),
    "cells of nothing": ("cells", {}),
    "a confidence of 7": ("confidence", 7.0),
    "visibility of numbers": ("visibility", [3]),
    "attacks of numbers": ("attacks", [3]),
    "defenses of numbers": ("defenses", [3]),
    "doses of numbers": ("dosing", [3]),
    "pictures of numbers": ("pictures", [3]),
    "no versions": ("versions", {}),
}  # fmt: skip
