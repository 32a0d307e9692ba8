"""The gallery of the documentation: a report and a statement of every approved first screen."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))

from first_screens import CASES  # noqa: E402

from vflsec.report.build import build_report  # noqa: E402
from vflsec.report.html import render_page, render_statement  # noqa: E402
from vflsec.report.tree import View  # noqa: E402

_ABOUT = """# Gallery

Every way a first screen can come out: as a terminal shows it, the first picture of its report, and
links to the report and the statement. The build makes them from figures that were written down:
nothing was trained for them.
"""


def _first_picture(page: str, name: str) -> str:
    """The first figure of a report, for a page of its own ids; "" if it has none."""
    found = re.search(r"<svg.*?</svg>", page, flags=re.DOTALL)
    if not found:
        return ""
    picture = re.sub(r"\bd(\d+f\d+-)", rf"{name}-\1", found[0])
    return f"<figure>{' '.join(picture.split())}</figure>"


def make_gallery() -> dict[str, str]:
    """Page, reports and statements by path below ``docs/``."""
    out, parts = {}, [_ABOUT]
    for case in CASES:
        name = case.__name__
        screen = (ROOT / "tests" / "report" / "screens" / f"{name}.txt").read_text(encoding="utf-8")
        report = build_report(case(), View.PAGE, View.STATEMENT)
        page = out[f"gallery/{name}.html"] = render_page(report)
        out[f"gallery/{name}_statement.html"] = render_statement(report)
        title = name.replace("_", " ").capitalize()
        links = (
            f'<a href="gallery/{name}.html">report</a>, <a href="gallery/{name}_statement.html">'
        )
        parts += [f"## {title} {{ #{name} }}", f"{links}statement</a>",
                  f"```text\n{screen.strip()}\n```", _first_picture(page, name)]  # fmt: skip
    return {"gallery.md": "\n\n".join(parts) + "\n", **out}
