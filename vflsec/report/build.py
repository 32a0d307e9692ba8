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


_ENCRYPTED = ("visible", "What encryption hides")
_SIGNED = ("tested", "receivers", "price", "left", "conditions", "signatures")
_APPENDICES = {
    "systems": "", "tables": "", "threats": "Adversaries", "gates": "Limits and verdicts",
    "answers": "Findings", "claims": "", "coverage": "", "record": "", "placing": "",
}  # fmt: skip
"""Sections of the statement; of its appendix some with a title of their own."""
OUTLINES: dict[View, tuple[tuple[str, str], ...]] = {
    View.PAGE: (
        ("verdict", ""), ("steps", "Recommended next steps"), ("gates", ""), ("beyond", ""),
        ("findings", ""), ("coverage", ""), ("systems", ""), ("tables", ""), ("threats", ""),
        ("leakage", ""), ("visible", ""), ("cost", ""), ("unmeasured", ""), ("record", ""),
        ("placing", ""),
    ),
    View.STATEMENT: (
        *((key, f"{i}. {{}}") for i, key in enumerate(_SIGNED, 1)),
        *((key, f"Appendix {chr(65 + i)}. {title or '{}'}")
          for i, (key, title) in enumerate(_APPENDICES.items())),
    ),
    View.SUMMARY: (
        ("scope", ""), ("answers", ""), ("steps", ""), ("gates", ""), ("gaps", ""),
        ("beyond", ""), ("leakage", ""), ("findings", ""), _ENCRYPTED, ("tables", ""), ("end", ""),
    ),
    View.TERMINAL: (
        ("answers", ""), ("gates", ""), _ENCRYPTED, ("bounds", ""), ("steps", ""), ("end", ""),
    ),
    View.WHOLE: (
        ("leakage", ""), ("answers", ""), ("gates", ""), _ENCRYPTED, ("bounds", ""),
        ("gaps", ""), ("beyond", ""), ("findings", ""), ("steps", ""), ("end", ""),
    ),
    View.NOTEBOOK: (
        ("scope", ""), ("answers", ""), ("gates", ""), ("gaps", ""), ("beyond", ""),
        ("findings", ""), ("notes", ""), ("leakage", ""),
    ),
}  # fmt: skip
"""Of each view the keys of its sections in order, with a title of its own where it has one; ``{}``
in it is the usual title."""


def build_report(summary: Summary, *views: View) -> Report:
    """The report of an audit, see :mod:`vflsec.report.tree`.

    Args:
        summary: of :func:`vflsec.audit.summary.read_summary`.
        views: who is to see it; everybody if none is named.
    """
    outlines = {view: OUTLINES[view] for view in views or View}
    keys = dict.fromkeys(key for outline in outlines.values() for key, _ in outline)
    made = {key: _SECTIONS[key](summary) for key in keys}
    report: Report = clean_tree(
        Report(
            summary.name, format_headline(summary)[0], first_screen.describe_scope(summary),
            summary.versions["vflsec"],
            find_tone(summary),
            {
                view: tuple(_entitle(made[key], title) for key, title in outline)
                for view, outline in outlines.items()
            },
        )
    )  # fmt: skip
    return report


def build_printed(summary: Summary, *, whole: bool = False) -> Report:
    """The report for a terminal; with everything if `whole`, or if no command prints the rest."""
    more = advice.format_command(summary, "report")
    return build_report(summary, View.WHOLE if whole or not more else View.TERMINAL)


def _entitle(section: Section, title: str) -> Section:
    return replace(section, title=title.format(section.title)) if title else section


def _list(title: str, items: Iterable[str], key: str, tone: Tone = Tone.PLAIN) -> Section:
    return Section(title, (tree.Bullets(tuple(items)),), key=key, tone=tone)


def _build_findings(summary: Summary) -> Section:
    shown = tree.Bullets(tuple(list_findings(summary)), most=12)
    return Section("Findings", (shown,), key="findings")


def _build_verdict(summary: Summary) -> Section:
    """The first screen of the page."""
    scope = Paragraph(first_screen.describe_scope(summary), Tone.LEAD)
    blocks = (scope, _build_answers(summary), build_first_figures(summary))
    return Section("", blocks, key="verdict")


def _build_answers(summary: Summary) -> Section:
    """A few lines for each question, the same for every reader."""
    of = first_screen.build_answer(summary)
    every = of.pop("")
    made = [Section(name, (tree.Answers(said), *build_curve(summary, name)))
            for name, said in of.items()]  # fmt: skip
    return Section("", (*made, tree.Answers(every)), key="answers")


def _build_leakage(summary: Summary) -> Section:
    blocks = build_leakage(summary) or (Paragraph("Nothing was measured.", views=View.PAGE),)
    every = (*blocks, *build_claims(summary))
    return Section("Leakage and utility", every, key="leakage", nav="Leakage")


def _build_claims(summary: Summary) -> Section:
    none = "No defense claims a guarantee."
    return Section("Claims", build_claims(summary) or (Paragraph(none),), key="claims")


def _build_unmeasured(summary: Summary) -> Section:
    """What gave no figure, on every data set, and notes on the plan."""
    by_data = group_by(summary.points, lambda p: p.dataset)
    rows = [(name, *row) for name, of in by_data.items() for row in find_unmeasured(of)]
    made: Block = (build_unmeasured(rows, "Data") if rows
                   else Paragraph("Every attack gave a figure."))  # fmt: skip
    blocks = (made, _build_notes(summary))
    title = "Not observable"
    return Section(title, blocks, key="unseen", nav=title)


def _build_notes(summary: Summary) -> Section:
    return _list("Notes", summary.notes, "notes")


def _untitled(key: str, build: Callable[[Summary], Block | tuple[Block, ...]]) -> Build:
    """What builds a section of one or more blocks without a title."""

    def make(summary: Summary) -> Section:
        made = build(summary)
        return Section("", made if isinstance(made, tuple) else (made,), key=key)

    return make


_SECTIONS: dict[str, Build] = {
    "verdict": _build_verdict,
    "scope": _untitled("scope", lambda s: Paragraph(first_screen.describe_scope(s))),
    "answers": _build_answers,
    "gaps": lambda s: _list("Not tested", list_gaps(s), "gaps", Tone.WARNING),
    "beyond": lambda s: _list("Leaks that no gate limits", describe_ungated(s), "beyond"),
    "steps": lambda s: Section("Next", (tree.Steps(tuple(advice.next_steps(s))),), key="steps"),
    "findings": _build_findings,
    "gates": build_gates,
    "bounds": _untitled("bounds", lambda s: Paragraph(describe_bounds(s), Tone.SOFT)),
    "coverage": build_coverage,
    "tables": build_tables,
    "threats": build_threats,
    "leakage": _build_leakage,
    "visible": build_visibility,
    "cost": lambda s: Section("Cost and messages", build_cost(s), key="cost", nav="Cost"),
    "unmeasured": _build_unmeasured,
    "notes": _build_notes,
    "record": build_record,
    "placing": build_placing,
    "tested": statement.build_tested,
    "receivers": statement.build_receivers,
    "price": statement.build_price,
    "conditions": statement.build_conditions,
    "left": statement.build_left,
    "systems": statement.build_systems,
    "claims": _build_claims,
    "signatures": lambda s: statement.build_signatures(),
    "end": build_ending,
}
"""What builds each section, by key."""
