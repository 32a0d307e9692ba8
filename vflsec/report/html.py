"""A report as HTML: no network, figures inside; as a page, to sign, or in a notebook.

The one script of a page sorts and filters its tables, and no other may run. The same report gives
the same bytes. Names that users gave are escaped by jinja2.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec.report.sanitize import clean
from vflsec.report.tree import TONES, Figure, Report, View

if TYPE_CHECKING:
    from jinja2 import Template

_INK = "#0a0b0c"  # stands for the page's own text colour
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "vflsec", "font.size": 10.0, "text.color": _INK,
    "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
    "legend.labelcolor": _INK, "grid.color": "#808080", "font.family": ["sans-serif"],
}  # fmt: skip


@cache
def _script() -> dict[str, Any]:
    """What sorts and filters tables, and by which hash a page allows it."""
    from markupsafe import Markup

    text = Path(__file__).with_name("tables.js.j2").read_text(encoding="utf-8")
    seal = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "allowed": f"sha256-{seal}"}


def render_page(report: Report, title: str = "Privacy audit") -> str:
    """The whole report as one file."""
    made = f"Made by vflsec {report.made_by}. This file loads nothing."
    return _render(
        report, View.PAGE, title=title, head=report.verdict, links=True, made=made,
        script=_script(),
    )  # fmt: skip


def render_statement(report: Report) -> str:
    """The page to sign as one file."""
    made = f"Made by vflsec {report.made_by} from summary.json. Details: report.html."
    title, head = "Statement of a privacy audit", f"Statement, {report.verdict}"
    return _render(
        report, View.STATEMENT, title=title, head=head, links=False, made=made, script=None
    )


def render_fragment(report: Report) -> str:
    """A part of a page, as a notebook shows it."""
    return _render(report, View.NOTEBOOK, whole=False)


def _render(report: Report, view: View, *, whole: bool = True, **how: Any) -> str:
    sections = report.seen_by(view)
    return _template().render(
        report=report, sections=sections, whole=whole, draw=draw, tones=TONES, **how
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return env.get_template("report.html.j2")


def draw(figure: Figure) -> Any:
    """A figure as markup to put inside a page, byte-stable; its prefix is put before every id."""
    import matplotlib as mpl
    from markupsafe import Markup
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs the page has and matplotlib has not; tight labels
        canvas = FigureCanvasSVG(figure.chart().figure)
        out = io.StringIO()
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.print_svg(out, metadata=none)  # draws once; savefig draws a second time for layout
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', _open, text, count=1)
    text = re.sub(r'\bid="', f'id="{figure.prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{figure.prefix}-", text)
    text = text.replace('xlink:href="#', f'href="#{figure.prefix}-').replace(_INK, "currentColor")
    return Markup("\n".join(clean(line).rstrip() for line in text.split("\n")))


def _open(match: re.Match[str]) -> str:
    width = match.group(1).split()[2]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{match.group(1)}" '
        f'style="width: {float(width) * 1.25:.0f}px" aria-hidden="true" focusable="false">'
    )
