"""What attacks gained on each data set, as tables: who learns what, and by which attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.leakage import is_undefended
from vflsec.report.figure_blocks import build_figures
from vflsec.report.figures import trade_offs
from vflsec.report.numbers import format_bytes, interval, number
from vflsec.report.scores import CAP_MEANS, DCS_MEANS, after, scores
from vflsec.report.tables import MATCHING, matched
from vflsec.report.tree import (
    Block,
    Bullets,
    Cell,
    Column,
    Folded,
    Kind,
    Paragraph,
    Section,
    Table,
    Tone,
    View,
)
from vflsec.report.verdicts import place

__all__ = ["build_leakage", "build_unmeasured", "find_unmeasured", "tone_of"]

Row = Mapping[str, Any]

_FILES = frozenset({View.PAGE, View.SUMMARY, View.NOTEBOOK})
_PAGE = frozenset({View.PAGE})
_PRINTED = frozenset({View.WHOLE})
_SHORT = frozenset({View.PAGE, View.SUMMARY})
_GAINS = (Tone.PLAIN, Tone.GAIN_1, Tone.GAIN_2, Tone.GAIN_3, Tone.GAIN_4)


def build_leakage(summary: Mapping[str, Any]) -> tuple[Section, ...]:
    """A section for each data set, with figures and tables of what was measured there."""
    names = dict.fromkeys([*summary["parties"], *(p["dataset"] for p in summary["points"])])
    return tuple(_build_dataset(summary, name, f"d{i}") for i, name in enumerate(names))


def _build_dataset(summary: Mapping[str, Any], name: str, prefix: str) -> Section:
    points = sorted((p for p in summary["points"] if p["dataset"] == name), key=_order)
    rows = strongest_attack.told(p for p in summary["points"] if p["dataset"] == name)
    several = len({p["algorithm"] for p in summary["points"] if p["attack"]}) > 1
    figures, lost = build_figures(summary, name, prefix), find_unmeasured(points)
    blocks: list[Block | None] = [
        _build_matching(summary, name),
        figures,
        _build_matrix(summary, name, rows),
        _build_strongest(name, rows, summary["confidence"]),
        _build_attacks(name, points, several, summary["confidence"]),
        replace(build_unmeasured(lost), views=_PRINTED) if lost else None,
        _build_dosing(name, summary.get("dosing", [])),
        _build_labels(name, summary.get("labels", [])),
        *_build_phases(name, points, summary, bool(figures)),
        _build_utility(name, points, summary),
        _build_scores(name, summary),
    ]
    return Section(name, tuple(b for b in blocks if b is not None))


def _order(p: Row) -> tuple[Any, ...]:
    """The undefended first, then by defense and strength; the rest as it came."""
    return p["algorithm"], p["defense"] != "none", p["defense"], p["strength"] or 0.0


def _build_matching(summary: Mapping[str, Any], name: str) -> Block | None:
    said = matched(summary, name)
    return Folded(MATCHING, (Bullets(tuple(said)),), open=True, views=_SHORT) if said else None


def _build_matrix(summary: Mapping[str, Any], name: str, rows: Sequence[Row]) -> Table | None:
    """Who leaks to whom, on the undefended training: rows whose secret, columns who learns it."""
    if not rows:
        return None
    parties = summary["parties"].get(name, {}).get("parties", [])
    found = strongest_attack.leaks(rows, summary["confidence"])
    cells = {(strongest_attack.secret(r), r["adversary"]): r for r in found}
    across = list(dict.fromkeys([*parties, *(k[1] for k in cells)]))
    down = []
    for held, victim in {strongest_attack.secret(r): r["victim"] or "" for r in found}.items():
        row = [_leak_cell(cells.get((held, who)), _is_own(victim, who)) for who in across]
        down.append((held, *row))
    heads = ("Whose secret", *across)
    return Table(
        "Who leaks to whom, undefended: the largest advantage over all attacks, and the attack "
        "that has it (rows: whose secret; columns: who learns it)",
        tuple(Column(h, Kind.TEXT if i else Kind.NAME) for i, h in enumerate(heads)),
        tuple(down),
        f"Who leaks to whom on {name}",
        views=_SHORT,
    )


def _is_own(victim: str, who: str) -> bool:
    return bool(victim) and set(victim.split("+")) <= set(who.split("+"))


def _leak_cell(r: Row | None, own: bool) -> Cell:
    if r is None:
        return Cell("its own" if own else "not attacked")
    value = r["advantage"]
    level = 0 if value is None or value <= 0 else min(4, 1 + int(value * 10))
    return Cell(number(value, sign=True), _GAINS[level], strongest_attack.named(r))


def tone_of(advantage: float | None, low: float | None, high: float | None) -> Tone:
    """A leak, nothing gained, or neither is shown."""
    if leaks(advantage, low):
        return Tone.LEAK
    return Tone.GOOD if high is not None and high <= 0 else Tone.PLAIN


def _build_strongest(name: str, rows: Sequence[Row], level: float) -> Table | None:
    found = strongest_attack.strongest(rows, level)
    if not found:
        return None
    return Table(
        f"Strongest attacker of each target (Holm-corrected {level * 100:g} % intervals for the "
        "best of those tried)",
        (Column("Whose secret", Kind.NAME), Column("Defense"), Column("Attack"), Column("By"),
         Column("Advantage", Kind.NUMBER), Column("Tried", Kind.NUMBER), Column("Training")),
        tuple(
            (strongest_attack.secret(r), place(r), strongest_attack.named(r), r["adversary"],
             Cell(_bounded(r["advantage"], r["low"], r["high"]),
                  tone_of(r["advantage"], r["low"], r["high"])),
             str(r["tried"]), r["algorithm"])
            for r in found
        ),
        f"Strongest attackers on {name}", "summary.json",
        views=frozenset({View.PAGE, View.SUMMARY, View.WHOLE}),
    )  # fmt: skip


def _bounded(value: float | None, low: float | None, high: float | None) -> str:
    return interval({"x": value, "x_low": low, "x_high": high}, "x", sign=True)


def _build_attacks(name: str, points: Sequence[Row], several: bool, level: float) -> Table | None:
    """Every answer of every attack beside its strongest control; refused ones on a terminal."""
    rows = [p for p in points if p["attack"] and p["status"] == "ok"
            and p["metric"] == p["primary"]]  # fmt: skip
    if not rows:
        return None
    metrics = list(dict.fromkeys(p["primary"] for p in rows))
    one = f" ({metrics[0]})" if len(metrics) == 1 else ""
    phases = len({p["phase"] for p in rows if p["phase"]}) > 1
    columns = (
        Column("Training", Kind.GROUP, _PRINTED), Column("Defense", views=_FILES),
        Column("Attack", Kind.NAME), Column("By"), Column("Advantage", Kind.NUMBER),
        Column(f"Attack does{one}", Kind.NUMBER, _FILES),
        Column(f"Attack does{one}", Kind.NUMBER, _PRINTED), Column("Control does", Kind.NUMBER),
        Column("Rows", Kind.NUMBER),
        Column("Training", views=_FILES if several else frozenset()),
    )  # fmt: skip
    return Table(
        f"Attacks beside their strongest control (mean over seeds, {level * 100:g} % interval; "
        "shaded: the interval of the advantage is above 0)",
        columns, tuple(_attack_row(p, phases, not one) for p in rows),
        f"Attacks on {name}", "results.csv",
        views=frozenset({View.PAGE, View.SUMMARY, View.WHOLE, View.NOTEBOOK}),
    )  # fmt: skip


def _attack_row(p: Row, phases: bool, named: bool) -> tuple[Cell | str, ...]:
    metric = f" {p['primary']}" if named else ""
    controls = ", ".join(
        f"{k} {number(v['control'])}" for k, v in (p.get("controls") or {}).items()
    )
    gain = tone_of(p["advantage"], p["advantage_low"], p["advantage_high"])
    return (
        f"{p['algorithm']}, {place(p)}", place(p), p["attack"] + (after(p) if phases else ""),
        p["adversary"], Cell(interval(p, "advantage", sign=True), gain),
        interval(p, "value") + metric, number(p["value"]) + metric,
        Cell(f"{number(p['control_value'])} ({p['control']})", hint=controls),
        f"{p['n']} {p['split']}", p["algorithm"],
    )  # fmt: skip


def find_unmeasured(points: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Attacks without a figure: name, adversaries, state, and why; each once."""
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for p in points:
        if p["attack"] and (p["status"] != "ok" or p["failed"]):
            state = p["status"] if p["status"] != "ok" else f"error in {p['failed']} seeds"
            found.setdefault((p["attack"], state, p["reason"]), {})[p["adversary"]] = None
    return [(a, ", ".join(who), state, why) for (a, state, why), who in found.items()]


def build_unmeasured(rows: Sequence[tuple[str, ...]], *heads: str) -> Table:
    """A table of :func:`find_unmeasured`; `heads` are of what stands before it in each row."""
    columns = (*map(Column, heads), Column("Attack", Kind.NAME), Column("By"), Column("State"),
               Column("Why", Kind.PROSE))  # fmt: skip
    return Table("Attacks without a figure", columns, tuple(rows))


def _build_dosing(name: str, doses: Sequence[Row]) -> Table | None:
    rows = [r for r in doses if r["dataset"] == name]
    if not rows:
        return None
    return Table(
        "Leaks that were planted, and what was found of them (shaded: shown to be above 0)",
        (Column("Defense"), Column("Attack", Kind.NAME), Column("By"),
         Column("Rows dosed", Kind.NUMBER), Column("Planted", Kind.NUMBER),
         Column("Found", Kind.NUMBER), Column("Chance to be shown", Kind.NUMBER),
         Column("Training")),
        tuple(
            (place(r), r["attack"], r["adversary"], f"{100 * r['share']:g} % {r['split']}",
             number(r["planted"]),
             Cell(_bounded(r["advantage"], r["low"], r["high"]),
                  Tone.LEAK if r["found"] else Tone.PLAIN),
             number(r["chance"]), r["algorithm"])
            for r in rows
        ),
        f"Planted leaks on {name}", "summary.json", views=_SHORT,
    )  # fmt: skip


def _build_labels(name: str, labels: Sequence[Row]) -> Table | None:
    rows = [r for r in labels if r["dataset"] == name and r.get("most")]
    if not rows:
        return None
    return Table(
        "Several labels: the mean over them, and the one that is told most (verdicts rest on each "
        "by itself)",
        (Column("Defense"), Column("Attack", Kind.NAME), Column("By"), Column("Rows"),
         Column("Labels"), Column("Mean AUC", Kind.NUMBER), Column("Own means", Kind.NUMBER),
         Column("Most told"), Column("Its AUC", Kind.NUMBER), Column("Training")),
        tuple(_label_row(r) for r in rows),
        f"Labels of {name}", "summary.json", views=_PAGE,
    )  # fmt: skip


def _label_row(r: Row) -> tuple[Cell | str, ...]:
    left = f" (without {', '.join(r['left_out'])})" if r["left_out"] else ""
    mean = interval({"x": r["value"], "x_low": r["low"], "x_high": r["high"]}, "x")
    most = f"{number(r['most_value'])} against {number(r['most_control'])}"
    return (
        place(r), r["attack"], r["adversary"], r["split"], f"{r['labels']}{left}", mean,
        number(r["control_value"]), r["most"], most, r["algorithm"],
    )  # fmt: skip


def _build_phases(
    name: str, points: Sequence[Row], summary: Mapping[str, Any], drawn: bool
) -> list[Block]:
    """Leakage as the training goes on, where it was measured after more than one phase."""
    rows = [p for p in strongest_attack.told(points) if is_undefended(p)]
    if len({p["phase"] for p in rows}) < 2:
        if not drawn or summary.get("over_time"):
            return []
        return [
            Paragraph("Leakage over the epochs was not asked for; over_time = true in [[attack]] "
                      "adds the curve.", Tone.SOFT, views=_PAGE)
        ]  # fmt: skip
    heads = ("After phase", "Training", "Attack", "By", "Rows", "Advantage")
    kinds = {"Attack": Kind.NAME, "Advantage": Kind.NUMBER}
    return [
        Table(
            "Leakage as the training goes on, undefended",
            tuple(Column(h, kinds.get(h, Kind.TEXT)) for h in heads),
            tuple(
                (p["phase"], p["algorithm"], p["attack"], p["adversary"], p["split"],
                 interval(p, "advantage", sign=True))
                for p in rows
            ),
            f"Leakage over phases on {name}", views=_PAGE,
        )
    ]  # fmt: skip


def _build_utility(name: str, points: Sequence[Row], summary: Mapping[str, Any]) -> Table | None:
    """One line for each training: its utility, what it sends, and the most that an attack gains."""
    attacked = any(p["attack"] and p["status"] == "ok" for p in points)
    worst = {_training(p): p for p in (trade_offs(summary, name) if attacked else [])}
    seen: dict[tuple[Any, ...], Row] = {}
    for p in points:
        seen.setdefault(_training(p), p)
    if not seen:
        return None
    return Table(
        "What the main task keeps, what training sends, and the most that an attack gains",
        (Column("Training", Kind.NAME, _PAGE), Column("Defense", views=_PAGE),
         Column("Training", Kind.NAME, _PRINTED), Column("Metric"),
         Column("Utility", Kind.NUMBER), Column("Drop against undefended", Kind.NUMBER, _PAGE),
         Column("Seeds", Kind.NUMBER), Column("Sent in training", Kind.NUMBER, _PAGE),
         Column("Largest advantage", Kind.NUMBER, _PAGE)),
        tuple(_utility_row(p, worst.get(_training(p))) for p in seen.values()),
        f"Utility, cost and leakage on {name}",
        views=frozenset({View.PAGE, View.WHOLE}),
    )  # fmt: skip


def _training(p: Row) -> tuple[Any, ...]:
    return p["algorithm"], p["defense"], p["strength"]


def _utility_row(p: Row, most: Row | None) -> tuple[Cell | str, ...]:
    sent = p.get("bytes")
    gain = Cell("-")
    if most is not None:
        by = f"{most['attack']} by {most['adversary']}"
        gain = Cell(interval(most, "advantage", sign=True), note=by)
    whole = p["algorithm"] if p["defense"] == "none" else f"{p['algorithm']}, {place(p)}"
    return (
        p["algorithm"], place(p), whole, p["utility_metric"], interval(p, "utility"),
        "-" if is_undefended(p) else interval(p, "utility_drop"), str(p.get("utility_seeds") or 0),
        "-" if sent is None else format_bytes(sent), gain,
    )  # fmt: skip


def _build_scores(name: str, summary: Mapping[str, Any]) -> Folded | None:
    found = scores(summary, name)
    if not found:
        return None
    heads = {
        "defense": "Defense", "grid": "Strengths", "attack": "Attack", "adversary": "By",
        "cap": "CAP", "dcs": "DCS at each strength", "split": "Rows", "metric": "Attack's figure",
        "training": "Training",
    }  # fmt: skip
    kinds = dict.fromkeys(("grid", "cap", "dcs"), Kind.NUMBER) | {"attack": Kind.NAME}
    table = Table(
        "Privacy and utility of each defense in single figures",
        tuple(Column(head, kinds.get(k, Kind.TEXT)) for k, head in heads.items()),
        tuple(tuple(r[k] for k in heads) for r in found),
        f"CAP and DCS on {name}", "summary.json",
    )  # fmt: skip
    means = (Paragraph(text, Tone.SOFT, views=_SHORT) for text in (CAP_MEANS, DCS_MEANS))
    return Folded(
        "CAP and DCS: single figures for each curve (reported, never gated)", (*means, table),
        views=frozenset({View.PAGE, View.SUMMARY, View.WHOLE}),
    )  # fmt: skip
