"""Results on a terminal: utility, each attack beside its control, verdicts, findings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vflsec.audit.gate_selection import bare
from vflsec.report import advice, first_screen
from vflsec.report.coverage import gaps
from vflsec.report.curve import print_curves
from vflsec.report.numbers import corrected, interval, number
from vflsec.report.rich_items import WIDTH, item, strength_of
from vflsec.report.sanitize import clean, shown
from vflsec.report.scores import after, scores
from vflsec.report.ungated_leaks import beyond
from vflsec.report.verdicts import beside_verdicts, headline, point_of, unfinished

__all__ = [
    "judged_line",
    "print_last",
    "print_results",
    "print_summary",
    "print_verdicts",
    "results_table",
]

_STYLE = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow"}


def _order(p: Mapping[str, Any]) -> tuple[Any, ...]:
    """The undefended first, then by defense and strength; the rest as it came."""
    return p["algorithm"], p["defense"] != "none", p["defense"], p["strength"] or 0.0


def results_table(summary: Mapping[str, Any], width: int = WIDTH) -> Group:
    """Per data set and algorithm: utility by defense, then every attack in its primary metric."""
    parts: list[Any] = []
    points = sorted(summary["points"], key=_order)
    for dataset in dict.fromkeys(p["dataset"] for p in points):
        of = [p for p in points if p["dataset"] == dataset]
        parts += [Text(f"\n{dataset}", style="bold"), _utility(of), *_attacks(of, summary, width)]
    return Group(*parts)


def _utility(points: list[Mapping[str, Any]]) -> Table:
    metric = next((p["utility_metric"] for p in points if p["utility_metric"]), "utility")
    table = Table(title=None, box=None, pad_edge=False, header_style="dim")
    table.add_column("training", min_width=34)
    table.add_column(f"utility: {metric}, 95 % interval".replace("95", _percent(points)))
    table.add_column("seeds", justify="right")
    seen: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for p in points:
        seen.setdefault((p["algorithm"], p["defense"], p["strength"]), p)
    for p in seen.values():
        name = f"{p['algorithm']}, {strength_of(p)}" if p["defense"] != "none" else p["algorithm"]
        table.add_row(name, interval(p, "utility"), str(p.get("utility_seeds") or 0))
    return table


def _percent(points: list[Mapping[str, Any]]) -> str:
    return f"{100 * points[0].get('confidence', 0.95):g}" if points else "95"


def _attacks(points: list[Mapping[str, Any]], summary: Mapping[str, Any], width: int) -> list[Any]:
    rows = [
        p for p in points if p["attack"] and (p["status"] != "ok" or p["metric"] == p["primary"])
    ]
    if not rows:
        return []
    metrics = list(dict.fromkeys(p["primary"] for p in rows if p["status"] == "ok"))
    several = len({p["phase"] for p in rows if p["phase"]}) > 1
    lines: list[tuple[str, Sequence[Text]]] = []
    for p in rows:
        name = f"  {p['attack']}{after(p) if several and p['status'] == 'ok' else ''}"
        if p["status"] != "ok":
            made = [name, p["adversary"], "", "-", Text(p["status"], "yellow"), ""]
        else:
            value = number(p.get("value")) + (f" {p['primary']}" if len(metrics) > 1 else "")
            control = f"{p['control']} {number(p.get('control_value'))}"
            gained = Text(interval(p, "advantage", sign=True), _shade(p))
            made = [name, p["adversary"], p["split"], value, control, gained]
        texts = [c if isinstance(c, Text) else Text(c) for c in made]
        lines.append((f"{p['algorithm']}, {strength_of(p)}", texts))
    heads = ("attack", "by", "rows", metrics[0] if len(metrics) == 1 else "figure",
             "strongest control", "advantage")  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = max(len(bare(p["attack"])) + 2 for p in rows)  # whole, to be copied
    wanted = [max(cells[k].cell_len for _, cells in lines) for k in range(len(heads))]
    for k, (head, most) in enumerate(zip(heads, _fitted(wanted, names, width), strict=True)):
        table.add_column(head, width=most, overflow="fold", justify="right" if k == 3 else "left")
    previous = ""
    for point, cells in lines:
        if point != previous:
            table.add_row(Text(point, style="italic"))
            previous = point
        table.add_row(*cells)
    out: list[Any] = [Text(""), table, Text(""), _strongest(points, summary, width)]
    found = scores(summary, points[0]["dataset"])
    if found:
        out += [Text(""), _scores(found)]
    reasons = {f"{p['attack']} by {p['adversary']}: {p['reason']}" for p in rows if p["reason"]}
    out += [Text(f"  {r}", style="yellow") for r in sorted(reasons)]
    return out


def _fitted(wanted: Sequence[int], names: int, width: int) -> list[int]:
    """Widths of the columns attack, by, rows, figure, control and advantage, two blanks between.

    What folds first is a parameter of an attack, then the control; then the interval into its two
    ends; then all that is left.
    """
    attack, by, _, figure, control, advantage = range(6)
    out = [min(wanted[attack], max(30, names)), min(wanted[by], 14), *wanted[2:]]
    for column, least in (
        (attack, names), (control, 12), (figure, 11), (by, 8), (advantage, 15),
        (control, 8), (figure, 8), (advantage, 8), (attack, 8), (by, 4),
    ):  # fmt: skip
        over = sum(out) + 2 * (len(out) - 1) - width
        out[column] -= max(0, min(out[column] - least, over))
    return out


def _strongest(points: list[Mapping[str, Any]], summary: Mapping[str, Any], width: int) -> Table:
    """The strongest attacker of each target, with what choosing it costs."""
    from vflsec.audit import strongest_attack

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("strongest attacker of", "training", "attack", "by"):
        table.add_column(name, overflow="fold", max_width=26)
    table.add_column("advantage, Holm-corrected", no_wrap=width >= WIDTH)
    for r in strongest_attack.strongest(points, summary["confidence"]):
        shade = _shade(
            {"advantage": r["advantage"], "advantage_low": r["low"], "advantage_high": r["high"]}
        )
        table.add_row(
            strongest_attack.secret(r), f"{r['algorithm']}, {strength_of(r)}", strongest_attack.named(r),
            r["adversary"],
            Text(corrected(r), style=shade),
        )  # fmt: skip
    return table


def _shade(p: Mapping[str, Any]) -> str:
    from vflsec.audit.controls import leaks

    low, high = p.get("advantage_low"), p.get("advantage_high")
    if leaks(p.get("advantage"), low):
        return "red"
    return "green" if high is not None and high <= 0 else ""


def _scores(found: Sequence[Mapping[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("privacy and utility over the grid", "rows", "strengths", "CAP", "DCS"):
        table.add_column(name)
    for c in found:
        name = f"{c['training']}: {c['attack']} by {c['adversary']} against {c['defense']}"
        table.add_row(name, c["split"], c["grid"], c["cap"], c["dcs"])
    return table


def print_summary(summary: Mapping[str, Any], console: Console, *, whole: bool = False) -> None:
    """The answers of an audit, in the order of the report's first screen.

    Args:
        summary: of the audit.
        console: where to print.
        whole: with every figure and finding, which else `vflsec report` is named for.
    """
    summary = shown(summary)
    more = advice.command(summary, "report")
    whole = whole or not more
    if whole:
        console.print(results_table(summary, console.width))
    print_curves(summary, console)
    _say("Does it leak, how much, to whom?", first_screen.answers(summary), console)
    print_verdicts(summary["gates"], console)
    hidden = [text for e in summary.get("visibility", []) for _, text in e["sentences"]]
    _say("What encryption hides, and what not", hidden, console)
    console.print(Text(f"\n{first_screen.bounds(summary)}", style="dim"))
    if whole:
        _findings(summary, console)
    _say("What does it cost to stop?", first_screen.cheapest(summary), console)
    if whole:
        _say("Not judged by any gate, and leaking", beyond(summary), console)
    _say("No attack exists, or was not run", gaps(summary), console)
    steps = advice.next_steps(summary)
    if steps:
        console.print(Text("\nNext", style="bold"))
    for step in steps:
        console.print(item("- ", Text(step.text)))
        if step.command:
            console.print(Text(f"    {step.command}"), soft_wrap=True)
    if not summary["complete"]:
        console.print(Text(unfinished(summary), "yellow"))
    console.print(f"\n{first_screen.attacker(summary)}", markup=False, highlight=False)
    console.print(f"{clean(first_screen.work(summary))}.", markup=False, highlight=False)
    if not whole:
        console.print(
            Text(f"Every attack beside its controls, and the findings: {more}"), soft_wrap=True
        )


def _say(title: str, lines: Sequence[str], console: Console) -> None:
    if lines:
        console.print(Text(f"\n{title}", style="bold"))
    for line in lines:
        console.print(item("- ", Text(line)))


def _findings(summary: Mapping[str, Any], console: Console) -> None:
    found = beside_verdicts(summary)
    if found:
        console.print(Text("\nFindings", style="bold"))
        console.print(Text(first_screen.each(summary), style="dim"))
    for sentence in found:
        console.print(item("- ", Text(sentence)))


def print_results(folder: Path, console: Console) -> None:
    """Where the results are, and which page to open; a part of an audit has none."""
    report, sign = folder / "report.html", "statement.html"
    pages = f" (open {report}; to sign: {sign})" if report.is_file() else ""
    console.print(clean(f"Results: {folder}{pages}"), soft_wrap=True)


def print_last(summary: Mapping[str, Any], console: Console) -> None:
    """The overall verdict and what it holds for, on one line; nothing should follow it."""
    found, _ = headline(summary)
    line = Text(first_screen.scope(summary))
    line.stylize(_STYLE.get(found, "bold"), 0, len(found))
    console.print(line, soft_wrap=True, highlight=False)


def print_verdicts(verdicts: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Every gate with its verdict, point and reason."""
    verdicts = shown(verdicts)
    if verdicts:
        console.print(Text("\nGates", style="bold"))
    several = len({v["algorithm"] for v in verdicts if v["algorithm"]}) > 1
    for v in verdicts:
        point = point_of(v if several else {**v, "algorithm": ""})
        body = Text(v["label"] + (f" ({point})" if point else ""))
        body.append(f"\n{v['reason']}", style="dim")
        console.print(item(f"{v['verdict']:<13}", body, _STYLE.get(v["verdict"], "")))


def judged_line(record: Mapping[str, Any], edited: Path | None, folder: Path) -> str:
    """Whose gates are judged, and how to judge those of a file that was edited since."""
    file = clean(record.get("scenario_file") or record["name"])
    when = f", audited {record['when']} UTC" if record.get("when") else ""
    text = f"Gates of {file}{when} (scenario {str(record['scenario_hash'])[:8]})."
    if edited is None:
        return text
    again = shlex.join(["vflsec", "gate", str(folder), "--scenario", str(edited)])
    return clean(
        f"{text} {edited} was edited since; these are the gates before. To judge it: {again}"
    )
