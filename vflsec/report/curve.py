"""An audit in one table: what each party learns of whom under each training, and the utility.

The terminal, the first screen of the HTML report and the Markdown summary show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.findings import metric_name
from vflsec.audit.leakage import is_undefended
from vflsec.report.numbers import number
from vflsec.report.sanitize import clean
from vflsec.report.tree import Block, Curve, Paragraph, Tone, View
from vflsec.report.verdicts import place

__all__ = ["build_curves", "curves", "means"]

Row = Mapping[str, Any]
Training = tuple[str, str, float | None]

_BARE = "none"


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


def build_curves(summary: Mapping[str, Any], *views: View) -> tuple[Block, ...]:
    """The table of each data set for some views, and what its figures are.

    A terminal shows those without an attack, too, and why attacks have no figure.
    """
    shown, printed = frozenset(views), frozenset(views) & {View.TERMINAL, View.WHOLE}
    out: list[Block] = []
    found = curves(summary)
    for curve in found:
        out.append(replace(curve, views=shown if curve.lines else printed))
        reasons = _reasons(curve.dataset, summary)
        out += [Paragraph(why, Tone.WARNING, views=printed) for why in reasons]
    if any(curve.lines for curve in found):
        out.append(Paragraph(means(summary), Tone.SOFT, views=shown))
    return tuple(out)


def _reasons(dataset: str, summary: Mapping[str, Any]) -> list[str]:
    """Why attacks have no figure, each reason once."""
    here = [p for p in summary["points"] if clean(p["dataset"]) == dataset and p["reason"]]
    return sorted({clean(f"{p['attack']} by {p['adversary']}: {p['reason']}") for p in here})
