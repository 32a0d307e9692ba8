"""A summary as each medium prints its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from vflsec.report import console as terminal
from vflsec.report.build import build_report
from vflsec.report.html import render_fragment, render_page, render_statement
from vflsec.report.markdown import render_markdown
from vflsec.report.tree import View


def html(summary: Mapping[str, Any]) -> str:
    """The report as a page."""
    return render_page(build_report(summary))


def statement(summary: Mapping[str, Any]) -> str:
    """The page to sign."""
    return render_statement(build_report(summary))


def html_of(summary: Mapping[str, Any]) -> str:
    """The report in a notebook."""
    return render_fragment(build_report(summary))


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    return render_markdown(build_report(summary))


def print_summary(summary: Mapping[str, Any], console: Console, *, whole: bool = False) -> None:
    """The report on a terminal."""
    terminal.print_report(build_report(summary), console, whole=whole)


def print_leakage(summary: Mapping[str, Any], console: Console) -> None:
    """What was measured, on a terminal."""
    terminal.print_leakage(build_report(summary), console)


def print_verdicts(summary: Mapping[str, Any], console: Console) -> None:
    """The gates on a terminal."""
    terminal.print_gates(build_report(summary), console)


def print_curves(summary: Mapping[str, Any], console: Console) -> None:
    """Leakage and utility, training by training, on a terminal."""
    sections = build_report(summary).seen_by(View.TERMINAL)
    terminal.print_blocks([s for s in sections if s.key == "curves"], console)
