"""What attacks gained on each data set, as tables: who learns what, and by which attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vflsec.audit.controls import is_leak
from vflsec.audit.dosing import Dose
from vflsec.audit.metrics import metric_name
from vflsec.audit.multilabel import LabelRow
from vflsec.audit.point import Point
from vflsec.audit.summary import Summary
from vflsec.data.table_facts import UserTables
from vflsec.report import tree
from vflsec.report.curve import build_scores, format_phase, order_of
from vflsec.report.figure_blocks import build_figures
from vflsec.report.numbers import format_bounded, format_interval, format_number
from vflsec.report.tables import MATCHING, describe_matched
from vflsec.report.tree import Cell, Column, Kind, Section, Table, Tone, View, make_columns
from vflsec.report.verdicts import format_place

_FILES = View.PAGE | View.SUMMARY | View.NOTEBOOK
_SHORT = View.PAGE | View.SUMMARY


def build_leakage(summary: Summary) -> tuple[Section, ...]:
    """A section for each data set, with figures and tables of what was measured there."""
    names = dict.fromkeys([*summary.parties, *(p.dataset for p in summary.points)])
    return tuple(_build_dataset(summary, name, f"d{i}") for i, name in enumerate(names))


def _build_dataset(summary: Summary, name: str, prefix: str) -> Section:
    every = [p for p in summary.points if p.dataset == name]
    points = sorted(every, key=order_of)
    several = len({p.algorithm for p in summary.points if p.attack}) > 1
    figures, lost = build_figures(summary, name, prefix), find_unmeasured(points)
    said = tree.Bullets(tuple(describe_matched(summary.tables.get(name, UserTables()))))
    blocks = (
        tree.Folded(MATCHING, (said,), open=True, views=_SHORT),
        figures,
        _build_attacks(summary, name, [p for p in points if p.is_main], several),
        replace(build_unmeasured(lost), views=View.WHOLE),
        _build_dosing(name, summary.dosing),
        _build_labels(name, summary.labels),
        _build_phases(summary, name, points),
        build_scores(name, summary),
    )
    return Section(name, blocks)


def _gain_cell(value: float | None, low: float | None, high: float | None) -> Cell:
    """An advantage that is a leak, that is none, or of which neither is shown."""
    tone = Tone.GOOD if high is not None and high <= 0 else Tone.PLAIN
    return Cell(
        format_bounded(value, low, high, sign=True), Tone.LEAK if is_leak(value, low) else tone
    )


def _build_attacks(summary: Summary, name: str, rows: Sequence[Point], several: bool) -> Table:
    """Every answer of every attack beside its strongest control."""
    metrics = list(dict.fromkeys(p.primary for p in rows))
    one = f" ({metric_name(metrics[0])})" if len(metrics) == 1 else ""
    phases = len({p.phase for p in rows if p.phase}) > 1
    columns = (
        Column("Training", Kind.GROUP, View.WHOLE), Column("Defense", views=_FILES),
        Column("Attack", Kind.NAME), Column("By"), Column("Advantage", Kind.NUMBER),
        Column(f"Attack{one}", Kind.NUMBER, _FILES),
        Column(f"Attack{one}", Kind.NUMBER, View.WHOLE), Column("Baseline", Kind.NUMBER),
        Column("Rows", Kind.NUMBER),
        Column("Training", views=_FILES if several else View(0)),
    )  # fmt: skip
    return Table(
        f"Every attack and its baseline (means; {100 * summary.confidence:g} % intervals, of "
        "advantages corrected; shaded: significant)",
        columns, tuple(_attack_row(p, summary.name_attack(p), phases, not one) for p in rows),
        f"Attacks on {name}", "results.csv", views=View.WHOLE | _FILES,
    )  # fmt: skip


def _attack_row(p: Point, attack: str, phases: bool, named: bool) -> tuple[Cell | str, ...]:
    metric, gain = f" {p.primary}" if named else "", p.advantage
    controls = p.leakage.as_dict() if p.leakage else {}
    return (
        f"{p.algorithm}, {format_place(p)}", format_place(p),
        attack + (format_phase(p.phase) if phases else ""), p.adversary,
        _gain_cell(gain.mean, gain.low, gain.high), format_interval(p.value) + metric,
        format_number(p.value.mean) + metric,
        Cell(f"{format_number(p.control_value.mean)} ({p.control})",
             hint=", ".join(f"{k} {format_number(v['control'])}" for k, v in controls.items())),
        f"{p.n} {p.split}", p.algorithm,
    )  # fmt: skip


def find_unmeasured(points: Sequence[Point]) -> list[tuple[str, str, str, str]]:
    """Attacks without a figure: name, adversaries, state, and why; each once."""
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for p in points:
        if p.attack and (p.status != "ok" or p.failed):
            state = p.status if p.status != "ok" else f"error in {p.failed} seeds"
            found.setdefault((p.attack, state, p.reason), {})[p.adversary] = None
    return [(a, ", ".join(who), state, why) for (a, state, why), who in found.items()]


def build_unmeasured(rows: Sequence[tuple[str, ...]], *heads: str) -> Table:
    """A table of :func:`find_unmeasured`; `heads` are of what stands before it in each row."""
    columns = make_columns(*heads, "Attack", "By", "State", "Why", name="Attack", prose=("Why",))
    return Table("Attacks without a figure", columns, tuple(rows))


def _build_dosing(name: str, doses: Sequence[Dose]) -> Table:
    rows = [r for r in doses if r.dataset == name]
    numbers = ("Rows dosed", "Planted", "Found", "Chance to be shown")
    return Table(
        "Sensitivity test with planted leaks (shaded: significant)",
        make_columns("Defense", "Attack", "By", *numbers, "Training", name="Attack",
                     numbers=numbers),
        tuple(
            (format_place(r), r.attack, r.adversary, f"{100 * r.share:g} % {r.split}",
             format_number(r.planted),
             Cell(format_bounded(r.advantage, r.low, r.high, sign=True),
                  Tone.LEAK if r.found else Tone.PLAIN),
             format_number(r.chance), r.algorithm)
            for r in rows
        ),
        f"Planted leaks on {name}", "summary.json", views=_SHORT,
    )  # fmt: skip


def _build_labels(name: str, labels: Sequence[LabelRow]) -> Table:
    rows = [r for r in labels if r.dataset == name and r.most]
    return Table(
        "Several labels: their mean, and the largest",
        make_columns("Defense", "Attack", "By", "Rows", "Labels", "Mean AUC", "Baseline",
                     "Largest", "Its AUC", "Training", name="Attack",
                     numbers=("Mean AUC", "Baseline", "Its AUC")),
        tuple(map(_label_row, rows)), f"Labels of {name}", "summary.json", views=View.PAGE,
    )  # fmt: skip


def _label_row(r: LabelRow) -> tuple[str, ...]:
    left = f" (without {', '.join(r.left_out)})" if r.left_out else ""
    most = f"{format_number(r.most_value)} against {format_number(r.most_control)}"
    return (
        format_place(r), r.attack, r.adversary, r.split, f"{r.labels}{left}",
        format_bounded(r.value, r.low, r.high), format_number(r.control_value), r.most, most,
        r.algorithm,
    )  # fmt: skip


def _build_phases(summary: Summary, name: str, points: Sequence[Point]) -> Table:
    """Leakage as the training goes on, where it was measured after more than one phase."""
    rows = [p for p in points if p.is_main and p.is_undefended]
    if len({p.phase for p in rows}) < 2:
        rows = []
    return Table(
        "Leakage over phases, undefended",
        make_columns("After phase", "Training", "Attack", "By", "Rows", "Advantage",
                     name="Attack", numbers=("Advantage",)),
        tuple(
            (p.phase, p.algorithm, summary.name_attack(p), p.adversary, p.split,
             format_interval(p.advantage, sign=True))
            for p in rows
        ),
        f"Leakage over phases on {name}", views=View.PAGE,
    )  # fmt: skip
