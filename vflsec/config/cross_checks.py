"""Rules of a scenario that tie several keys together, or say more than a key's type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.config.limits import find_bad_names
from vflsec.config.problems import Origin, Problem
from vflsec.config.sections import Data
from vflsec.config.toml_text import Path as KeyPath
from vflsec.data.names import label_rule
from vflsec.data.table_spec import FILE_KEYS, TABLE_KEYS

__all__ = ["check_across", "naming"]

_NAME = 100  # characters of a scenario's name


def check_across(origin: Origin, normal: Mapping[str, Any]) -> list[Problem]:
    """Rules that tie several keys together."""
    out = find_bad_names(origin, normal)
    for i, data in enumerate(_list_tables(normal, "data")):
        out += _check_data(origin, i, data)
    for i, gate in enumerate(_list_tables(normal, "gate")):
        if (gate.get("max") is None) == (gate.get("min") is None):
            has = "neither" if gate.get("max") is None else "both"
            rule = f"needs one of max = ... and min = ..., it has {has}."
            out.append(origin.problem(("gate", i), rule))
    audit = normal.get("audit")
    seeds = audit.get("seeds") if isinstance(audit, Mapping) else None
    if isinstance(seeds, list):
        for i, seed in enumerate(seeds):
            if seed in seeds[:i]:
                rule = f"must differ from the other seeds, got {seed!r} twice."
                out.append(origin.problem(("audit", "seeds", i), rule, seed))
    elif isinstance(seeds, int) and not isinstance(seeds, bool):
        rule = f"must be an integer from 1 to 10000 or a list of seeds, got {seeds!r}."
        out.append(origin.problem(("audit", "seeds"), rule, seeds))
    for i, attack in enumerate(_list_tables(normal, "attack")):
        parties = attack.get("adversary")
        if isinstance(parties, list) and len(set(map(str, parties))) != len(parties):
            rule = f"must name each party once, got {parties!r}."
            out.append(origin.problem(("attack", i, "adversary"), rule, parties))
    return out


def naming(origin: Origin, name: str, default: str) -> list[Problem]:
    """A scenario's name becomes a folder's: it must not lead anywhere else."""
    shown = name or default
    if (
        len(shown) <= _NAME
        and shown.isprintable()
        and shown.strip(" .")
        and not set(shown) & set("/\\:")
    ):
        return []
    rule = f"must be a plain name of at most {_NAME} characters without / \\ : and line breaks"
    if not name:
        rule = f'is missing, and the file\'s own name is none. Add name = "...": it {rule}'
    return [origin.problem(("name",), f"{rule}, got {shown[:_NAME]!r}.", name or None)]


def _list_tables(normal: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    found = normal.get(section)
    return [t if isinstance(t, Mapping) else {} for t in found] if isinstance(found, list) else []


_TABLE_KEYS = tuple(k for k in TABLE_KEYS if k not in FILE_KEYS)


def _check_data(origin: Origin, i: int, data: Mapping[str, Any]) -> list[Problem]:
    here: KeyPath = ("data", i)
    has = [k for k in ("file", "files") if data.get(k)]
    if len(has) == 2:
        return [origin.problem((*here, "files"), "and file exclude each other; keep one.")]
    if not has:
        if not data.get("name"):
            known = list(Data.model_fields)
            if any(k not in known for k in data):
                return []  # the unknown key is reported, and may be the misspelt name
            rule = 'needs name = "..." (a registered data set), file = "..." or files = {...}.'
            return [origin.problem(here, rule)]
        return [
            origin.problem((*here, k), "is for your own tables (file or files) only.", data[k])
            for k in _TABLE_KEYS
            if k in data
        ]
    out = []
    if data.get("params"):
        rule = "is for registered data sets only; this section has own tables."
        out.append(origin.problem((*here, "params"), rule, data["params"]))
    if not data.get("label"):
        out.append(origin.problem(here, f"with {has[0]} needs label = ..., the column to predict."))
    elif rule := label_rule(data["label"], data.get("task")):
        out.append(origin.problem((*here, "label"), f"must {rule}.", data["label"]))
    if has == ["files"] and not data.get("id"):
        rule = "with files needs id = ..., the column that links rows (by party where it differs)."
        out.append(origin.problem(here, rule))
    if has == ["file"] and not data.get("columns"):
        rule = "with one file needs [data.columns]: which party holds which columns."
        out.append(origin.problem(here, rule))
    return out
