"""Every report of an audit, written beside its results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from vflsec.runtime.atomic_files import json_text, write_atomic


def write_reports(folder: Path, summary: Mapping[str, object]) -> None:
    """Write the HTML reports, ``summary.md``, ``junit.xml`` and ``results.sarif``.

    Args:
        folder: where; it must exist.
        summary: of :func:`vflsec.report.exports.make_summary`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from vflsec.report.build import build_report
    from vflsec.report.html import render_page, render_statement
    from vflsec.report.junit import junit_xml
    from vflsec.report.markdown import render_markdown
    from vflsec.report.sarif import build_sarif
    from vflsec.report.summary import read_summary
    from vflsec.report.tree import View

    found = read_summary(summary)
    report = build_report(found, View.PAGE, View.STATEMENT, View.SUMMARY)
    texts = {
        "report.html": render_page(report),
        "statement.html": render_statement(report),
        "summary.md": render_markdown(report),
        "junit.xml": junit_xml(found),
        "results.sarif": json_text(build_sarif(found)),
    }
    for name, text in texts.items():
        write_atomic(folder / name, partial(Path.write_bytes, data=text.encode("utf-8")))
