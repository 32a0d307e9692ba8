"""What a GitHub job shows: the step summary and annotations at the gates' lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from vflsec.audit.gate import PASS, Rule, Verdict
from vflsec.audit.summary import Summary
from vflsec.errors import ConfigError
from vflsec.report.build import build_report
from vflsec.report.coverage import find_older, list_unread
from vflsec.report.markdown import render_markdown
from vflsec.report.sanitize import clean, escape_annotation
from vflsec.report.tree import View
from vflsec.report.ungated_leaks import describe_unjudged
from vflsec.report.verdicts import (
    NO_GATE,
    NO_RISE,
    describe_steady,
    format_headline,
    format_title,
    is_steady,
)
from vflsec.runtime.atomic_files import append_text

_COMMAND = {"FAIL": "error", "INCONCLUSIVE": "warning"}


def write_step_summary(summary: Summary) -> bool:
    """Append the report in Markdown to ``$GITHUB_STEP_SUMMARY``; whether there is such a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not path:
        return False
    try:
        append_text(Path(path), render_markdown(build_report(summary, View.SUMMARY)) + "\n")
    except OSError as error:
        raise ConfigError(
            f"GITHUB_STEP_SUMMARY: {path}: cannot be written: {error.strerror}."
        ) from None
    return True


def workflow_commands(summary: Summary) -> Iterator[str]:
    """Workflow commands; none outside a GitHub job.

    For gates that failed, are open or warn, for a scenario without any, and for what no verdict
    speaks of: messages that no attack reads, leaks that no gate limits. Figures of a baseline that
    did not rise are one notice, where some warn.
    """
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    steady = [v for v in summary.gates if is_steady(v)]
    if warned := dict.fromkeys(w for v in steady for w in v.warnings):
        title = _entitle(PASS, [Rule.WITHIN, *warned])
        yield f"::notice {title}::{escape_annotation(describe_steady(summary.gates))}"
    for v in (v for v in summary.gates if not is_steady(v)):
        if command := _COMMAND.get(v.verdict, "notice" if v.warning else ""):
            where = _entitle(v.verdict, [v.rule, *v.warnings] if v.rule else ())
            where += _find_line(v, summary)
            text = f"{escape_annotation(format_title(v))}. {escape_annotation(v.reason)}"
            yield f"::{command} {where}::{text}"
    found, said = format_headline(summary)
    if found in (NO_GATE, NO_RISE):
        command = "warning" if found == NO_GATE else "notice"
        yield f"::{command} title=vflsec {found}::{escape_annotation(said)}"
    for said in find_older(summary):
        yield f"::notice title=vflsec::{escape_annotation(said)}"
    for said in [*list_unread(summary), *describe_unjudged(summary)]:
        yield f"::notice title=vflsec::No verdict speaks of this. {escape_annotation(said)}"


def _entitle(verdict: str, codes: Iterable[str]) -> str:
    """The title of an annotation: a verdict with its codes."""
    said = escape_annotation(" ".join(codes), field=True)
    return f"title=vflsec {verdict}{f' ({said})' if said else ''}"


def _find_line(v: Verdict, summary: Summary) -> str:
    """The gate's line in the scenario; '' where the file is not in the checkout."""
    file = clean(summary.scenario_file)
    if not file or Path(file).is_absolute():
        return ""
    return f",file={escape_annotation(file, field=True)},line={int(v.gate.line or 1)}"
