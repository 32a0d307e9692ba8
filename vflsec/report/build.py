"""The report of an audit: every section built once, and who is shown which, in which order.

A new section is a function that returns one, its entry in :data:`_SECTIONS`, and its key in the
outlines of those who shall see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from vflsec.audit.summary import Summary
from vflsec.report import advice, first_screen, statement, tree
from vflsec.report.cost_tables import build_claims, build_cost
from vflsec.report.coverage import build_coverage, list_gaps
from vflsec.report.curve import build_curve
from vflsec.report.figure_blocks import build_first_figures
from vflsec.report.leakage_tables import build_leakage, build_unmeasured, find_unmeasured
from vflsec.report.provenance import build_ending, build_record, build_visibility
from vflsec.report.sanitize import clean_tree
from vflsec.report.tables import build_tables
from vflsec.report.threat_model import build_placing, build_threats
from vflsec.report.tree import Block, Paragraph, Report, Section, Tone, View
from vflsec.report.ungated_leaks import describe_ungated, find_tone
from vflsec.report.verdicts import build_gates, describe_bounds, format_headline, list_findings
from vflsec.runtime.grouping import group_by

Build = Callable[[Summary], Section]


_SIGNED = ("tested", "receivers", "price", "left", "conditions", "together")
_APPENDICES = {
    "system": "", "tables": "", "threats": "Adversaries", "gates": "Limits and verdicts",
    "answers": "Findings", "claims": "", "coverage": "", "record": "", "placing": "",
}  # fmt: skip
"""Sections of the statement; of its appendix some with a title of their own."""
OUTLINES: dict[View, tuple[str, ...]] = {
    View.PAGE: (
        "verdict", "steps", "gates", "beyond", "findings", "coverage", "system", "tables",
        "threats", "leakage", "visible", "cost", "unseen", "record", "placing",
    ),
    View.STATEMENT: (*_SIGNED, *_APPENDICES),
    View.SUMMARY: (
        "scope", "answers", "steps", "gates", "gaps", "beyond", "leakage", "findings", "visible",
        "tables", "end",
    ),
    View.TERMINAL: ("answers", "gates", "visible", "bounds", "steps", "end"),
    View.WHOLE: (
        "leakage", "answers", "gates", "visible", "bounds", "gaps", "beyond", "findings", "steps",
        "end",
    ),
    View.NOTEBOOK: (
        "scope", "answers", "gates", "gaps", "beyond", "findings", "notes", "leakage",
    ),
}  # fmt: skip
"""Of each view the keys of its sections in order."""
_RETITLED = {
    "steps": (View.PAGE, "Recommended next steps"),
    "visible": (View.SUMMARY | View.TERMINAL | View.WHOLE, "What encryption hides"),
}
"""Sections with a title of their own in some views."""


def build_report(summary: Summary, *views: View) -> Report:
    """The report of an audit, see :mod:`vflsec.report.tree`.

    Args:
        summary: of :func:`vflsec.audit.summary.read_summary`.
        views: who is to see it; everybody if none is named.
    """
    outlines = {view: OUTLINES[view] for view in views or View}
    keys = dict.fromkeys(key for outline in outlines.values() for key in outline)
    made = {key: replace(_SECTIONS[key](summary), key=key) for key in keys}
    report: Report = clean_tree(
        Report(
            summary.name, format_headline(summary)[0], first_screen.describe_scope(summary),
            summary.versions["vflsec"],
            find_tone(summary),
            {
                view: tuple(_entitle(made[key], view) for key in outline)
                for view, outline in outlines.items()
            },
        )
    )  # fmt: skip
    return report


def build_printed(summary: Summary, *, whole: bool = False) -> Report:
    """The report for a terminal; with everything if `whole`, or if no command prints the rest."""
    more = advice.format_command(summary, "report")
    return build_report(summary, View.WHOLE if whole or not more else View.TERMINAL)


def _entitle(section: Section, view: View) -> Section:
    """The section with the title that it has in this view."""
    key, title = section.key, section.title
    views, other = _RETITLED.get(key, (View(0), ""))
    if view is View.STATEMENT and key in _SIGNED:
        other = f"{1 + _SIGNED.index(key)}. {title}"
    elif view is View.STATEMENT:
        other = f"Appendix {chr(65 + [*_APPENDICES].index(key))}. {_APPENDICES[key] or title}"
    elif view not in views:
        return section
    return replace(section, title=other)


def _list(title: str, items: Iterable[str], tone: Tone = Tone.PLAIN) -> Section:
    return Section(title, (tree.Bullets(tuple(items)),), tone=tone)


def _build_verdict(summary: Summary) -> Section:
    """The first screen of the page."""
    found, _ = format_headline(summary)
    condition = first_screen.describe_scope(summary).removeprefix(found)
    scope = Paragraph(condition, Tone.LEAD, strong=found)
    answers = replace(_build_answers(summary), key="answers")
    return Section("", (scope, answers, build_first_figures(summary)))


def _build_answers(summary: Summary) -> Section:
    """A few lines for each question, the same for every reader."""
    of = first_screen.build_answer(summary)
    every = of.pop("")
    made = [Section(name, (tree.Answers(said), *build_curve(summary, name)))
            for name, said in of.items()]  # fmt: skip
    return Section("", (*made, tree.Answers(every)))


def _build_leakage(summary: Summary) -> Section:
    blocks = build_leakage(summary) or (Paragraph("Nothing was measured.", views=View.PAGE),)
    every = (*blocks, *build_claims(summary))
    return Section("Leakage and utility", every, nav="Leakage")


def _build_claims(summary: Summary) -> Section:
    none = "No defense claims a guarantee."
    return Section("Claims", build_claims(summary) or (Paragraph(none),))


def _build_unmeasured(summary: Summary) -> Section:
    """What gave no figure, on every data set, and notes on the plan."""
    by_data = group_by(summary.points, lambda p: p.dataset)
    rows = [(name, *row) for name, of in by_data.items() for row in find_unmeasured(of)]
    made: Block = (build_unmeasured(rows, "Data") if rows
                   else Paragraph("Every attack gave a figure."))  # fmt: skip
    blocks = (made, _list("Notes", summary.notes))
    title = "Not observable"
    return Section(title, blocks, nav=title)


_SECTIONS: dict[str, Build] = {
    "verdict": _build_verdict,
    "scope": lambda s: Section("", (Paragraph(first_screen.describe_scope(s)),)),
    "answers": _build_answers,
    "gaps": lambda s: _list("Not tested", list_gaps(s), Tone.WARNING),
    "beyond": lambda s: _list("Leaks that no gate limits", describe_ungated(s)),
    "steps": lambda s: Section("Next", (tree.Steps(tuple(advice.next_steps(s))),)),
    "findings": lambda s: Section("Findings", (tree.Bullets((*list_findings(s),), most=12),)),
    "gates": build_gates,
    "bounds": lambda s: Section("", (Paragraph(describe_bounds(s), Tone.SOFT),)),
    "coverage": build_coverage,
    "tables": build_tables,
    "threats": build_threats,
    "leakage": _build_leakage,
    "visible": build_visibility,
    "cost": lambda s: Section("Cost and messages", build_cost(s), nav="Cost"),
    "unseen": _build_unmeasured,
    "notes": lambda s: _list("Notes", s.notes),
    "record": build_record,
    "placing": build_placing,
    "tested": statement.build_tested,
    "receivers": statement.build_receivers,
    "price": statement.build_price,
    "conditions": statement.build_conditions,
    "left": statement.build_left,
    "system": statement.build_systems,
    "claims": _build_claims,
    "together": lambda s: statement.build_signatures(),
    "end": build_ending,
}
"""What builds each section, by key."""
