"""A report on a terminal: its sections laid out in lines and tables that fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from vflsec.report import tree
from vflsec.report.sanitize import clean
from vflsec.report.tree import TONES, Kind, Report, Tone, View

_TONES = {Tone.SOFT: "dim", Tone.WARNING: "yellow", Tone.LEAK: "red", Tone.GOOD: "green"}
_MOST = 60


def hang(head: str, body: Text, style: str = "") -> Grid:
    """A hanging indent: `head`, then `body` wrapped beside it."""
    grid = Grid.grid(padding=0)
    grid.add_column(width=len(head))
    grid.add_column()
    grid.add_row(Text(head, style=style), body)
    return grid


def print_report(report: Report, console: Console) -> None:
    """A report that was built for a terminal, in short or as a whole."""
    print_blocks(_seen(report), console)


def _seen(report: Report) -> tuple[tree.Section, ...]:
    return report.seen_by(View.WHOLE if View.WHOLE in report.sections else View.TERMINAL)


def print_section(report: Report, key: str, console: Console) -> None:
    """One section: what was measured (``leakage``), or every gate with its reason (``gates``)."""
    print_blocks([s for s in _seen(report) if s.key == key], console)


def print_blocks(blocks: Iterable[tree.Block], console: Console) -> None:
    """Sections and what stands in them, in order."""
    for block in blocks:
        _PRINT[type(block)](block, console)


def _print_section(section: tree.Section, console: Console) -> None:
    if section.title:
        above = "" if section.tone is Tone.LEAD else "\n"
        console.print(Text(f"{above}{section.title}", style="bold"))
    elif section.blocks and isinstance(section.blocks[0], tree.Paragraph):
        console.print()
    print_blocks(section.blocks, console)


def _print_paragraph(block: tree.Paragraph, console: Console) -> None:
    text = Text(f"{block.strong}{block.text}", style=_TONES.get(block.tone, ""))
    if block.command:
        console.print(text.append(f" {block.command}"), soft_wrap=True)
    elif block.text.startswith("  "):
        console.print(hang("  ", Text(block.text[2:], style=text.style)))
    else:
        console.print(text)


def _print_bullets(block: tree.Bullets, console: Console) -> None:
    for item in block.items:
        console.print(hang("- ", Text(item)))


def _print_steps(block: tree.Steps, console: Console) -> None:
    for step in block.steps:
        console.print(hang("- ", Text(step.text)))
        if step.command:
            console.print(Text(f"    {step.command}"), soft_wrap=True)


def _print_gates(block: tree.Gates, console: Console) -> None:
    for gate in block.lines:
        body = Text(gate.label + (f" ({gate.short})" if gate.short else ""))
        body.append(f"\n{gate.reason}", style="dim")
        console.print(
            hang(f"{gate.verdict:<13}", body, f"bold {_TONES.get(TONES[gate.verdict], '')}")
        )


def _print_folded(block: tree.Folded, console: Console) -> None:
    console.print(Text(f"\n{block.title}", style="bold"))
    print_blocks(block.blocks, console)


def _print_facts(block: tree.Facts, console: Console) -> None:
    for fact in block.facts:
        console.print(hang(f"{fact.term}: ", Text(" ".join(filter(None, (fact.text, fact.code))))))


def _print_answers(block: tree.Answers, console: Console) -> None:
    for answer in block.answers:
        console.print(Text(answer.question, style="bold"))
        for line in answer.lines:
            console.print(hang("  - " if len(answer.lines) > 1 else "  ", Text(line)))


def _print_table(block: tree.Table, console: Console) -> None:
    if block.caption:
        console.print(Text(f"\n{block.caption}"))
    group = next((i for i, c in enumerate(block.columns) if c.kind is Kind.GROUP), None)
    kept = [i for i in range(len(block.columns)) if i != group]
    columns = [block.columns[i] for i in kept]
    rows = [[_cell_text(row[i]) for i in kept] for row in block.rows[:_MOST]]
    widths = _fit_columns(columns, rows, console.width)
    titles = ["" if group is None else _cell_text(row[group]).plain for row in block.rows]
    head = True
    for title, of in itertools.groupby(zip(titles, rows, strict=False), lambda pair: pair[0]):
        if title and head:
            console.print(_lay_rows(columns, widths, [], head))
        if title:  # on a line of its own: no column is as wide
            console.print(Text(title, style="italic"))
        console.print(_lay_rows(columns, widths, (cells for _, cells in of), head and not title))
        head = False
    more = len(block.rows) - _MOST
    if more > 0:
        console.print(f"and {more} more ({block.source} has all).")


def _lay_rows(
    columns: Sequence[tree.Column], widths: Sequence[int], rows: Iterable[Sequence[Text]],
    head: bool,
) -> Grid:  # fmt: skip
    """Rows in columns of these widths, below their heads if `head`."""
    grid = Grid(box=None, pad_edge=False, header_style="dim", show_header=head)
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(
            Text(column.head), width=width, overflow="fold",
            justify="right" if column.kind is Kind.NUMBER else "left",
        )  # fmt: skip
    for cells in rows:
        grid.add_row(*cells)
    return grid


def _cell_text(cell: tree.Cell | str) -> Text:
    if isinstance(cell, str):
        return Text(cell)
    return Text(cell.text, _TONES.get(cell.tone, ""))


def _fit_columns(
    columns: Sequence[tree.Column], rows: Sequence[Sequence[Text]], width: int
) -> list[int]:
    """Widths of the columns, two blanks between.

    What folds first are the parameters of a name, and texts between words; then long words; then
    an interval into its two ends; then all that is left.
    """
    cells = [[row[k].plain for row in rows] for k in range(len(columns))]
    out = [max(map(len, [c.head, *of])) for c, of in zip(columns, cells, strict=True)]
    names = [max((len(t.partition("(")[0]) for t in of), default=0) for of in cells]
    order = ((0, True, True), (12, True, True), (15, False, True), (8, False, False),
             (4, False, False))  # fmt: skip
    for least, whole, named in order:
        floors = [
            _least_width(column, of, least, name if named else None, whole=whole)
            for column, of, name in zip(columns, cells, names, strict=True)
        ]
        over = sum(out) + 2 * (len(out) - 1) - width
        while over > 0:
            k = max(range(len(out)), key=lambda k: (out[k] - floors[k] > 0) * out[k])
            if out[k] <= floors[k]:
                break
            out[k], over = out[k] - 1, over - 1
    return out


def _least_width(
    column: tree.Column, cells: Sequence[str], least: int, name: int | None, *, whole: bool
) -> int:
    """To what a column may shrink: to its longest word where `least` is 0; names to `name` at most,
    if it is not None, and intervals not at all if `whole`.
    """
    if column.kind is Kind.NAME and name is not None:
        return name
    if whole and any(", " in t and t.endswith("]") for t in cells):
        return max(map(len, cells))
    words = (word for text in (column.head, *cells) for word in text.split())
    return least or max(map(len, words), default=0)


_PRINT: dict[type, Callable[[Any, Console], None]] = {
    tree.Section: _print_section, tree.Paragraph: _print_paragraph, tree.Bullets: _print_bullets,
    tree.Steps: _print_steps, tree.Gates: _print_gates, tree.Folded: _print_folded,
    tree.Facts: _print_facts, tree.Answers: _print_answers, tree.Table: _print_table,
}  # fmt: skip


def print_results(folder: Path, console: Console) -> None:
    """Where the results are, and which page to open; a part of an audit has none."""
    report, sign = folder / "report.html", "statement.html"
    pages = f" (open {report}; to sign: {sign})" if report.is_file() else ""
    console.print(clean(f"Results: {folder}{pages}"), soft_wrap=True)


def print_last(report: Report, console: Console) -> None:
    """The overall verdict and what it holds for, on one line; nothing should follow it."""
    line = Text(report.scope)
    line.stylize(f"bold {_TONES.get(report.tone, '')}".strip(), 0, len(report.verdict))
    console.print(line, soft_wrap=True, highlight=False)
