"""What `vflsec compare` prints: what changed between two audits, and a sentence at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from vflsec.audit.compare import Compared, Comparison
from vflsec.audit.findings import ONE_SEED
from vflsec.errors import format_count
from vflsec.report import tree
from vflsec.report.console import print_blocks
from vflsec.report.numbers import format_bounded, format_number
from vflsec.report.sanitize import clean_tree
from vflsec.report.tree import Cell, Tone, make_columns
from vflsec.report.verdicts import format_place


def print_changes(found: Comparison, console: Console) -> None:
    """What `vflsec compare` found."""
    print_blocks(map(clean_tree, _build_changes(found)), console)


def _name(r: Compared) -> str:
    """The attack and who made it, or the utility; of no rows what was measured of a claim."""
    if r.attack:
        return f"{r.attack} by {r.adversary}"
    return f"utility ({r.metric})" if r.split else r.metric


def _build_changes(found: Comparison) -> Iterator[tree.Block]:
    for name, a, b in found.facts:
        yield tree.Paragraph(f"{name}: {a} -> {b}", Tone.SOFT)
    same = [r for r in found.rows if r.change == 0 and r.low in (0, None)]
    moved = [r for r in found.rows if r not in same]
    if moved:
        change = f"change, {100 * found.confidence:g} % interval"
        figures = ("before", "after", change, "seeds")
        heads = make_columns("data", "training", "what", "rows", *figures, numbers=figures)
        yield tree.Table("", heads, tuple(map(_change_row, moved)))
    for state, rows in (("gone", found.gone), ("new", found.new)):
        for r in rows:
            where = f"{r.dataset}, {r.algorithm}, {format_place(r)}"
            where += f", {r.split} rows" if r.split else ""
            yield tree.Paragraph(f"{state}: {_name(r)} ({where})", Tone.WARNING)
    if not found.rows:
        yield tree.Paragraph("No point is in both.")
    if same:
        yield tree.Paragraph(f"{len(same)} of {len(found.rows)} figures are equal.")
    if moved:
        yield tree.Paragraph(_conclusion(moved, found.confidence))
    if alone := sum(bool(r.attack) for r in (*found.gone, *found.new)):
        said = f"{format_count(alone, 'figure')} of attacks that one audit alone has"
        yield tree.Paragraph(f"Not compared: {said}.", Tone.WARNING)


def _change_row(r: Compared) -> tuple[Cell | str, ...]:
    tone = {1: Tone.LEAK, -1: Tone.GOOD, 0: Tone.PLAIN}[r.harm]
    seeds = f"{r.seeds}" if r.paired else f"{r.seeds} (unpaired)"
    change = Cell(format_bounded(r.change, r.low, r.high, sign=True), tone)
    return (
        r.dataset, f"{r.algorithm}, {format_place(r)}", _name(r), r.split,
        format_number(r.before), format_number(r.after), change, seeds,
    )  # fmt: skip


def _conclusion(moved: Sequence[Compared], level: float) -> str:
    """In how many figures leakage or utility changed beyond its interval, and where most."""
    if all(r.low is None for r in moved):
        return f"{ONE_SEED.capitalize()}."
    said = []
    for quantity, attacked, more, less in (
        ("leakage", True, "rose", "fell"),
        ("utility", False, "fell", "rose"),
    ):
        for harm, word in ((1, more), (-1, less)):
            if of := [r for r in moved if bool(r.attack) == attacked and r.harm == harm]:
                most = max(of, key=lambda r: abs(r.change))
                where = f"{_name(most)}, {most.algorithm}, {format_place(most)}, {most.split} rows"
                figures = "1 figure" if len(of) == 1 else f"{len(of)} figures"
                by = f"most by {format_number(most.change, sign=True)} ({where})"
                said.append(f"{quantity} {word} in {figures}, {by}")
    if not said:
        return f"No change is beyond its {100 * level:g} % interval."
    return f"Beyond its {100 * level:g} % interval {'; '.join(said)}."
