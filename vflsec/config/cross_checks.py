"""Rules of a scenario that tie several keys together, or say more than a key's type."""

from __future__ import annotations

from vflsec.config.problems import SEEDS, UNEQUAL, Problem, Written, list_tables
from vflsec.config.sections import Data
from vflsec.core import check
from vflsec.data.names import find_unshowable, label_rule
from vflsec.data.table_spec import FILE_KEYS, TABLE_KEYS
from vflsec.runtime.plain_values import Plain, Table

_NAME = 100  # characters of a scenario's name
_TABLE_KEYS = tuple(k for k in TABLE_KEYS if k not in FILE_KEYS)


def check_across(tree: Written, normal: Table) -> list[Problem]:
    """Rules that tie several keys together."""
    out = _check_shown(tree.below("name"), normal.get("name"))
    for i, data in list_tables(normal, "data"):
        here = tree.at(("data", i))
        out += _check_shown(here.below("name"), data.get("name")) + _check_data(here, data)
    audit = normal.get("audit")
    seeds = audit.get("seeds") if isinstance(audit, dict) else None
    if isinstance(seeds, list):
        for i, seed in enumerate(seeds):
            if seed in seeds[:i]:
                rule = check.must(UNEQUAL, seed)
                out.append(tree.problem(("audit", "seeds", i), rule, seed))
    elif isinstance(seeds, int) and check.is_number(seeds):
        rule = check.must(f"be {SEEDS}", seeds)
        out.append(tree.problem(("audit", "seeds"), rule, seeds))
    if isinstance(audit, dict) and audit.get("messages") == "sample" and not audit.get("sample"):
        rule = 'needs a sample. Add sample = 100000, or set messages = "all".'
        out.append(tree.problem(("audit", "messages"), rule, "sample"))
    for i, attack in list_tables(normal, "attack"):
        parties = attack.get("adversary")
        if isinstance(parties, list) and len(set(map(str, parties))) != len(parties):
            rule = check.must(UNEQUAL, parties)
            out.append(tree.problem(("attack", i, "adversary"), rule, parties))
    return out


def _check_shown(place: Written | None, name: Plain) -> list[Problem]:
    """Names that reports and ``results.csv`` show: one printable line that is no formula."""
    if place is None or not isinstance(name, str) or not (why := find_unshowable(name)):
        return []
    shown = name if len(name) < 80 else f"{name[:60]}... ({len(name)} characters)"
    return [place.problem((), check.must(why, shown, "Choose another."), name)]


def check_name(tree: Written, name: str, default: str) -> list[Problem]:
    """A scenario's name becomes a folder's: it must not lead anywhere else."""
    shown = name or default
    plain = shown.isprintable() and shown.strip(" .") and not set(shown) & set("/\\:")
    if plain and len(shown) <= _NAME:
        return []
    rule = f"must be a plain name of at most {_NAME} characters without / \\ :"
    if not name:
        rule = f'is missing. Add name = "...": it {rule}'
    return [tree.problem(("name",), f"{rule}, got {shown[:_NAME]!r}.", name or None)]


def _check_data(here: Written, data: Table) -> list[Problem]:
    has = [k for k in ("file", "files") if data.get(k)]
    if len(has) == 2:
        return [here.problem(("files",), "and file exclude each other; keep one.")]
    if not has and not data.get("name"):
        if any(k not in Data.model_fields for k in data):
            return []  # the unknown key is reported, and may be the misspelt name
        rule = 'needs name = "...", file = "..." or files = {...}.'
        return [here.problem((), rule)]
    if not has:
        rule = "needs file or files."
        return [here.problem((k,), rule, data[k]) for k in _TABLE_KEYS if k in data]
    out = []
    if data.get("params"):
        rule = "is for registered data sets only."
        out.append(here.problem(("params",), rule, data["params"]))
    if not data.get("label"):
        out.append(here.problem((), "needs label = ..., the column to predict."))
    elif rule := label_rule(data["label"], str(data.get("task"))):
        out.append(here.problem(("label",), f"must {rule}.", data["label"]))
    if has == ["files"] and not data.get("id"):
        rule = "needs id = ..., the column that links rows."
        out.append(here.problem((), rule))
    return out + _check_divided(here, data, has)


def _check_divided(here: Written, data: Table, has: list[str]) -> list[Problem]:
    """Who holds which columns is said once."""
    divide = data.get("divide")
    if not divide:
        if has == ["file"] and not data.get("columns"):
            rule = "needs [data.columns]: which party holds which. Or [data.divide]."
            return [here.problem((), rule)]
        return []
    out = []
    for key in ("files", "columns", "active"):
        if data.get(key):
            rule = "excludes divide, which is for `file` and names the parties; keep one."
            out.append(here.problem((key,), rule, data[key]))
    if isinstance(divide, dict):
        ways = [k for k in ("importance", "alpha", "correlation") if k in divide]
        if len(ways) != 1:
            rule = check.must("have one of importance, alpha and correlation", ways)
            out.append(here.problem(("divide",), rule, divide))
    return out
