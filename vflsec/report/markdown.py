"""A Markdown summary: for a pull request, a step summary, or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vflsec.report.console import interval, number
from vflsec.report.figures import points
from vflsec.report.text import markdown as esc
from vflsec.report.verdicts import headline, place, point_of
from vflsec.visible import Line, markdown

__all__ = ["markdown_summary"]

_MARK = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❔"}
_MOST = 40


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """Verdict first, then every gate, the attacks beside their controls, and the findings."""
    found, how = headline(summary)
    lines = [
        f"## {_MARK.get(found, '')} vflsec: {found} ({esc(summary['name'])})".replace("  ", " ")
    ]
    lines += ["", how, ""]
    if summary["gates"]:
        lines += ["| verdict | gate | where | value | bounds | why |",
                  "|---|---|---|---:|---|---|"]  # fmt: skip
        for v in summary["gates"]:
            bounds = f"{number(v['low'])} to {number(v['high'])}"
            cells = (
                f"{_MARK[v['verdict']]} {v['verdict']}", esc(v["label"]), esc(point_of(v)),
                number(v["value"]), bounds, esc(v["reason"]),
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    rows = points(summary)
    if rows:
        lines += ["### Attacks beside their strongest control", "",
                  "| data | defense | attack | by | rows | attack | control | advantage |",
                  "|---|---|---|---|---|---:|---:|---|"]  # fmt: skip
        for p in rows[:_MOST]:
            line = (
                esc(p["dataset"]), esc(place(p)), esc(p["attack"]), esc(p["adversary"]),
                esc(p["split"]), number(p["value"]),
                f"{number(p['control_value'])} {esc(p['control'])}",
                interval(p, "advantage", sign=True),
            )  # fmt: skip
            lines.append(f"| {' | '.join(line)} |")
        if len(rows) > _MOST:
            lines.append(f"\n{len(rows) - _MOST} more are in results.csv.")
        lines.append("")
    findings = [f for f in summary["findings"] if f.partition(":")[0] not in _MARK]
    if findings:
        lines += ["### Findings", "", *(f"- {esc(f)}" for f in findings), ""]
    lines += _visibility(summary.get("visibility", []))
    cells = summary["cells"]
    lines.append(
        f"{cells['finished']} of {cells['planned']} trainings on {esc(summary['device'])}, "
        f"vflsec {esc(summary['versions']['vflsec'])}, scenario {esc(summary['scenario_hash'])}. "
        "Details: report.html."
    )
    return "\n".join(lines) + "\n"


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
