"""An audit in one table: what each party learns of whom under each training, and the utility.

The terminal, the first screen of the HTML report and the Markdown summary show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vflsec.audit.findings import metric_name
from vflsec.audit.leakage_claims import LeakageClaim, Quantity, format_secret
from vflsec.audit.point import Point, Training
from vflsec.report.numbers import number
from vflsec.report.summary import Summary
from vflsec.report.tree import Block, Curve, Paragraph, Tone, View
from vflsec.report.verdicts import place

_BARE = "none"
_PRINTED = frozenset({View.TERMINAL, View.WHOLE})


def curves(summary: Summary) -> list[Curve]:
    """The table of each data set of a summary."""
    names = dict.fromkeys(p.dataset for p in summary.points)
    return [
        _curve(
            name,
            [p for p in summary.points if p.dataset == name],
            [c for c in summary.claims if c.dataset == name and c.quantity is Quantity.LEAKAGE],
        )
        for name in names
    ]


def means(summary: Summary) -> str:
    """What the figures of :func:`curves` are, in a sentence."""
    return (
        "Gain of the strongest attack over its baseline, mean over seeds; * is significant "
        f"({100 * summary.confidence:g} %, corrected for the tests)."
    )


def _curve(dataset: str, points: Sequence[Point], claims: Sequence[LeakageClaim]) -> Curve:
    made: dict[Training, Point] = {}
    for p in sorted(points, key=order_of):
        if p.attack:
            made.setdefault(p.training, p)
    best: dict[str, dict[Training, LeakageClaim]] = {}
    for r in claims:
        name = f"{format_secret(r)} to {r.adversary}"
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


def _in(name: str, of: Mapping[Training, LeakageClaim]) -> str:
    """The name with the metrics of its figures."""
    return f"{name} ({', '.join(dict.fromkeys(metric_name(r.metric) for r in of.values()))})"


def order_of(p: Training) -> tuple[str, bool, str, float]:
    """The undefended first, then by defense and strength."""
    return p.algorithm, p.defense != _BARE, p.defense, p.strength or 0.0


def _point(t: Training) -> str:
    return _BARE if t.is_undefended else place(t)


def _name(t: Training) -> str:
    return t.algorithm if t.defense == _BARE else f"{t.algorithm}, {place(t)}"


def _cell(r: LeakageClaim | None) -> tuple[str, bool] | None:
    if r is None or r.advantage is None:
        return None
    return f"{r.advantage:+z.2f}", r.is_leak


def build_curve(summary: Summary, dataset: str) -> tuple[Block, ...]:
    """The table of a data set, and what its figures are.

    A terminal shows one without an attack, too, and why attacks have no figure.
    """
    out: list[Block] = []
    for curve in (c for c in curves(summary) if c.dataset == dataset):
        if curve.lines:
            out += [curve, Paragraph(means(summary), Tone.SOFT)]
        else:
            out.append(replace(curve, views=_PRINTED))
    reasons = _reasons(dataset, summary)
    return (*out, *(Paragraph(why, Tone.WARNING, views=_PRINTED) for why in reasons))


def _reasons(dataset: str, summary: Summary) -> list[str]:
    """Why attacks have no figure, each reason once."""
    here = [p for p in summary.points if p.dataset == dataset and p.reason]
    return sorted({f"{p.attack} by {p.adversary}: {p.reason}" for p in here})
