"""An audit in one table: what each party learns of whom under each training, and the utility."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vflsec.audit import matrix
from vflsec.audit.controls import leaks
from vflsec.audit.findings import metric_name
from vflsec.audit.leakage import is_undefended
from vflsec.report.numbers import number
from vflsec.report.text import clean
from vflsec.report.verdicts import place

__all__ = ["print_curves", "trainings"]

Row = Mapping[str, Any]
Training = tuple[str, str, float | None]

_LABEL = 46
"""Most columns of the terminal for whose secret it is and who learns it."""


def trainings(points: Sequence[Row]) -> dict[Training, Row]:
    """(algorithm, defense, strength) of what was attacked, undefended and weakest first."""
    found: dict[Training, Row] = {}
    for p in sorted(points, key=_order):
        if p["attack"]:
            found.setdefault(_training(p), p)
    return found


def _order(p: Row) -> tuple[Any, ...]:
    return p["algorithm"], p["defense"] != "none", p["defense"], p["strength"] or 0.0


def _training(p: Row) -> Training:
    return p["algorithm"], p["defense"], p["strength"]


def print_curves(summary: Mapping[str, Any], console: Console) -> None:
    """A table for each data set: secrets down, trainings across, utility at the foot."""
    level = float(summary.get("confidence", 0.95))
    shown = False
    for dataset in dict.fromkeys(p["dataset"] for p in summary["points"]):
        points = [p for p in summary["points"] if p["dataset"] == dataset]
        made = trainings(points)
        console.print(Text(f"\n{clean(dataset)}", style="bold"))
        if made:
            shown = True
            for table in _tables(points, made, level, console.width):
                console.print(table)
        others = {_training(p): p for p in points if _training(p) not in made}
        if others:
            said = "; ".join(f"{_name(p)} {number(p['utility'])}" for p in others.values())
            console.print(Text(f"Not attacked, utility: {said}.", style="dim"))
        for reason in sorted({_why(p) for p in points if p["reason"]}):
            console.print(Text(reason, style="yellow"))
    if shown:
        note = (
            "What the strongest attack gains above its own means, a mean over seeds; * is surely "
            f"above 0, at {100 * level:g} % and corrected for the number of tries."
        )
        console.print(Text(note, style="dim"))


def _why(p: Row) -> str:
    return clean(f"{p['attack']} by {p['adversary']}: {p['reason']}")


def _name(p: Row) -> str:
    bare = p["defense"] == "none"
    return clean(p["algorithm"]) if bare else f"{clean(p['algorithm'])}, {place(p)}"


def _tables(
    points: Sequence[Row], made: Mapping[Training, Row], level: float, width: int
) -> Iterator[Table]:
    """As many trainings side by side as the terminal is wide."""
    best: dict[str, dict[Training, Row]] = {}
    for r in matrix.by_training(points, level):
        name = f"{clean(matrix.secret(r))} to {clean(r['adversary'])} ({metric_name(r['metric'])})"
        best.setdefault(name, {})[_training(r)] = r
    metric = next((p["utility_metric"] for p in points if p["utility_metric"]), "")
    utility = f"utility ({metric_name(metric)})"
    several = len({algorithm for algorithm, *_ in made}) > 1
    heads = {t: _head(p, several) for t, p in made.items()}
    label = min(max(map(len, [*best, utility])), _LABEL)
    across: list[Training] = []
    left = width - label
    for t, head in heads.items():
        wide = max(6, *map(len, head.split("\n"))) + 2
        if across and wide > left:
            yield _table(best, utility, made, {t: heads[t] for t in across}, label)
            across, left = [], width - label
        across.append(t)
        left -= wide
    yield _table(best, utility, made, {t: heads[t] for t in across}, label)


def _head(p: Row, several: bool) -> str:
    point = "none" if is_undefended(p) else place(p)
    words = point.replace(" + ", " +\n").rsplit(" ", 1)
    name = "\n".join(words) if len(point) > 10 else point
    return f"{clean(p['algorithm'])}\n{name}" if several else name


def _table(
    best: Mapping[str, Mapping[Training, Row]], utility: str, made: Mapping[Training, Row],
    heads: Mapping[Training, str], label: int,
) -> Table:  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", width=label, overflow="fold")
    for head in heads.values():
        table.add_column(head, justify="right", no_wrap=True)
    for name, of in best.items():
        table.add_row(Text(name), *(_cell(of.get(t)) for t in heads))
    table.add_row(Text(utility), *(f"{number(made[t]['utility'])} " for t in heads))
    return table


def _cell(r: Row | None) -> Text:
    if r is None or r["advantage"] is None:
        return Text("- ")
    sure = leaks(r["advantage"], r["low"])
    return Text(f"{r['advantage']:+z.2f}{'*' if sure else ' '}", style="red" if sure else "")
