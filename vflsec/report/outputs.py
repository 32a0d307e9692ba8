"""Every report of an audit, written beside its results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vflsec.runtime.atomic_files import json_text, write_atomic

__all__ = ["prepare", "write_reports"]


def prepare() -> None:
    """Import what :func:`write_reports` needs, figures included."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401

    import vflsec.report.html
    import vflsec.report.junit
    import vflsec.report.markdown
    import vflsec.report.sarif
    import vflsec.report.statement  # noqa: F401


def write_reports(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the HTML reports, ``summary.md``, ``junit.xml`` and ``results.sarif``.

    Args:
        folder: where; it must exist.
        summary: of :func:`vflsec.report.exports.summary_of`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from vflsec.report.html import html
    from vflsec.report.junit import junit_xml
    from vflsec.report.markdown import markdown_summary
    from vflsec.report.sarif import sarif
    from vflsec.report.statement import statement

    texts = {
        "report.html": html(summary),
        "statement.html": statement(summary),
        "summary.md": markdown_summary(summary),
        "junit.xml": junit_xml(summary),
        "results.sarif": json_text(sarif(summary)),
    }
    for name, text in texts.items():
        write_atomic(folder / name, partial(Path.write_bytes, data=text.encode("utf-8")))
