"""The user's own tables: every column, and which rows the parties share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from vflsec.report.sanitize import clean, clean_tree
from vflsec.report.tree import Block, Column, Kind, Paragraph, Section, Table, Tone, View

__all__ = ["MATCHING", "build_profile", "build_tables", "matched"]

_MOST = 60
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates"}
_PAGES = frozenset({View.PAGE, View.STATEMENT, View.SUMMARY})
_STATEMENT = frozenset({View.STATEMENT})

MATCHING = "What matching the rows tells by itself"
PSI = (
    "A private set intersection changes nothing of this: it hides the ids of rows without a "
    "partner, and a party that adds invented ids learns of those, too."
)


def build_tables(summary: Mapping[str, Any]) -> Section:
    """Every column of the user's tables, and which rows the parties share."""
    blocks = [b for name, of in summary.get("tables", {}).items() for b in _build_tables(name, of)]
    if not blocks:
        none = (
            "No table of a user: the data come with vflsec or from a plug-in, with the hashes "
            "under 8."
            if summary.get("scenario")
            else "Traces that were recorded of trainings, with the hashes of their seals under 8. "
            "What was not recorded was not audited."
        )
        return Section("Tables", (Paragraph(none, views=_STATEMENT),), key="tables")
    return Section("Tables", tuple(blocks), key="tables", nav="Tables")


def _build_tables(name: str, facts: Mapping[str, Any]) -> list[Block]:
    heads = {"name": "Column", "party": "Party", "role": "Role", "kind": "Kind",
             "distinct": "Distinct", "missing": "Missing", "warning": "Doubtful"}  # fmt: skip
    kinds = {"name": Kind.NAME, "distinct": Kind.NUMBER, "missing": Kind.NUMBER}
    columns = tuple(Column(head, kinds.get(k, Kind.TEXT)) for k, head in heads.items())
    out: list[Block] = [
        Table(
            _title_of(t), columns, tuple(tuple(_cell(c, k) for k in heads) for c in t["columns"]),
            f"Columns of {t['file']}",
        )
        for t in facts.get("tables", ())
    ]  # fmt: skip
    overlap = facts.get("overlap") or {}
    return [*out, _build_overlap(name, overlap)] if len(overlap) > 1 else out


def _title_of(t: Mapping[str, Any]) -> str:
    how = f", {t['read_as']}" if t["read_as"] else ""
    return f"{t['file']} ({' and '.join(t['parties'])}): {t['rows']} rows{how}"


def _build_overlap(name: str, overlap: Mapping[str, Mapping[str, int]]) -> Table:
    of = f" of {name}" if name else ""
    heads = ("Party", "Rows", "In common", "With a label", "Only here")
    rows = (
        (party, *(str(f[k]) for k in ("rows", "common", "labelled", "only_here")))
        for party, f in overlap.items()
    )
    return Table(
        f"Which rows the parties{of} share",
        tuple(Column(h, Kind.NUMBER if i else Kind.NAME) for i, h in enumerate(heads)),
        tuple(rows),
    )


def build_profile(data: Mapping[str, Any], *, brief: bool = False) -> Section:
    """Tables and overlap of one data set, as a terminal has them; empty for a registered one.

    Args:
        data: with ``tables`` and ``overlap``, see :mod:`vflsec.data.profile`.
        brief: names of columns by kind, and not what is doubtful, which is printed anyway.
    """
    tables = data.get("tables") or ()
    blocks = [b for t in tables for b in (_build_kinds(t) if brief else _build_columns(t))]
    if data.get("overlap") and len(tables) > 1:
        overlap = _build_overlap("", data["overlap"])
        heads = (replace(c, head=c.head.lower()) for c in overlap.columns)
        blocks.append(replace(overlap, caption="", columns=tuple(heads)))
    said = _told(data)
    if said:
        blocks.append(_indented(MATCHING, said))
    return clean_tree(Section("", tuple(blocks)))


def _indented(title: str, lines: Iterable[str]) -> Section:
    return Section(title, tuple(Paragraph(f"  {line}") for line in lines), tone=Tone.LEAD)


def _build_kinds(table: Mapping[str, Any]) -> list[Block]:
    return [_indented(_short_title(table), _kinds(table))]


def _short_title(table: Mapping[str, Any]) -> str:
    return _title_of({**table, "read_as": table["read_as"].replace("Parquet", "")})


def _build_columns(table: Mapping[str, Any]) -> list[Block]:
    """Every column with what it holds, and then what is doubtful."""
    several = len(table["parties"]) > 1
    names = ["column", *(["party"] if several else []), "role", "kind", "distinct", "missing"]
    right = ("distinct", "missing")
    keys = {"column": "name"}
    listed = Table(
        _short_title(table),
        tuple(Column(n, Kind.NUMBER if n in right else Kind.TEXT) for n in names),
        tuple(
            tuple(_cell(c, keys.get(n, n)) if c[keys.get(n, n)] else "" for n in names)
            for c in table["columns"]
        ),
        source="--format json",
    )  # fmt: skip
    doubts = (f"  {c['name']}: {c['warning']}." for c in table["columns"] if c["warning"])
    return [listed, *(Paragraph(text, Tone.WARNING) for text in doubts)]


def matched(summary: Mapping[str, Any], name: str) -> list[str]:
    """What matching the rows of one data set tells by itself, sentence by sentence."""
    return _told(summary.get("tables", {}).get(name) or {})


def _told(data: Mapping[str, Any]) -> list[str]:
    said = [clean(found["says"]) for found in data.get("alignment") or ()]
    return [*said, PSI] if said else []


def _kinds(table: Mapping[str, Any]) -> list[str]:
    """What each party has in a table: names of columns by kind, then those of another role."""
    out = []
    several = len(table["parties"]) > 1
    for party in table["parties"]:
        mine = [c for c in table["columns"] if c["role"] == "feature" and c["party"] == party]
        said = []
        for kind in dict.fromkeys(c["kind"] for c in mine):
            names = [c["name"] + _unit(c, " ({})") for c in mine if c["kind"] == kind]
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


def _cell(column: Mapping[str, Any], key: str) -> str:
    """What a table of columns shows; the kind with the unit: ``number, in EUR``."""
    return f"{column[key]}{_unit(column, ', in {}') if key == 'kind' else ''}"


def _unit(column: Mapping[str, Any], pattern: str) -> str:
    return pattern.format(column["unit"]) if column.get("unit") else ""


def _of(column: Mapping[str, Any]) -> str:
    return f" ({column['kind']})" if column["role"] == "label" else ""
