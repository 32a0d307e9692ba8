"""What `vflsec compare` prints: what changed between two audits, and a sentence at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from vflsec.audit.point import Training
from vflsec.report import tree
from vflsec.report.console import print_blocks
from vflsec.report.numbers import bounded, number
from vflsec.report.sanitize import clean_tree
from vflsec.report.tree import Cell, Tone, make_columns
from vflsec.report.verdicts import place
from vflsec.runtime.plain_values import read_as

__all__ = ["print_changes"]


@dataclass(frozen=True)
class Change(Training):
    """A figure of two audits, and what changed, see :func:`vflsec.audit.compare.compare`."""

    attack: str = ""
    adversary: str = ""
    metric: str = ""
    split: str = ""
    before: float | None = None
    after: float | None = None
    change: float = 0.0
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    paired: bool = True

    @property
    def harm(self) -> int:
        """1 for more leakage or less utility beyond the interval, -1 for the opposite, else 0."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return 0
        return 1 if (self.low > 0) == bool(self.attack) else -1

    @property
    def what(self) -> str:
        """The attack and who made it, or the utility."""
        return f"{self.attack} by {self.adversary}" if self.attack else f"utility ({self.metric})"


@dataclass(frozen=True)
class Comparison:
    """Two audits: facts that differ, figures of both, and those of one alone."""

    confidence: float
    facts: tuple[tuple[str, ...], ...] = ()
    rows: tuple[Change, ...] = ()
    gone: tuple[Change, ...] = ()
    new: tuple[Change, ...] = ()


def print_changes(found: Mapping[str, Any], console: Console) -> None:
    """What `vflsec compare` found."""
    blocks = _build_changes(read_as(Comparison, found))
    print_blocks(map(clean_tree, blocks), console)


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
            what = r.what if r.attack else "utility"
            where = f"{r.dataset}, {r.algorithm}, {place(r)}, {r.split} rows"
            yield tree.Paragraph(f"{state}: {what} ({where})", Tone.WARNING)
    if not found.rows:
        yield tree.Paragraph("No point is in both.")
    if same:
        yield tree.Paragraph(f"{len(same)} of {len(found.rows)} figures did not change.")
    if moved:
        yield tree.Paragraph(_conclusion(moved, found.confidence))


def _change_row(r: Change) -> tuple[Cell | str, ...]:
    tone = {1: Tone.LEAK, -1: Tone.GOOD, 0: Tone.PLAIN}[r.harm]
    seeds = f"{r.seeds}" if r.paired else f"{r.seeds} (unpaired)"
    change = Cell(bounded(r.change, r.low, r.high, sign=True), tone)
    return (r.dataset, f"{r.algorithm}, {place(r)}", r.what, r.split, number(r.before),
            number(r.after), change, seeds)  # fmt: skip


def _conclusion(moved: Sequence[Change], level: float) -> str:
    """In how many figures leakage or utility changed beyond its interval, and where most."""
    if all(r.low is None for r in moved):
        return "Of one seed there are no intervals: whether it is more than chance is not said."
    said = []
    for quantity, attacked, more, less in (
        ("leakage", True, "rose", "fell"),
        ("utility", False, "fell", "rose"),
    ):
        for harm, word in ((1, more), (-1, less)):
            if of := [r for r in moved if bool(r.attack) == attacked and r.harm == harm]:
                most = max(of, key=lambda r: abs(r.change))
                where = f"{most.what}, {most.algorithm}, {place(most)}, {most.split} rows"
                figures = "1 figure" if len(of) == 1 else f"{len(of)} figures"
                by = f"most by {number(most.change, sign=True)} ({where})"
                said.append(f"{quantity} {word} in {figures}, {by}")
    if not said:
        return f"No change is beyond its {100 * level:g} % interval."
    return f"Beyond its {100 * level:g} % interval {'; '.join(said)}."
