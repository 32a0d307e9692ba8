"""What `vflsec compare` prints: what changed between two audits, and a sentence at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vflsec.report.console import WIDTH
from vflsec.report.numbers import number
from vflsec.report.sanitize import shown
from vflsec.report.verdicts import place

__all__ = ["print_changes"]


def print_changes(found: Mapping[str, Any], console: Console) -> None:
    """What `vflsec compare` found."""
    found = shown(found)
    for name, a, b in found["facts"]:
        console.print(Text(f"{name}: {a} -> {b}", style="dim"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("data", "training", "what", "rows", "before", "after"):
        table.add_column(name, overflow="fold")
    table.add_column(
        f"change, {100 * found['confidence']:g} % interval", no_wrap=console.width >= WIDTH
    )
    table.add_column("seeds", justify="right")
    same = [r for r in found["rows"] if r["change"] == 0 and r["low"] in (0, None)]
    moved = [r for r in found["rows"] if r not in same]
    for r in moved:
        style = {1: "red", -1: "green", 0: ""}[_harm(r)]
        seeds = f"{r['seeds']}" if r["paired"] else f"{r['seeds']} (unpaired)"
        table.add_row(
            Text(r["dataset"]), Text(f"{r['algorithm']}, {place(r)}"), Text(_what(r)),
            r["split"], number(r["before"]), number(r["after"]),
            Text(_signed(r), style=style), seeds,
        )  # fmt: skip
    if moved:
        console.print(table)
    for state in ("gone", "new"):
        for r in found[state]:
            what = _what(r) if r["attack"] else "utility"
            where = f"{r['dataset']}, {r['algorithm']}, {place(r)}, {r['split']} rows"
            console.print(Text(f"{state}: {what} ({where})", style="yellow"))
    if not found["rows"]:
        console.print("No point is in both.")
        return
    if same:
        console.print(f"{len(same)} of {len(found['rows'])} figures did not change.")
    if moved:
        console.print(Text(_conclusion(moved, found["confidence"])))


def _conclusion(moved: Sequence[Mapping[str, Any]], level: float) -> str:
    """In how many figures leakage or utility changed beyond its interval, and where most."""
    if all(r["low"] is None for r in moved):
        return "Of one seed there are no intervals: whether it is more than chance is not said."
    said = []
    for quantity, rows, more, less in (
        ("leakage", [r for r in moved if r["attack"]], "rose", "fell"),
        ("utility", [r for r in moved if not r["attack"]], "fell", "rose"),
    ):
        for harm, word in ((1, more), (-1, less)):
            if of := [r for r in rows if _harm(r) == harm]:
                most = max(of, key=lambda r: abs(r["change"]))
                where = f"{_what(most)}, {most['algorithm']}, {place(most)}"
                by = f"most by {number(most['change'], sign=True)} ({where}, {most['split']} rows)"
                figures = "1 figure" if len(of) == 1 else f"{len(of)} figures"
                said.append(f"{quantity} {word} in {figures}, {by}")
    if not said:
        return f"No change is beyond its {100 * level:g} % interval."
    return f"Beyond its {100 * level:g} % interval {'; '.join(said)}."


def _harm(r: Mapping[str, Any]) -> int:
    """1 for more leakage or less utility beyond the interval, -1 for the opposite, else 0."""
    if r["low"] is None or r["low"] <= 0 <= r["high"]:
        return 0
    return 1 if (r["low"] > 0) == bool(r["attack"]) else -1


def _what(r: Mapping[str, Any]) -> str:
    return f"{r['attack']} by {r['adversary']}" if r["attack"] else f"utility ({r['metric']})"


def _signed(r: Mapping[str, Any]) -> str:
    text = number(r["change"], sign=True)
    if r["low"] is None:
        return text
    return f"{text} [{number(r['low'], True)}, {number(r['high'], True)}]"
