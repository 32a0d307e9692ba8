"""The user's own tables on a terminal: every column, and which rows the parties share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vflsec.report.rich_items import item
from vflsec.report.sanitize import clean, shown

__all__ = ["MATCHING", "matched", "print_tables"]

_MOST = 60
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates"}

MATCHING = "What matching the rows tells by itself"
PSI = (
    "A private set intersection changes nothing of this: it hides the ids of rows without a "
    "partner, and a party that adds invented ids learns of those, too."
)


def print_tables(data: Mapping[str, Any], console: Console, *, brief: bool = False) -> None:
    """Tables and overlap of one data set; nothing for a registered one.

    Args:
        data: with ``tables`` and ``overlap``, see :mod:`vflsec.data.profile`.
        console: where to print.
        brief: names of columns by kind, and not what is doubtful, which is printed anyway.
    """
    data = shown(data)
    for table in data.get("tables") or ():
        how = f", {table['read_as']}" if table["read_as"] not in ("", "Parquet") else ""
        whose = " and ".join(table["parties"])
        console.print(Text(f"{table['file']} ({whose}): {table['rows']} rows{how}", style="bold"))
        if brief:
            for line in _kinds(table):
                console.print(item("  ", Text(line)))
            continue
        console.print(_columns(table, len(table["parties"]) > 1))
        more = len(table["columns"]) - _MOST
        if more > 0:
            console.print(f"and {more} more columns (--format json lists all).")
        for column in table["columns"]:
            if column["warning"]:
                line = f"  {column['name']}: {column['warning']}."
                console.print(Text(line, style="yellow"))
    overlap = data.get("overlap") or {}
    if overlap and data.get("tables") and len(data["tables"]) > 1:
        console.print(_overlap(overlap))
    said = _told(data)
    if said:
        console.print(Text(MATCHING, style="bold"))
        for line in said:
            console.print(Text(f"  {line}"))
    if data.get("tables") or said:
        console.print()


def matched(summary: Mapping[str, Any], name: str) -> list[str]:
    """What matching the rows of one data set tells by itself, sentence by sentence."""
    return _told(summary.get("tables", {}).get(name) or {})


def _told(data: Mapping[str, Any]) -> list[str]:
    said = [clean(found["says"]) for found in data.get("alignment") or ()]
    return [*said, PSI] if said else []


def _columns(table: Mapping[str, Any], several: bool) -> Table:
    out = Table(box=None, pad_edge=False, header_style="dim")
    names = ["column", "role", "kind", "distinct", "missing"]
    names = [*names[:1], "party", *names[1:]] if several else names
    for name in names:
        right = name in ("distinct", "missing")
        out.add_column(name, overflow="fold", justify="right" if right else "left")
    for c in table["columns"][:_MOST]:
        row = [c["name"], c["role"], c["kind"], str(c["distinct"]), str(c["missing"] or "")]
        if several:
            row.insert(1, c["party"])
        out.add_row(*map(Text, row))
    return out


def _kinds(table: Mapping[str, Any]) -> list[str]:
    """What each party has in a table: names of columns by kind, then those of another role."""
    out = []
    several = len(table["parties"]) > 1
    for party in table["parties"]:
        mine = [c for c in table["columns"] if c["role"] == "feature" and c["party"] == party]
        said = []
        for kind in dict.fromkeys(c["kind"] for c in mine):
            names = [c["name"] for c in mine if c["kind"] == kind]
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            said.append(f"{_PLURAL.get(kind, kind)}: {', '.join(names[:_MOST])}{more}")
        out.append((f"{party}: " if several else "") + ("; ".join(said) or "no columns"))
    others = [c for c in table["columns"] if c["role"] != "feature"]
    roles = [
        f"{c['role']}: {c['name']}{_of(c)}" for c in others if c["role"] != "unused"
    ]  # fmt: skip
    unused = [c["name"] for c in others if c["role"] == "unused"]
    roles += [f"unused: {', '.join(unused[:_MOST])}"] if unused else []
    return [clean(line) for line in [*out, *(["; ".join(roles)] if roles else [])]]


def _of(column: Mapping[str, Any]) -> str:
    return f" ({column['kind']})" if column["role"] == "label" else ""


def _overlap(overlap: Mapping[str, Mapping[str, int]]) -> Table:
    out = Table(box=None, pad_edge=False, header_style="dim")
    out.add_column("party")
    for name in ("rows", "in common", "with a label", "only here"):
        out.add_column(name, justify="right")
    for party, f in overlap.items():
        out.add_row(Text(party), *(str(f[k]) for k in ("rows", "common", "labelled", "only_here")))
    return out
