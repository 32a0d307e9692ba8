"""A report as Markdown: for a pull request, a step summary, or a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vflsec.report import tree
from vflsec.report.sanitize import escape_markdown as esc
from vflsec.report.tree import Kind, Report, Tone, View

_MARK = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔"}
_MOST = 40
_FOLDED = 12
"""Rows of a table that a reader has to unfold."""
_FIGURES = re.compile(r"[-+.,\d\[\] ]*")
_PLAIN = re.compile(r"[\w ./\\:=,+'\"\[\]{}()-]*")


def render_markdown(report: Report) -> str:
    """Verdict first, then what follows from it, every gate, and the attacks."""
    passed_so = (report.verdict, report.tone) == ("PASS", Tone.WARNING)
    mark = "⚠️" if passed_so else _MARK.get(report.verdict, "")
    title = f"## {mark} vflsec: {report.verdict} ({esc(report.name)})"
    blocks = _render_all(report.seen_by(View.SUMMARY), 3)
    return "\n\n".join([title.replace("  ", " "), *blocks]) + "\n"


def _render_all(blocks: Iterable[tree.Block], level: int) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, tree.Section):
            if block.title:
                yield f"{'#' * level} {esc(block.title)}"
            yield from _render_all(block.blocks, level + 1)
        elif isinstance(block, tree.Folded):
            yield f"**{esc(block.title)}**"
            yield from _render_all(block.blocks, level)
        else:
            yield _RENDER[type(block)](block)


def _render_paragraph(block: tree.Paragraph) -> str:
    return f"**{esc(block.strong)}**{esc(block.text)}" if block.strong else esc(block.text)


def _render_bullets(block: tree.Bullets) -> str:
    return "\n".join(f"- {esc(item)}" for item in block.items)


def _render_steps(block: tree.Steps) -> str:
    """Each step, its command in a block to copy (with odd names in it, as text that is safe)."""
    out = []
    for step in block.steps:
        plain = _PLAIN.fullmatch(step.command)
        out.append(f"1. {esc(step.text)}" + ("" if plain else f" {esc(step.command)}"))
        if step.command and plain:
            out += ["", "   ```console", f"   {step.command}", "   ```", ""]
    return "\n".join(out).rstrip()


def _render_gates(block: tree.Gates) -> str:
    heads = [("verdict", Kind.TEXT), ("gate", Kind.TEXT), ("where", Kind.TEXT),
             ("value", Kind.NUMBER), ("bounds", Kind.TEXT), ("why", Kind.TEXT)]  # fmt: skip
    rows = (
        (f"{_MARK[v.verdict]} {v.verdict}", esc(v.label), esc(v.where), v.value,
         f"{v.low} to {v.high}", esc(v.reason))
        for v in block.lines
    )  # fmt: skip
    return _grid(heads, rows)


def _render_table(block: tree.Table) -> str:
    heads = [(esc(c.head), c.kind) for c in block.columns]
    rows = [[_render_cell(c) for c in row] for row in block.rows[:_MOST]]
    more = len(block.rows) - _MOST
    table = _grid(heads, rows) + (f"\n\n{more} more are in {block.source}." if more > 0 else "")
    if len(block.rows) > _FOLDED:
        title = esc(block.caption)
        return f"<details><summary>{title}</summary>\n\n{table}\n\n</details>"
    return f"**{esc(block.caption)}**\n\n{table}" if block.caption else table


def _render_cell(cell: tree.Cell | str) -> str:
    text = cell if isinstance(cell, str) else cell.text
    return text if _FIGURES.fullmatch(text) else esc(text)


def _grid(heads: Iterable[tuple[str, Kind]], rows: Iterable[Iterable[str]]) -> str:
    names, kinds = zip(*heads, strict=True)
    rule = "|".join("---:" if kind is Kind.NUMBER else "---" for kind in kinds)
    lines = [f"| {' | '.join(names)} |", f"|{rule}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _render_facts(block: tree.Facts) -> str:
    return "\n".join(f"- {esc(f.term)}: {esc(f'{f.text} {f.code}'.strip())}" for f in block.facts)


def _render_answers(block: tree.Answers) -> str:
    """Each question with its answer beside it, or below it where it has several lines."""
    return "\n".join(
        "\n  - ".join([f"- **{esc(a.question)}**", *map(esc, a.lines)]) if len(a.lines) > 1
        else f"- **{esc(a.question)}** {esc(*a.lines)}"
        for a in block.answers
    )  # fmt: skip


_RENDER: dict[type, Callable[[Any], str]] = {
    tree.Paragraph: _render_paragraph, tree.Bullets: _render_bullets, tree.Steps: _render_steps,
    tree.Gates: _render_gates, tree.Table: _render_table,
    tree.Facts: _render_facts, tree.Answers: _render_answers,
}  # fmt: skip
