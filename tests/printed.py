"""A plain summary as each medium prints its report, and what reports say of it piece by piece.

Tests change what ``summary.json`` holds; here it is read as the package reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

from rich.console import Console

from vflsec.audit.leakage_claims import format_secret
from vflsec.audit.summary import read_summary
from vflsec.report import (
    advice as _advice,
)
from vflsec.report import (
    console as terminal,
)
from vflsec.report import (
    coverage as _coverage,
)
from vflsec.report import (
    first_screen as _first_screen,
)
from vflsec.report import (
    github,
    junit,
    threat_model,
    tracking,
    ungated_leaks,
    verdicts,
)
from vflsec.report import (
    sarif as _sarif,
)
from vflsec.report.build import build_printed, build_report
from vflsec.report.html import render_fragment, render_page, render_statement
from vflsec.report.markdown import render_markdown
from vflsec.report.tree import Report, View


def reads(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, given a summary as plain values in the place of a typed one."""

    @wraps(function)
    def call(*given: Any) -> Any:
        return function(*map(_typed, given))

    return call


def _typed(value: Any) -> Any:
    """A verdict or a summary as a typed value; other values as they are."""
    if not isinstance(value, Mapping):
        return value
    if "gate" in value:
        return read_summary({"gates": [value]}).gates[0]
    return read_summary(value)


def _functions(module: ModuleType) -> Any:
    made = {n: x for n, x in vars(module).items() if not n.startswith("_")}
    return SimpleNamespace(**{n: reads(f) if callable(f) else f for n, f in made.items()})


advice, coverage, first_screen = map(_functions, (_advice, _coverage, _first_screen))
bounds = reads(verdicts.describe_bounds)
beside_verdicts, headline = reads(verdicts.list_findings), reads(verdicts.format_headline)
beyond, deployed = reads(ungated_leaks.describe_ungated), reads(ungated_leaks.find_deployed)
unjudged, unstopped = reads(ungated_leaks.describe_unjudged), reads(ungated_leaks.find_unstopped)
assumed, threats = reads(threat_model.describe_assumed), reads(threat_model.describe_threats)
metrics, tags = reads(tracking.list_metrics), reads(tracking.list_tags)
junit_xml, sarif = reads(junit.junit_xml), reads(_sarif.build_sarif)
workflow_commands = reads(github.workflow_commands)
attacks_of = first_screen.list_attacks


def answers(summary: Mapping[str, Any], dataset: str = "") -> dict[str, str]:
    """The answers of the first screen by question; of the first data set if none is named."""
    found = first_screen.build_answer(summary)
    named = found[dataset or next(iter(found))]
    return {a.question: " ".join(a.lines) for a in (*named, *found[""])}


def claims(summary: Mapping[str, Any]) -> dict[tuple[str, str, float | None], str]:
    """The significance of every claim by quantity, secret with attacker, and strength."""
    return {
        (c.quantity.value, f"{format_secret(c)} to {c.adversary}", c.strength): c.significance.value
        for c in read_summary(summary).claims
    }


def above_appendix(summary: Mapping[str, Any]) -> str:
    """What the page to sign says above its appendix, without markup."""
    page = statement(summary).split("<main>")[1].split("Appendix A.")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


families, gaps, next_steps = coverage.list_families, coverage.list_gaps, advice.next_steps


def _report(summary: Mapping[str, Any]) -> Report:
    return build_report(read_summary(summary))


def html(summary: Mapping[str, Any]) -> str:
    """The report as a page."""
    return render_page(_report(summary))


def statement(summary: Mapping[str, Any]) -> str:
    """The page to sign."""
    return render_statement(_report(summary))


def html_of(summary: Mapping[str, Any]) -> str:
    """The report in a notebook."""
    return render_fragment(_report(summary))


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    return render_markdown(_report(summary))


def print_summary(summary: Mapping[str, Any], console: Console, *, whole: bool = False) -> None:
    """The report on a terminal."""
    terminal.print_report(build_printed(read_summary(summary), whole=whole), console)


def print_leakage(summary: Mapping[str, Any], console: Console) -> None:
    """What was measured, on a terminal."""
    terminal.print_section(build_printed(read_summary(summary), whole=True), "leakage", console)


def print_verdicts(summary: Mapping[str, Any], console: Console) -> None:
    """The gates on a terminal."""
    terminal.print_section(build_printed(read_summary(summary)), "gates", console)


def print_curves(summary: Mapping[str, Any], console: Console) -> None:
    """Leakage and utility, training by training, on a terminal."""
    (answers,) = (s for s in _report(summary).seen_by(View.TERMINAL) if s.key == "answers")
    for section in answers.blocks[:-1]:
        terminal.print_blocks(section.blocks[1:], console)  # type: ignore[union-attr]


def write_step_summary(summary: Mapping[str, Any]) -> bool:
    """The report in Markdown, appended where a GitHub job asks for it."""
    return github.write_step_summary(read_summary(summary))
