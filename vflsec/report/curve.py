"""An audit in one table: what each party learns of whom under each training, and the utility.

The terminal, the first screen of the HTML report and the Markdown summary show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.findings import metric_name
from vflsec.audit.point import Point, Training
from vflsec.audit.strongest_attack import Strongest
from vflsec.report.numbers import number
from vflsec.report.scores import scores
from vflsec.report.summary import Summary
from vflsec.report.tree import Block, Curve, Paragraph, Tone, View
from vflsec.report.verdicts import place

_BARE = "none"


def curves(summary: Summary) -> list[Curve]:
    """The table of each data set of a summary."""
    names = dict.fromkeys(p.dataset for p in summary.points)
    return [
        _curve(name, [p for p in summary.points if p.dataset == name], summary.confidence)
        for name in names
    ]


def means(summary: Summary) -> str:
    """What the figures of :func:`curves` are, in a sentence."""
    return (
        "What the strongest attack gains over its baseline, a mean over seeds; * is significant "
        f"({100 * summary.confidence:g} %, corrected for the tests under that training)."
    )


def _curve(dataset: str, points: Sequence[Point], level: float) -> Curve:
    made: dict[Training, Point] = {}
    for p in sorted(points, key=order_of):
        if p.attack:
            made.setdefault(p.training, p)
    best: dict[str, dict[Training, Strongest]] = {}
    for r in strongest_attack.find_by_training(points, level):
        name = f"{strongest_attack.format_secret(r)} to {r.adversary}"
        best.setdefault(name, {})[r.training] = r
    metric = next((p.utility_metric for p in points if p.utility_metric), "")
    several = len({t.algorithm for t in made}) > 1
    others = {p.training: p for p in points if p.training not in made}
    return Curve(
        dataset,
        tuple((t.algorithm if several else "", _point(t)) for t in made),
        tuple((_in(name, of), tuple(_cell(of.get(t)) for t in made)) for name, of in best.items()),
        (f"utility ({metric_name(metric)})", tuple(number(p.utility.mean) for p in made.values())),
        "; ".join(f"{_name(t)} {number(p.utility.mean)}" for t, p in others.items()),
    )


def _in(name: str, of: Mapping[Training, Strongest]) -> str:
    """The name with the metrics of its figures."""
    return f"{name} ({', '.join(dict.fromkeys(metric_name(r.metric) for r in of.values()))})"


def order_of(p: Training) -> tuple[str, bool, str, float]:
    """The undefended first, then by defense and strength."""
    return p.algorithm, p.defense != _BARE, p.defense, p.strength or 0.0


def _point(t: Training) -> str:
    return _BARE if t.is_undefended else place(t)


def _name(t: Training) -> str:
    return t.algorithm if t.defense == _BARE else f"{t.algorithm}, {place(t)}"


def _cell(r: Strongest | None) -> tuple[str, bool] | None:
    if r is None or r.advantage is None:
        return None
    return f"{r.advantage:+z.2f}", leaks(r.advantage, r.low)


def build_curves(summary: Summary, *views: View) -> tuple[Block, ...]:
    """The table of each data set for some views, and what its figures are.

    A terminal shows those without an attack, too, and why attacks have no figure.
    """
    shown, printed = frozenset(views), frozenset(views) & {View.TERMINAL, View.WHOLE}
    out: list[Block] = []
    found = curves(summary)
    for curve in found:
        out.append(replace(curve, views=shown if curve.lines else printed))
        caps = _caps(curve.dataset, summary)
        out += [Paragraph(caps, Tone.SOFT, views=shown & {View.TERMINAL})] if caps else []
        reasons = _reasons(curve.dataset, summary)
        out += [Paragraph(why, Tone.WARNING, views=printed) for why in reasons]
    if any(curve.lines for curve in found):
        out.append(Paragraph(means(summary), Tone.SOFT, views=shown))
    return tuple(out)


def _caps(dataset: str, summary: Summary) -> str:
    """CAP of each defended training against the attack that leaves the least of it."""
    found = [s for s in scores(summary, dataset) if s.curve.cap is not None]
    found.sort(key=lambda s: -(s.curve.cap or 0.0))
    least = {(s.training, s.curve.defense, s.grid): s for s in found}
    said = [
        f"{s.cap} ({training}, {defense} at {grid}; {s.curve.attack} by {s.curve.adversary})"
        for (training, defense, grid), s in least.items()
    ]
    return f"CAP, mean of utility x (1 - attack), at its least: {', '.join(said)}" if said else ""


def _reasons(dataset: str, summary: Summary) -> list[str]:
    """Why attacks have no figure, each reason once."""
    here = [p for p in summary.points if p.dataset == dataset and p.reason]
    return sorted({f"{p.attack} by {p.adversary}: {p.reason}" for p in here})
