"""The user's own tables: every column, and which rows the parties share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vflsec.audit.summary import Summary
from vflsec.data.table_facts import ColumnFacts, Overlap, UserTable, UserTables
from vflsec.errors import join_some
from vflsec.report.sanitize import clean_tree
from vflsec.report.tree import Block, Paragraph, Section, Table, Tone, View, make_columns

_MOST = 60
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates"}

MATCHING = "What matching rows reveals"
PSI = "A private set intersection hides unmatched ids, but not from a party that invents ids."


def build_tables(summary: Summary) -> Section:
    """Every column of the user's tables, and which rows the parties share."""
    blocks = [b for name, of in summary.tables.items() for b in _build_tables(name, of)]
    if not blocks:
        none = "Traces; what was not recorded was not audited."
        said = Paragraph("No table of a user." if summary.scenario else none, views=View.STATEMENT)
        return Section("Tables", (said,))
    return Section("Tables", tuple(blocks), nav="Tables")


def _build_tables(name: str, facts: UserTables) -> list[Block]:
    right = ("Distinct", "Missing")
    columns = make_columns("Column", "Party", "Role", "Kind", *right, "Doubtful", name="Column",
                           numbers=right)  # fmt: skip
    out: list[Block] = [
        Table(
            _title_of(t), columns,
            tuple((c.name, c.party, c.role, _kind(c), str(c.distinct), str(c.missing), c.warning)
                  for c in t.columns),
            f"Columns of {t.file}",
        )
        for t in facts.tables
    ]  # fmt: skip
    return [*out, _build_overlap(name, facts.overlap)] if len(facts.overlap) > 1 else out


def _title_of(t: UserTable) -> str:
    how = f", {t.read_as}" if t.read_as else ""
    return f"{t.file} ({' and '.join(t.parties)}): {t.rows} rows{how}"


def _build_overlap(name: str, overlap: Mapping[str, Overlap]) -> Table:
    of = f" of {name}" if name else ""
    heads = ("Party", "Rows", "Shared", "With a label", "Unmatched")
    rows = (
        (party, *map(str, (f.rows, f.common, f.labelled, f.only_here)))
        for party, f in overlap.items()
    )
    return Table(
        f"Which rows the parties{of} share",
        make_columns(*heads, name="Party", numbers=heads),
        tuple(rows),
    )


def build_profile(data: UserTables, *, brief: bool = False) -> Section:
    """Tables and overlap of one data set, as a terminal has them; empty for a registered one.

    Args:
        data: the tables.
        brief: names of columns by kind, and not what is doubtful, which is printed anyway.
    """
    tables = data.tables
    blocks: list[Block] = [_indented(_short_title(t), _kinds(t)) for t in tables if brief]
    blocks += [b for t in tables if not brief for b in _build_columns(t)]
    if data.overlap and len(tables) > 1:
        overlap = _build_overlap("", data.overlap)
        heads = (replace(c, head=c.head.lower()) for c in overlap.columns)
        blocks.append(replace(overlap, caption="", columns=tuple(heads)))
    said = describe_matched(data)
    if said:
        blocks.append(_indented(MATCHING, said))
    return clean_tree(Section("", tuple(blocks)))


def _indented(title: str, lines: Iterable[str]) -> Section:
    return Section(title, tuple(Paragraph(f"  {line}") for line in lines), tone=Tone.LEAD)


def _short_title(table: UserTable) -> str:
    return _title_of(replace(table, read_as=table.read_as.replace("Parquet", "")))


def _build_columns(table: UserTable) -> list[Block]:
    """Every column with what it holds, and then what is doubtful."""
    several = len(table.parties) > 1
    names = ("column", *(("party",) if several else ()), "role", "kind", "distinct", "missing")
    right = ("distinct", "missing")
    listed = Table(
        _short_title(table),
        make_columns(*names, numbers=right),
        tuple(
            (c.name, *((c.party,) if several else ()), c.role, _kind(c), str(c.distinct),
             str(c.missing or ""))
            for c in table.columns
        ),
        source="--format json",
    )  # fmt: skip
    doubts = (f"  {c.name}: {c.warning}." for c in table.columns if c.warning)
    return [listed, *(Paragraph(text, Tone.WARNING) for text in doubts)]


def describe_matched(data: UserTables) -> list[str]:
    """What matching the rows of one data set tells by itself, sentence by sentence."""
    said = [found.says for found in data.alignment]
    return [*said, PSI] if said else []


def _kinds(table: UserTable) -> list[str]:
    """What each party has in a table: names of columns by kind, then those of another role."""
    several = len(table.parties) > 1
    out = []
    for party in table.parties:
        mine = [c for c in table.columns if c.role == "feature" and c.party == party]
        out.append((f"{party}: " if several else "") + (_by_kind(mine) or "no columns"))
    others = [c for c in table.columns if c.role not in ("feature", "unused")]
    roles = [f"{c.role}: {c.name}" + (f" ({c.kind})" if c.role == "label" else "") for c in others]
    unused = [c.name for c in table.columns if c.role == "unused"]
    roles += [f"unused: {', '.join(unused[:_MOST])}"] if unused else []
    return [*out, "; ".join(roles)] if roles else out


def _kind(column: ColumnFacts) -> str:
    """The kind with the unit: ``number, in EUR``."""
    return f"{column.kind}, in {column.unit}" if column.unit else column.kind


def _by_kind(columns: Sequence[ColumnFacts]) -> str:
    said = []
    for kind in dict.fromkeys(c.kind for c in columns):
        names = [c.name + (f" ({c.unit})" if c.unit else "") for c in columns if c.kind == kind]
        said.append(f"{_PLURAL.get(kind, kind)}: {join_some(names, _MOST)}")
    return "; ".join(said)
