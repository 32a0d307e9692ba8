"""What a GitHub job shows: the step summary and annotations at the gates' lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vflsec.errors import ConfigError
from vflsec.report.build import build_report
from vflsec.report.coverage import find_older, list_unread
from vflsec.report.markdown import render_markdown
from vflsec.report.sanitize import clean, escape_annotation
from vflsec.report.summary import Summary
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
    told = [v for v in summary.gates if not is_steady(v)]
    if any(v.warning for v in summary.gates if is_steady(v)):
        yield f"::notice title=vflsec::{escape_annotation(describe_steady(summary.gates))}"
    for v in told:
        command = _COMMAND.get(v.verdict, "notice" if v.warning else "")
        if command:
            codes = escape_annotation(" ".join([v.rule, *v.warnings]), field=True)
            codes = f" ({codes})" if v.rule else ""
            where = f"title=vflsec {v.verdict}{codes}"
            file = clean(summary.scenario_file)
            if file and not Path(file).is_absolute():  # an absolute one is not in the checkout
                where += f",file={escape_annotation(file, field=True)},line={int(v.line or 1)}"
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
