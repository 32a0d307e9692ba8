"""An audit in one table: what each party learns of whom under each training, and the utility."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vflsec.audit.leakage_claims import LeakageClaim, Quantity, format_secret
from vflsec.audit.metrics import metric_name
from vflsec.audit.point import Point, Training
from vflsec.audit.summary import Summary
from vflsec.audit.tradeoff_curves import Curve, Improvement
from vflsec.errors import format_count
from vflsec.report.numbers import format_interval, format_number
from vflsec.report.tree import (
    Block,
    Cell,
    Column,
    Folded,
    Kind,
    Paragraph,
    Table,
    Tone,
    View,
    make_columns,
)
from vflsec.report.verdicts import format_place
from vflsec.specs import UNMADE

_PRINTED = View.TERMINAL | View.WHOLE


def order_of(p: Training) -> tuple[str, bool, str, float]:
    """The undefended first, then by defense and strength."""
    return p.algorithm, p.defense != "none", p.defense, p.strength or 0.0


def build_curve(summary: Summary, dataset: str) -> tuple[Block, ...]:
    """What the strongest attack of each attacker on each target gains, training by training.

    A terminal says why attacks have no figure, too.
    """
    here = sorted((p for p in summary.points if p.dataset == dataset), key=order_of)
    level = f"{100 * summary.confidence:g} %"
    caption = f"Strongest advantage; * is significant ({level}, corrected)"
    gains = _by_target(c for c in summary.claims if c.dataset == dataset)
    metric = metric_name(next((p.utility_metric for p in here if p.utility_metric), ""))
    utility = f"utility ({metric})" if metric else "utility"
    lifts = {t.training: t for t in summary.improvements if t.dataset == dataset}
    over = [f"RelaImp over {t.baseline}" for t in [*lifts.values()][:1]]
    heads = (*(_head(name, of) for name, of in gains.items()), utility, *over)
    table = Table(
        caption,
        (Column("Training", Kind.NAME), *(Column(head, Kind.NUMBER) for head in heads)),
        tuple(_build_rows(here, list(gains.values()), lifts)), f"Leakage and utility of {dataset}",
    )  # fmt: skip
    said = [Paragraph(why, Tone.WARNING, views=_PRINTED) for why in _list_reasons(here)]
    return (table, *said)


FEW = 3
"""How many attacks that cannot be made are told with their reasons; of more it is how many."""


def _list_reasons(points: Sequence[Point]) -> list[str]:
    """Why attacks have no figure; of many that have none at all, as on a trace, how many."""
    measured = {(p.attack, p.adversary) for p in points if p.status == "ok"}
    unmade = {
        (p.attack, p.adversary): p.status for p in points
        if p.status in UNMADE and (p.attack, p.adversary) not in measured
    }  # fmt: skip
    unmade = unmade if len(unmade) > FEW else {}
    told = [p for p in points if p.reason and (p.attack, p.adversary) not in unmade]
    out = sorted({f"{p.attack} by {p.adversary}: {p.reason}" for p in told})
    where = "report.html (Not observable) and results.csv (status, reason)"
    return [*out, f"{count_unmade(unmade)}. Why: {where}."] if unmade else out


def count_unmade(unmade: Mapping[tuple[str, str], str]) -> str:
    """How many attacks cannot be made, by their status: ``2 attacks cannot be made (...)``.

    Args:
        unmade: the status of each attack by each adversary.
    """
    by_status = Counter(unmade.values())
    counts = ", ".join(f"{n} {status}" for status, n in sorted(by_status.items()))
    who = ", ".join(sorted({adversary for _, adversary in unmade}))
    return f"{format_count(len(unmade), 'attack')} by {who} cannot be made ({counts})"


Gains = dict[Training, LeakageClaim]


def find_gains(claims: Iterable[LeakageClaim]) -> dict[tuple[str, Training], LeakageClaim]:
    """The claim by what is told to whom and training: with labels flipped where only that leaks."""
    out: dict[tuple[str, Training], LeakageClaim] = {}
    for c in (c for c in claims if c.quantity is not Quantity.EXPOSED):
        key = f"{format_secret(c)} to {c.adversary}", c.training
        if c.is_leak or c.quantity is Quantity.LEAKAGE:
            out[key] = max(
                out.get(key, c), c, key=lambda c: (c.is_leak, c.quantity is Quantity.LEAKAGE)
            )
    return out


def _by_target(claims: Iterable[LeakageClaim]) -> dict[str, Gains]:
    """The claims by target and attacker."""
    out: dict[str, Gains] = defaultdict(dict)
    for (told, training), c in find_gains(claims).items():
        out[told][training] = c
    return out


def _build_rows(
    points: Sequence[Point], gains: Sequence[Gains], lifts: Mapping[Training, Improvement]
) -> Iterator[tuple[Cell | str, ...]]:
    """A row for each training, those that nobody attacks last."""
    made = {p.training: p for p in points}
    attacked = {t for of in gains for t in of}
    several = len({t.algorithm for t in attacked}) > 1
    for t in sorted(made, key=lambda t: t not in attacked):
        shown = "none" if t.is_undefended else format_place(t)
        name = f"{t.algorithm}, {shown}" if several else shown
        if t not in attacked:
            name = t.algorithm if t.defense == "none" else f"{t.algorithm}, {format_place(t)}"
        lift = [f"{lifts[t].value:+.1%}" if t in lifts else "–"] if lifts else []
        yield name, *(build_gain(of.get(t)) for of in gains), _utility(made[t]), *lift


def _utility(p: Point) -> Cell:
    """The mean; a page shows its interval, and what the defense costs, on demand."""
    drop = "" if p.is_undefended else f", drop {format_interval(p.utility_drop)}"
    return Cell(format_number(p.utility.mean), hint=f"{format_interval(p.utility)}{drop}")


def _head(name: str, of: Gains) -> str:
    """The name with the metrics of its figures."""
    return f"{name} ({', '.join(dict.fromkeys(metric_name(c.metric) for c in of.values()))})"


def build_gain(c: LeakageClaim | None) -> Cell | str:
    """``+0.37*``: what the strongest attack gains, with a star where it is significant."""
    if c is None or c.advantage is None:
        return "–"
    text = f"{c.advantage:+z.2f}"
    return Cell(f"{text}*", Tone.LEAK) if c.is_leak else text


CAP_MEANS = "CAP (He et al. 2022): mean of utility x (1 - attack) over one grid; larger is better."
DCS_MEANS = (
    "DCS (Zou et al. 2024): 1 / (1 + root mean square of attack and utility lost); 1 is best."
)
_PAGES = View.PAGE | View.SUMMARY


def format_phase(phase: str) -> str:
    """Which phase a figure was taken after, to be said where there are several."""
    return f", after {phase}" if phase else ""


def build_scores(name: str, summary: Summary) -> Folded:
    """CAP and DCS of each defended curve of a data set, with what they mean."""
    rows = tuple(_score_rows(name, summary))
    numbers = ("Strengths", "CAP", "DCS")
    heads = make_columns("Defense", "Strengths", "Attack", "By", "CAP", "DCS",
                         "Rows", "Metric", "Training", name="Attack", numbers=numbers)  # fmt: skip
    table = Table("CAP and DCS", heads, rows, f"CAP and DCS on {name}",
                  "summary.json")  # fmt: skip
    means = (Paragraph(text, Tone.SOFT, views=_PAGES) for text in (CAP_MEANS, DCS_MEANS))
    title = "CAP and DCS (reported, never gated)"
    return Folded(title, (*means, table) if rows else (), views=_PAGES | View.WHOLE)


def find_scored(name: str, summary: Summary) -> Iterator[tuple[Curve, str, str]]:
    """Each defended curve of a data set that has a CAP or a DCS, what trains, and its grid."""
    several = len({c.phase for c in summary.curves}) > 1
    for c in summary.curves:
        known = any(x is not None for x in (c.cap, *_dcs(c)))
        if c.dataset == name and c.defense != "none" and known:
            grid = ", ".join("-" if s is None else f"{s:g}" for s in c.cap_strengths)
            yield c, c.algorithm + (format_phase(c.phase) if several else ""), grid


def _dcs(c: Curve) -> list[float | None]:
    by_strength = dict(zip(c.strengths, c.dcs, strict=False))
    return [by_strength.get(s) for s in c.cap_strengths]


def _score_rows(name: str, summary: Summary) -> Iterator[tuple[str, ...]]:
    for c, training, grid in find_scored(name, summary):
        yield (c.defense, grid, c.attack, c.adversary, format_number(c.cap),
               ", ".join(map(format_number, _dcs(c))), c.split, c.metric, training)  # fmt: skip
