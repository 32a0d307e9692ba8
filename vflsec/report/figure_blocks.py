"""The figures of a data set in a report: which are drawn, and what each says in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vflsec.audit.image_samples import Picture
from vflsec.audit.point import Point
from vflsec.audit.summary import Summary
from vflsec.report import figures
from vflsec.report.numbers import format_bytes, format_number
from vflsec.report.tree import Figure, Figures, View
from vflsec.report.verdicts import format_place

Draw = Callable[..., Any]


def build_figures(summary: Summary, name: str, prefix: str) -> Figures:
    """The figures of one data set; none where no attack gave a figure.

    Args:
        summary: of the audit.
        name: of the data set.
        prefix: of the ids in each figure, so that several can share a page.
    """
    if not any(p.dataset == name and p.attack and p.status == "ok"
               for p in summary.points):  # fmt: skip
        return Figures(())
    rows = figures.points(summary, name)
    wanted: list[tuple[str, Draw, str]] = [
        ("Leakage by strength", figures.advantage_by_strength, _gains(rows))
    ]
    if len({(r.defense, r.strength) for r in rows}) > 1:
        wanted += [
            ("Privacy against utility", figures.privacy_utility, _gains(rows)),
            ("Every attack against every defense", figures.attack_by_defense, _gains(rows)),
        ]
    wanted += _costs(summary, name)
    if any(r.dataset == name for r in summary.over_time):
        wanted.append(("Leakage over the epochs", figures.leakage_over_epochs, _gains(rows)))
    drawn = [p for p in summary.pictures if p.dataset == name]
    if drawn:
        title = "Images and reconstructions"
        wanted.append((title, figures.reconstructions, _pictures(drawn)))
    return Figures(
        tuple(
            Figure(title, f"{title}, {name}. {words}", partial(draw, summary, dataset=name),
                   f"{prefix}f{i}")
            for i, (title, draw, words) in enumerate(wanted)
        ),
        views=View.PAGE | View.NOTEBOOK,
    )  # fmt: skip


def build_first_figures(summary: Summary) -> Figures:
    """The picture of the first screen, of each data set with several strengths."""
    names = dict.fromkeys(p.dataset for p in summary.points if p.attack and p.status == "ok")
    rows = {name: figures.points(summary, name) for name in names}
    title = "Leakage against utility"
    found = [
        Figure(title, f"{title}, {name}. {_gains(of)}",
               partial(figures.leakage_and_limits, summary, dataset=name), f"first{i}")
        for i, (name, of) in enumerate(rows.items())
        if len({(r.defense, r.strength) for r in of if r.utility.mean is not None}) > 1
    ]  # fmt: skip
    return Figures(tuple(found), views=View.PAGE)


def _costs(summary: Summary, name: str) -> list[tuple[str, Draw, str]]:
    """The figure of cost, where trainings differ in what they send or in what trains."""
    sides = figures.trade_offs(summary, name)
    sent = [p.bytes or 0.0 for p in sides]
    if len({p.algorithm for p in sides}) < 2 and not (sent and max(sent) > 1.05 * min(sent)):
        return []
    words = "; ".join(
        f"{p.algorithm} ({format_place(p)}): {format_bytes(p.bytes or 0.0)}, "
        f"{p.utility_metric} {format_number(p.utility.mean)}, "
        f"largest advantage {format_number(p.advantage.mean, True)}"
        for p in sides
    )
    return [("Cost, utility and leakage", figures.cost_utility_leakage, f"{words}.")]


def _gains(rows: Sequence[Point]) -> str:
    """The first and the last advantage of each line, in words."""
    said = []
    for label, line in figures.group_series(figures.choose_drawn(rows)).items():
        ends = [line[0]] if len(line) == 1 else [line[0], line[-1]]
        of = (f"{format_number(p.advantage.mean, True)} ({format_place(p)})" for p in ends)
        said.append(f"{label}: advantage {' to '.join(of)}")
    return "; ".join(said) + "."


def _pictures(drawn: Sequence[Picture]) -> str:
    """Which images the figure holds."""
    return "; ".join(
        f"{len(p.rows)} images of {p.party} by {p.attack} of {p.adversary} ({format_place(p)}), "
        f"seed {p.seed}"
        for p in drawn
    ) + "."  # fmt: skip
