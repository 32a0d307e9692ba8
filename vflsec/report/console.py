"""Results on a terminal: utility, each attack beside its control, verdicts, findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vflsec.report import first
from vflsec.report.coverage import gaps
from vflsec.report.numbers import corrected, interval, number
from vflsec.report.scores import after, scores
from vflsec.report.tables import print_tables
from vflsec.report.text import clean
from vflsec.report.verdicts import beyond, headline, point_of, unfinished
from vflsec.visible import HEADS, Line, cells, claim

__all__ = [
    "WIDTH",
    "judged_line",
    "print_last",
    "print_plan",
    "print_results",
    "print_summary",
    "print_verdicts",
    "print_visibility",
    "results_table",
]

WIDTH = 100
MOST = 10
"""How many findings are printed."""
_STYLE = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow"}


def _order(p: Mapping[str, Any]) -> tuple[Any, ...]:
    """The undefended first, then by defense and strength; the rest as it came."""
    return p["algorithm"], p["defense"] != "none", p["defense"], p["strength"] or 0.0


def _strength(row: Mapping[str, Any]) -> str:
    if row["defense"] == "none":
        return "no defense"
    return row["defense"] if row["strength"] is None else f"{row['defense']} {row['strength']:g}"


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
        name = f"{p['algorithm']}, {_strength(p)}" if p["defense"] != "none" else p["algorithm"]
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
        lines.append((f"{p['algorithm']}, {_strength(p)}", texts))
    heads = ("attack", "by", "rows", metrics[0] if len(metrics) == 1 else "figure",
             "strongest control", "advantage")  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = max(len(p["attack"].partition("(")[0]) + 2 for p in rows)  # whole, to be copied
    wanted = [max(cells[k].cell_len for _, cells in lines) for k in range(len(heads))]
    for k, (head, most) in enumerate(zip(heads, _fitted(wanted, names, width), strict=True)):
        table.add_column(head, width=most, overflow="fold", justify="right" if k == 3 else "left")
    previous = ""
    for point, shown in lines:
        if point != previous:
            table.add_row(Text(point, style="italic"))
            previous = point
        table.add_row(*shown)
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
    from vflsec.audit import matrix

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("strongest attacker of", "training", "attack", "by"):
        table.add_column(name, overflow="fold", max_width=26)
    table.add_column("advantage, Holm-corrected", no_wrap=width >= WIDTH)
    for r in matrix.strongest(points, summary["confidence"]):
        shade = _shade(
            {"advantage": r["advantage"], "advantage_low": r["low"], "advantage_high": r["high"]}
        )
        table.add_row(
            matrix.secret(r), f"{r['algorithm']}, {_strength(r)}", matrix.named(r), r["adversary"],
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
    """Everything of an audit that fits a terminal; all findings, or the first, which weigh most."""
    console.print(results_table(summary, console.width))
    print_verdicts(summary["gates"], console)
    hidden = [text for e in summary.get("visibility", []) for _, text in e["sentences"]]
    if hidden:
        console.print(Text("\nWhat encryption hides, and what not", style="bold"))
    for sentence in hidden:
        console.print(_item("- ", Text(sentence)))
    findings = [f for f in summary["findings"] if f.partition(":")[0] not in _STYLE]
    console.print(Text(f"\n{first.bounds(summary)}", style="dim"))
    if findings:
        console.print(Text("\nFindings", style="bold"))
        console.print(Text(first.each(summary), style="dim"))
    shown = len(findings) if whole or len(findings) <= MOST + 1 else MOST
    for sentence in findings[:shown]:
        console.print(_item("- ", Text(sentence)))
    if len(findings) > shown:
        more = f"and {len(findings) - shown} more, in the report; `vflsec report` prints them too."
        console.print(_item("- ", Text(more, "dim")))
    for title, said in (
        ("Does it leak, how much, to whom?", first.answers(summary)),
        ("What does it cost to stop?", first.cheapest(summary)),
        ("Not judged by any gate, and leaking", beyond(summary)),
        ("No attack exists, or was not run", gaps(summary)),
    ):
        if said:
            console.print(Text(f"\n{title}", style="bold"))
        for sentence in said:
            console.print(_item("- ", Text(sentence)))
    steps = first.next_steps(summary)
    if steps:
        console.print(Text("\nNext", style="bold"))
    for step in steps:
        console.print(_item("- ", Text(step.text)))
        if step.command:
            console.print(Text(f"    {step.command}"), soft_wrap=True)
    if not summary["complete"]:
        console.print(Text(unfinished(summary), "yellow"))
    console.print(f"\n{first.attacker(summary)}", markup=False, highlight=False)
    console.print(f"{clean(first.work(summary))}.", markup=False, highlight=False)


def print_results(folder: Path, console: Console) -> None:
    """Where the results are, and which page to open; a part of an audit has none."""
    report, sign = folder / "report.html", "statement.html"
    pages = f" (open {report}; to sign: {sign})" if report.is_file() else ""
    console.print(f"Results: {folder}{pages}", soft_wrap=True)


def print_last(summary: Mapping[str, Any], console: Console) -> None:
    """The overall verdict and what it holds for, on one line; nothing should follow it."""
    found, _ = headline(summary)
    line = Text(first.scope(summary))
    line.stylize(_STYLE.get(found, "bold"), 0, len(found))
    console.print(line, soft_wrap=True, highlight=False)


def print_verdicts(verdicts: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Every gate with its verdict, point and reason."""
    if verdicts:
        console.print(Text("\nGates", style="bold"))
    several = len({v["algorithm"] for v in verdicts if v["algorithm"]}) > 1
    for v in verdicts:
        point = point_of(v if several else {**v, "algorithm": ""})
        body = Text(v["label"] + (f" ({point})" if point else ""))
        body.append(f"\n{v['reason']}", style="dim")
        console.print(_item(f"{v['verdict']:<13}", body, _STYLE.get(v["verdict"], "")))


def _item(head: str, body: Text, style: str = "") -> Table:
    """A hanging indent: `head`, then `body` wrapped beside it."""
    table = Table.grid(padding=0)
    table.add_column(width=len(head))
    table.add_column()
    table.add_row(Text(head, style=style), body)
    return table


def judged_line(record: Mapping[str, Any], edited: Path | None, folder: Path) -> str:
    """Whose gates are judged, and how to judge those of a file that was edited since."""
    file = clean(record.get("scenario_file") or record["name"])
    when = f", audited {record['when']} UTC" if record.get("when") else ""
    text = f"Gates of {file}{when} (scenario {str(record['scenario_hash'])[:8]})."
    if edited is None:
        return text
    again = f"vflsec gate {folder} --scenario {edited}"
    return f"{text} {edited} was edited since; these are the gates before. To judge it: {again}"


def print_plan(plan: Mapping[str, Any], console: Console) -> None:
    """What is in the tables, what will run, what cannot and why, and the estimate."""
    for data in plan["data"]:
        print_tables(data, console, warn=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("what for", "data", "algorithm", "defenses", "cells", "attacks"):
        table.add_column(name, overflow="fold")
    for group in plan["groups"]:
        defenses = _stack(group["defenses"])
        strengths = [", ".join(f"{s:g}" for s in point) for point in group["strengths"] if point]
        if strengths:
            defenses += f" at {'; '.join(strengths)}"
        table.add_row(
            group["role"], group["dataset"], group["algorithm"], defenses,
            str(len(group["cells"])), _names(group["attacks"]),
        )  # fmt: skip
    console.print(table)
    under = {c: _stack(g["defenses"]) for g in plan["groups"] for c in g["cells"]}
    for refused in plan["refused"]:
        where = dict.fromkeys(under[c] for c in refused["cells"] if c in under)
        console.print(
            Text.assemble(
                (f"{refused['status']}: ", "yellow"),
                f"{refused['attack']['name']} on {refused['dataset']} ({refused['role']}; "
                f"{', '.join(where)}): {refused['reason']}",
            )
        )
    print_visibility(plan["visibility"], console)
    for note in plan["notes"]:
        console.print(Text(f"note: {note}", style="dim"))
    cost = plan["cost"]
    console.print(
        f"\n{cost['trainings']:g} trainings, {cost['attacks']:g} attacks, about "
        f"{cost['steps']:g} steps: roughly {_duration(cost['seconds'])} on one CPU thread, "
        f"{_duration(cost['control_seconds'])} of it for controls, in about "
        f"{_size(cost['memory_bytes'])} of memory (an estimate)."
    )
    if cost.get("views_bytes"):
        console.print(
            f"With --keep-views, about {cost['views_bytes'] / 1e6:.3g} MB of views are kept "
            "(an estimate; --views-mb bounds them).", highlight=False,
        )  # fmt: skip
    if cost.get("ciphertext_bytes"):
        _encryption(cost["encryption"], console)
        steps = max(cost["steps"], 1)
        sealed = cost["encryption_seconds"]
        spent = f"{sealed / steps:.2g} s a step and {_duration(sealed)} in all"
        console.print(
            f"Encryption: about {cost['ciphertext_bytes'] / steps / 1e6:.3g} MB of ciphertexts a "
            f"step (mean over all trainings), {cost['ciphertext_bytes'] / 1e9:.3g} GB in all; "
            f"{spent if sealed else 'emulated, so they are counted and not computed'}."
        )


def print_visibility(entries: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Who sees what, for every protocol that hides something, and what that buys."""
    shown: list[Any] = []
    for entry in entries:
        same = entry["defense"], entry["lines"], entry["hides"], entry["leaves"]
        if same in shown and "sentences" not in entry:
            continue  # another algorithm, the same protocol
        shown.append(same)
        console.print(Text(f"\nWhat stays visible: {entry['defense']}", style="bold"))
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in HEADS:
            table.add_column(name, overflow="fold")
        for line in entry["lines"]:
            table.add_row(*map(Text, cells(Line(**line))))
        console.print(table)
        said = [text for _, text in entry.get("sentences", [])]
        for text in said or [claim("It", entry["hides"], entry["leaves"])]:
            console.print(Text(text))


def _encryption(entries: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Seconds by operation and bytes of one batch, an epoch and the whole run."""
    console.print(Text("\nWhat encryption costs, by estimate", style="bold"))
    for e in entries:
        seconds = sum(e["seconds"].values())
        parts = ", ".join(f"{k} {v:.2g} s" for k, v in e["seconds"].items())
        more = [
            f"{what} {_duration(seconds * e[n])} and {_size(e['bytes'] * e[n])}"
            for what, n in (("an epoch", "per_epoch"), ("the whole run", "in_all"))
        ]
        body = f"{e['algorithm']} with {e['defense']} on {e['dataset']}" + (
            "" if e["computed"] else ", if it were real"
        )
        body += f": a batch {seconds:.2g} s ({parts}) and {_size(e['bytes'])}; {'; '.join(more)}."
        console.print(_item("- ", Text(body)))


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def _stack(defenses: Sequence[Mapping[str, Any]]) -> str:
    """Names and parameters, without strengths."""
    shown = []
    for d in defenses:
        inner = ", ".join(f"{k}={v}" for k, v in sorted(d["params"].items()))
        shown.append(f"{d['name']}({inner})" if inner else d["name"])
    return " + ".join(shown) or "none"


def print_changes(found: Mapping[str, Any], console: Console) -> None:
    """What `vflsec compare` found."""
    for name, a, b in found["facts"]:
        console.print(Text(f"{name}: {a} -> {b}", style="dim"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("data", "training", "what", "rows", "before", "after"):
        table.add_column(name, overflow="fold")
    table.add_column(
        f"change, {100 * found['confidence']:g} % interval", no_wrap=console.width >= WIDTH
    )
    table.add_column("seeds", justify="right")
    same = [r for r in found["rows"] if r["change"] == 0 and r["low"] in (0, None)]
    moved = [r for r in found["rows"] if r not in same]
    for r in moved:
        style = {1: "red", -1: "green", 0: ""}[_harm(r)]
        seeds = f"{r['seeds']}" if r["paired"] else f"{r['seeds']} (unpaired)"
        table.add_row(
            Text(r["dataset"]), Text(f"{r['algorithm']}, {_strength(r)}"), Text(_what(r)),
            r["split"], number(r["before"]), number(r["after"]),
            Text(_signed(r), style=style), seeds,
        )  # fmt: skip
    if moved:
        console.print(table)
    for state in ("gone", "new"):
        for r in found[state]:
            what = _what(r) if r["attack"] else "utility"
            where = f"{r['dataset']}, {r['algorithm']}, {_strength(r)}, {r['split']} rows"
            console.print(Text(f"{state}: {what} ({where})", style="yellow"))
    if not found["rows"]:
        console.print("No point is in both.")
        return
    if same:
        console.print(f"{len(same)} of {len(found['rows'])} figures did not change.")
    if moved:
        console.print(Text(_conclusion(moved, found["confidence"])))


def _conclusion(moved: Sequence[Mapping[str, Any]], level: float) -> str:
    """In how many figures leakage or utility changed beyond its interval, and where most."""
    if all(r["low"] is None for r in moved):
        return "Of one seed there are no intervals: whether it is more than chance is not said."
    said = []
    for quantity, rows, more, less in (
        ("leakage", [r for r in moved if r["attack"]], "rose", "fell"),
        ("utility", [r for r in moved if not r["attack"]], "fell", "rose"),
    ):
        for harm, word in ((1, more), (-1, less)):
            if of := [r for r in rows if _harm(r) == harm]:
                most = max(of, key=lambda r: abs(r["change"]))
                where = f"{_what(most)}, {most['algorithm']}, {_strength(most)}"
                by = f"most by {number(most['change'], sign=True)} ({where}, {most['split']} rows)"
                figures = "1 figure" if len(of) == 1 else f"{len(of)} figures"
                said.append(f"{quantity} {word} in {figures}, {by}")
    if not said:
        return f"No change is beyond its {100 * level:g} % interval."
    return f"Beyond its {100 * level:g} % interval {'; '.join(said)}."


def _harm(r: Mapping[str, Any]) -> int:
    """1 for more leakage or less utility beyond the interval, -1 for the opposite, else 0."""
    if r["low"] is None or r["low"] <= 0 <= r["high"]:
        return 0
    return 1 if (r["low"] > 0) == bool(r["attack"]) else -1


def _what(r: Mapping[str, Any]) -> str:
    return f"{r['attack']} by {r['adversary']}" if r["attack"] else f"utility ({r['metric']})"


def _signed(r: Mapping[str, Any]) -> str:
    text = number(r["change"], sign=True)
    if r["low"] is None:
        return text
    return f"{text} [{number(r['low'], True)}, {number(r['high'], True)}]"


def _names(attacks: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(a["name"] for a in attacks)) or "none"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
