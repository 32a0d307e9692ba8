"""The JSON schema of a scenario file, for editors, and the reference of its sections, for people.

Both are made from :mod:`vflsec.config.sections`. The schema describes the file as it may be
written: one table where the model holds a list, one number for a grid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vflsec.config import sections

SCHEMA_FILE = Path(__file__).resolve().parent / "scenario.schema.json"
"""Comes with the package; `make schema` writes it again."""

SECTIONS: dict[str, type[BaseModel]] = {
    "data": sections.Data,
    "parties": sections.Party,
    "algorithm": sections.Algorithm,
    "defense": sections.Defense,
    "attack": sections.Attack,
    "audit": sections.Audit,
    "gate": sections.Gate,
}
"""Sections of a scenario, in the order they are written."""

SHARED = ("data", "algorithm", "defense", "attack", "gate")
SWEPT = ("data", "algorithm", "attack")
"""Sections that may stand in ``[shared]``, and in ``[grid]``."""


_TABLE: dict[str, Any] = {"type": "object"}
_TABLES: dict[str, Any] = {"type": "object", "additionalProperties": _TABLE}


def _tables(below: dict[str, Any], names: tuple[str, ...], what: str) -> dict[str, Any]:
    return {
        "type": "object", "properties": dict.fromkeys(names, below), "additionalProperties": False,
        "description": what,
    }  # fmt: skip


_COMPOSED: dict[str, Any] = {
    "extends": {"type": "string", "description": "A scenario to put under this one."},
    "form": {"type": "string", "description": "The form that is asked for."},
    "forms": {
        **_TABLES, "description": "Other forms of the scenario, laid over the file when asked for."
    },
    "shared": _tables(_TABLE, SHARED, "Settings under every section of a kind."),
    "grid": _tables(_TABLES, SWEPT, "One section for each combination of the listed values."),
}  # fmt: skip
"""Keys that say a thing once; they are gone when the sections are read (`docs/scenarios.md`)."""


def make_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a scenario.

    Registered names are not listed in it: outside packages add to them.
    """
    found = sections.Root.model_json_schema()
    known = found["$defs"]
    either = found["properties"]
    for key in ("data", "algorithm"):
        of = either[key].pop("items")
        kept = {k: either[key].pop(k) for k in ("type", "minItems") if k in either[key]}
        either[key]["anyOf"] = [of, {**kept, "items": of}]
    strength = known["Defense"]["properties"]["strength"]
    strength["anyOf"].insert(0, {"type": "number", "minimum": 0})
    seeds = known["Audit"]["properties"]["seeds"]
    of = {k: seeds.pop(k) for k in ("type", "items", "minItems")}
    seeds["anyOf"] = [{"type": "integer", "minimum": 1, "maximum": 10_000}, of]
    either |= _COMPOSED
    found["anyOf"] = [{"required": found.pop("required")}, {"required": ["extends"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vflsec scenario",
        **{k: v for k, v in found.items() if k != "title"},
    }


def schema_text() -> str:
    """The schema as it stands in :data:`SCHEMA_FILE`."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def list_fields(section: str) -> list[dict[str, str]]:
    """Name, type, default and meaning of the keys of a section, as they are written in a file."""
    schema = make_schema()["$defs"][SECTIONS[section].__name__]["properties"]
    return [
        {
            "name": name,
            "type": _words(schema[name]),
            "default": ""
            if info.is_required() or info.default in (None, "", [], {})
            else json.dumps(info.default),
            "meaning": info.description or "",
        }
        for name, info in SECTIONS[section].model_fields.items()
    ]


def _words(schema: dict[str, Any]) -> str:
    """A JSON schema's type in plain words."""
    if "anyOf" in schema:
        words = [_words(s) for s in schema["anyOf"]]
        return " or ".join(dict.fromkeys(w for w in words if w not in ("", "null")))
    if "$ref" in schema:
        return "table"
    if "enum" in schema:
        few = len(schema["enum"]) < 6
        return " or ".join(json.dumps(v) for v in schema["enum"]) if few else "text"
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type", "")
    if kind == "array":
        inner = _words(schema.get("items", {}))
        plural = {"text": "texts", "number": "numbers", "integer": "integers"}.get(inner, inner)
        return f"list of {plural}" if inner else "list"
    if kind == "object":
        inner = _words(schema["additionalProperties"]) if isinstance(
            schema.get("additionalProperties"), dict
        ) else ""  # fmt: skip
        return f"table of {inner}" if inner else "table"
    limits = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    parts = [f"{sign} {schema[k]:g}" for k, sign in limits.items() if k in schema
             and abs(schema[k]) < 2**60]  # fmt: skip
    name = {"string": "text", "boolean": "true or false"}.get(kind, kind)
    return " ".join([name, ", ".join(parts)]).strip()
