"""A Markdown summary: for a pull request, a step summary, or a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.core.visibility import Line, markdown
from vflsec.report import advice, first_screen
from vflsec.report.coverage import gaps, older
from vflsec.report.curve import curves, means
from vflsec.report.numbers import against, corrected, interval, number
from vflsec.report.sanitize import markdown as esc
from vflsec.report.scores import CAP_MEANS, DCS_MEANS, after, scores
from vflsec.report.tables import MATCHING, matched
from vflsec.report.ungated_leaks import beyond
from vflsec.report.verdicts import beside_verdicts, headline, place, point_of

__all__ = ["markdown_summary"]

_MARK = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔"}
_MOST = 40
_PLAIN = re.compile(r"[\w ./\\:=,+'\"\[\]{}()-]*")


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """Verdict first, then every gate, the attacks beside their controls, and the findings."""
    found, _ = headline(summary)
    lines = [
        f"## {_MARK.get(found, '')} vflsec: {found} ({esc(summary['name'])})".replace("  ", " ")
    ]
    lines += ["", esc(first_screen.scope(summary)), ""]
    lines += _said("Does it leak, how much, to whom?", first_screen.answers(summary))
    lines += _curves(summary)
    for title, said in (
        ("What does it cost to stop?", first_screen.cheapest(summary)),
        ("No attack exists, or was not run", gaps(summary)),
    ):
        lines += _said(title, said)
    steps = advice.next_steps(summary)
    if steps:
        lines += ["**Next**", "", *(line for step in steps for line in _step(step)), ""]
    leaks = beyond(summary)
    if leaks:
        lines += ["Not judged by any gate, and leaking (advantage over the strongest control):", ""]
        lines += [*(f"- {esc(line)}" for line in leaks), ""]
    if summary["gates"]:
        lines += ["| verdict | gate | where | value | bounds | why |",
                  "|---|---|---|---:|---|---|"]  # fmt: skip
        for v in summary["gates"]:
            bounds = f"{against(v, 'low')} to {against(v, 'high')}"
            cells = (
                f"{_MARK[v['verdict']]} {v['verdict']}", esc(v["label"]), esc(point_of(v)),
                against(v, "value"), bounds, esc(v["reason"]),
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [esc(first_screen.bounds(summary)), ""]
    rows = strongest_attack.told(summary["points"])
    several = len({p["phase"] for p in rows}) > 1
    if rows:
        lines += ["### Attacks beside their strongest control", "",
                  "| data | training | defense | attack | by | rows | attack | control | "
                  "advantage |",
                  "|---|---|---|---|---|---|---:|---:|---|"]  # fmt: skip
        for p in rows[:_MOST]:
            line = (
                esc(p["dataset"]), esc(p["algorithm"]), esc(place(p)),
                esc(p["attack"] + after(p) * several), esc(p["adversary"]), esc(p["split"]),
                number(p["value"]),
                f"{number(p['control_value'])} {esc(p['control'])}",
                interval(p, "advantage", sign=True),
            )  # fmt: skip
            lines.append(f"| {' | '.join(line)} |")
        if len(rows) > _MOST:
            lines.append(f"\n{_more(rows, 'results.csv')}")
        lines.append("")
    for name in summary.get("tables", {}):
        if said := matched(summary, name):
            lines += [f"### {MATCHING}: {esc(name)}", "", *(f"- {esc(x)}" for x in said), ""]
    lines += _scores(summary)
    level = summary["confidence"]
    lines += _strongest(strongest_attack.strongest(summary["points"], level), level)
    lines += _matrix(strongest_attack.leaks(summary["points"], level))
    lines += _dosing(summary.get("dosing", []))
    findings = beside_verdicts(summary)
    if findings:
        lines += [
            "### Findings",
            "",
            esc(first_screen.each(summary)),
            "",
            *(f"- {esc(f)}" for f in findings),
            "",
        ]
    lines += _visibility(summary.get("visibility", []))
    lines += _tables(summary.get("tables") or {})
    lines += [esc(first_screen.attacker(summary)), *map(esc, older(summary)), ""]
    lines.append(
        f"{esc(first_screen.work(summary))}; vflsec {esc(summary['versions']['vflsec'])}, "
        f"scenario {esc(summary['scenario_hash'])}. "
        "Details: report.html; to sign: statement.html."
    )
    return "\n".join(lines) + "\n"


def _said(title: str, lines: Sequence[str]) -> list[str]:
    return [f"**{title}**", "", *(f"- {esc(line)}" for line in lines), ""] if lines else []


def _curves(summary: Mapping[str, Any]) -> list[str]:
    """What each party learns of whom under each training, and the utility."""
    lines = []
    found = [c for c in curves(summary) if c.lines]
    for c in found:
        lines += [f"| {esc(c.dataset)} | {' | '.join(esc(h) for h in c.heads)} |",
                  f"|---|{'---:|' * len(c.heads)}"]  # fmt: skip
        for name, cells in c.lines:
            texts = ("-" if x is None else x[0] + (esc("*") if x[1] else "") for x in cells)
            lines.append(f"| {esc(name)} | {' | '.join(texts)} |")
        lines += [f"| {esc(c.utility[0])} | {' | '.join(c.utility[1])} |", ""]
    return [*lines, esc(means(summary)), ""] if found else []


def _step(step: advice.Step) -> list[str]:
    """A step, and its command in a block to copy (with odd names in it, as text that is safe)."""
    if not step.command:
        return [f"1. {esc(step.text)}"]
    if not _PLAIN.fullmatch(step.command):
        return [f"1. {esc(step.text)} {esc(step.command)}"]
    return [f"1. {esc(step.text)}", "", "   ```console", f"   {step.command}", "   ```", ""]


def _tables(found: Mapping[str, Any]) -> list[str]:
    """The user's own tables: every column, and which rows the parties share."""
    out = []
    for name, facts in found.items():
        out += [f"### Tables of {esc(name)}", ""]
        for t in facts["tables"]:
            how = f", {t['read_as']}" if t["read_as"] else ""
            title = f"{t['file']} ({' and '.join(t['parties'])}): {t['rows']} rows{how}"
            out += [f"<details><summary>{esc(title)}</summary>", "",
                    "| column | party | role | kind | distinct | missing | doubtful |",
                    "|---|---|---|---|---:|---:|---|"]  # fmt: skip
            for c in t["columns"][:_MOST]:
                keys = ("name", "party", "role", "kind", "distinct", "missing", "warning")
                out.append(f"| {' | '.join(esc(c[k]) for k in keys)} |")
            if len(t["columns"]) > _MOST:
                out += ["", _more(t["columns"], "report.html")]
            out += ["", "</details>", ""]
        if len(facts["overlap"]) > 1:
            out += ["| party | rows | in common | with a label | only here |",
                    "|---|---:|---:|---:|---:|"]  # fmt: skip
            for party, f in facts["overlap"].items():
                counts = (f["rows"], f["common"], f["labelled"], f["only_here"])
                out.append(f"| {esc(party)} | {' | '.join(map(str, counts))} |")
            out.append("")
    return out


def _strongest(rows: Sequence[Mapping[str, Any]], level: float) -> list[str]:
    """One line for each target under each training."""
    if not rows:
        return []
    lines = [f"### Strongest attacker of each target (Holm-corrected {level * 100:g} % intervals)",
             "", "| whose secret | data | training | defense | attack | by | advantage | tried |",
             "|---|---|---|---|---|---|---|---:|"]  # fmt: skip
    for r in rows[:_MOST]:
        line = (
            esc(strongest_attack.secret(r)), esc(r["dataset"]), esc(r["algorithm"]), esc(place(r)),
            esc(strongest_attack.named(r)), esc(r["adversary"]), corrected(r).partition(", of")[0],
            str(r["tried"]),
        )  # fmt: skip
        lines.append(f"| {' | '.join(line)} |")
    return [*lines, ""]


def _scores(summary: Mapping[str, Any]) -> list[str]:
    rows = scores(summary)
    if not rows:
        return []
    lines = ["### CAP and DCS (reported, never gated)", "", f"{CAP_MEANS} {DCS_MEANS}", "",
             "| data | training | defense | strengths | attack | by | rows | CAP | DCS |",
             "|---|---|---|---|---|---|---|---:|---|"]  # fmt: skip
    names = ("dataset", "training", "defense", "grid", "attack", "adversary", "split", "cap", "dcs")
    lines += [f"| {' | '.join(esc(r[k]) for k in names)} |" for r in rows[:_MOST]]
    return [*lines, "", _more(rows, "summary.json"), ""] if len(rows) > _MOST else [*lines, ""]


def _more(rows: Sequence[Mapping[str, Any]], where: str) -> str:
    return f"{len(rows) - _MOST} more are in {where}."


def _matrix(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who leaks to whom: one line for each victim, one column for each adversary."""
    if not cells:
        return []
    across = list(dict.fromkeys(c["adversary"] for c in cells))
    several = len({c["dataset"] for c in cells}) > 1
    lines = ["### Who leaks to whom, undefended: the largest advantage over all attacks", "",
             f"| whose secret | {' | '.join(f'to {esc(a)}' for a in across)} |",
             f"|---|{'---|' * len(across)}"]  # fmt: skip
    table: dict[str, dict[str, str]] = {}
    for c in cells:
        where = strongest_attack.secret(c) + (f" ({c['dataset']})" if several else "")
        figure = f"{number(c['advantage'], sign=True)} {esc(strongest_attack.named(c))}"
        table.setdefault(where, {})[c["adversary"]] = figure
    for where, row in table.items():
        lines.append(f"| {esc(where)} | {' | '.join(row.get(a, '') for a in across)} |")
    return [*lines, ""]


def _dosing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was found of each planted leak."""
    if not rows:
        return []
    lines = ["### Leaks that were planted, and what was found of them", "",
             "| data | training | defense | attack | by | rows dosed | planted | found | "
             "chance to be shown |",
             "|---|---|---|---|---|---:|---:|---|---:|"]  # fmt: skip
    for r in rows[:_MOST]:
        line = (
            esc(r["dataset"]), esc(r["algorithm"]), esc(place(r)), esc(r["attack"]),
            esc(r["adversary"]), f"{100 * r['share']:g} % {esc(r['split'])}", number(r["planted"]),
            interval({**r, "advantage_low": r["low"], "advantage_high": r["high"]}, "advantage",
                     sign=True),
            number(r["chance"]),
        )  # fmt: skip
        lines.append(f"| {' | '.join(line)} |")
    more = [_more(rows, "summary.json"), ""] if len(rows) > _MOST else []
    return [*lines, "", *more]


def _visibility(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each protocol hides and leaves, a sentence a data set, and who sees what."""
    if not entries:
        return []
    out = ["### What encryption hides, and what not", ""]
    out += [f"- {esc(text)}" for e in entries for _, text in e["sentences"]] + [""]
    for e in entries:
        table = markdown([Line(**line) for line in e["lines"]])
        title = f"Who sees what: {esc(e['defense'])}"
        out += [f"<details><summary>{title}</summary>", "", table, "", "</details>", ""]
    return out
