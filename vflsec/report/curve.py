"""An audit in one table: what each party learns of whom under each training, and the utility.

The terminal, the first screen of the HTML report and the Markdown summary show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.findings import metric_name
from vflsec.audit.leakage import is_undefended
from vflsec.report.numbers import number
from vflsec.report.sanitize import clean
from vflsec.report.verdicts import place

__all__ = ["Curve", "curves", "means", "print_curves"]

Row = Mapping[str, Any]
Training = tuple[str, str, float | None]

_LABEL = 46
"""Most columns of the terminal for whose secret it is and who learns it."""
_BARE = "none"
_SHORT = 7
"""Letters of a defense's name that stands over each of its strengths."""


@dataclass(frozen=True)
class Curve:
    """The table of one data set.

    Attributes:
        dataset: its name.
        trainings: what was attacked, as (algorithm, defense and strength); undefended and weakest
            first, the algorithm empty where there is one.
        lines: (whose secret, who learns it and the metric; by training the largest advantage and
            whether it is surely above 0, None where nothing was measured).
        utility: the metric's name, and its mean by training.
        others: trainings that nobody attacks, with their utility, in words.
    """

    dataset: str
    trainings: tuple[tuple[str, str], ...]
    lines: tuple[tuple[str, tuple[tuple[str, bool] | None, ...]], ...]
    utility: tuple[str, tuple[str, ...]]
    others: str

    @property
    def heads(self) -> list[str]:
        """What a column is called, on one line."""
        return [", ".join(filter(None, training)) for training in self.trainings]


def curves(summary: Mapping[str, Any]) -> list[Curve]:
    """The table of each data set of a summary."""
    level = float(summary.get("confidence", 0.95))
    names = dict.fromkeys(p["dataset"] for p in summary["points"])
    return [
        _curve(name, [p for p in summary["points"] if p["dataset"] == name], level)
        for name in names
    ]


def means(summary: Mapping[str, Any]) -> str:
    """What the figures of :func:`curves` are, in a sentence."""
    level = float(summary.get("confidence", 0.95))
    return (
        "What the strongest attack gains above its own means, a mean over seeds; * is surely "
        f"above 0, at {100 * level:g} % and corrected for the tries under that training."
    )


def _curve(dataset: str, points: Sequence[Row], level: float) -> Curve:
    made: dict[Training, Row] = {}
    for p in sorted(points, key=_order):
        if p["attack"]:
            made.setdefault(_training(p), p)
    best: dict[str, dict[Training, Row]] = {}
    for r in strongest_attack.by_training(points, level):
        name = f"{clean(strongest_attack.secret(r))} to {clean(r['adversary'])}"
        best.setdefault(name, {})[_training(r)] = r
    metric = next((p["utility_metric"] for p in points if p["utility_metric"]), "")
    several = len({algorithm for algorithm, *_ in made}) > 1
    others = {_training(p): p for p in points if _training(p) not in made}
    return Curve(
        clean(dataset),
        tuple((clean(p["algorithm"]) * several, _point(p)) for p in made.values()),
        tuple((_in(name, of), tuple(_cell(of.get(t)) for t in made)) for name, of in best.items()),
        (f"utility ({metric_name(metric)})", tuple(number(p["utility"]) for p in made.values())),
        "; ".join(f"{_name(p)} {number(p['utility'])}" for p in others.values()),
    )


def _in(name: str, of: Mapping[Training, Row]) -> str:
    """The name with the metrics of its figures."""
    return f"{name} ({', '.join(dict.fromkeys(metric_name(r['metric']) for r in of.values()))})"


def _order(p: Row) -> tuple[Any, ...]:
    return p["algorithm"], p["defense"] != "none", p["defense"], p["strength"] or 0.0


def _training(p: Row) -> Training:
    return p["algorithm"], p["defense"], p["strength"]


def _point(p: Row) -> str:
    return _BARE if is_undefended(p) else place(p)


def _name(p: Row) -> str:
    bare = p["defense"] == "none"
    return clean(p["algorithm"]) if bare else f"{clean(p['algorithm'])}, {place(p)}"


def _cell(r: Row | None) -> tuple[str, bool] | None:
    if r is None or r["advantage"] is None:
        return None
    return f"{r['advantage']:+z.2f}", leaks(r["advantage"], r["low"])


def print_curves(summary: Mapping[str, Any], console: Console) -> None:
    """A table for each data set: secrets down, trainings across, utility at the foot."""
    found = curves(summary)
    for curve in found:
        console.print(Text(f"\n{curve.dataset}", style="bold"))
        for table in _tables(curve, console.width):
            console.print(table)
        if curve.others:
            console.print(Text(f"Not attacked, utility: {curve.others}.", style="dim"))
        for why in _reasons(curve.dataset, summary):
            console.print(Text(why, style="yellow"))
    if any(curve.lines for curve in found):
        console.print(Text(means(summary), style="dim"))


def _reasons(dataset: str, summary: Mapping[str, Any]) -> list[str]:
    """Why attacks have no figure, each reason once."""
    here = [p for p in summary["points"] if clean(p["dataset"]) == dataset and p["reason"]]
    return sorted({clean(f"{p['attack']} by {p['adversary']}: {p['reason']}") for p in here})


def _tables(curve: Curve, width: int) -> Iterator[Table]:
    """One for each algorithm, and as many as it takes to set all trainings side by side."""
    label = min(max(len(name) for name in (*dict(curve.lines), curve.utility[0])), _LABEL)
    for algorithm in dict.fromkeys(a for a, _ in curve.trainings):
        mine = [i for i, (a, _) in enumerate(curve.trainings) if a == algorithm]
        head, heads = _heads(algorithm, [curve.trainings[i][1] for i in mine])
        across: dict[int, str] = {}
        left = width - label
        for i, name in zip(mine, heads, strict=True):
            wide = max(6, *map(len, name.split("\n"))) + 2
            if across and wide > left:
                yield _table(curve, head, across, label)
                across, left = {}, width - label
            across[i] = name
            left -= wide
        yield _table(curve, head, across, label)


def _heads(algorithm: str, points: Sequence[str]) -> tuple[str, list[str]]:
    """What stands over the secrets, and over each training.

    Strengths of one defense whose name is long, or under one of several algorithms, are told by
    their numbers, and the defense once.
    """
    names = {p.rsplit(" ", 1)[0] for p in points if p != _BARE}
    swept = all(p == _BARE or p.rsplit(" ", 1)[-1].replace(".", "").isdigit() for p in points)
    if len(names) == 1 and swept and (algorithm or len(*names) > _SHORT):
        head = ", ".join(filter(None, (algorithm, *names)))
        return f"{head} at", [p.rsplit(" ", 1)[-1] for p in points]
    return algorithm, [_broken(p) for p in points]


def _broken(point: str) -> str:
    """A long point in lines: names, parameters, the swept strength."""
    if len(point) <= _SHORT + 3:
        return point
    return "\n".join(point.replace(" + ", " +\n").replace("(", "\n(").rsplit(" ", 1))


def _table(curve: Curve, head: str, across: Mapping[int, str], label: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(Text(head), width=label, overflow="fold")
    for name in across.values():
        table.add_column(Text(name), justify="right", no_wrap=True)
    for name, cells in curve.lines:
        table.add_row(Text(name), *(_shown(cells[i]) for i in across))
    name, values = curve.utility
    table.add_row(Text(name), *(f"{values[i]} " for i in across))
    return table


def _shown(cell: tuple[str, bool] | None) -> Text:
    if cell is None:
        return Text("- ")
    text, sure = cell
    return Text(f"{text}{'*' if sure else ' '}", style="red" if sure else "")
