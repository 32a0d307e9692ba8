"""The report of an audit: every section built once, and who is shown which, in which order.

A new section is a function that returns one, its entry in :data:`_SECTIONS`, and its key in the
outlines of those who shall see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vflsec.report import advice, first_screen
from vflsec.report.cost_tables import build_claims, build_cost
from vflsec.report.coverage import build_coverage, gaps
from vflsec.report.curve import build_curves
from vflsec.report.figure_blocks import build_first_figures
from vflsec.report.leakage_tables import build_leakage, build_unmeasured, find_unmeasured
from vflsec.report.provenance import build_ending, build_record, build_visibility
from vflsec.report.sanitize import clean_tree
from vflsec.report.statement import build_signatures, build_systems, paragraph
from vflsec.report.summary import Summary
from vflsec.report.tables import build_tables
from vflsec.report.threat_model import build_placing, build_threats
from vflsec.report.tree import Block, Bullets, Paragraph, Report, Section, Steps, Tone, View
from vflsec.report.ungated_leaks import beyond, find_tone
from vflsec.report.verdicts import beside_verdicts, bounds, build_gates, headline, judged

Build = Callable[[Summary], Section]

_PAGE = frozenset({View.PAGE})

OUTLINES: dict[View, tuple[tuple[str, str], ...]] = {
    View.PAGE: (
        ("verdict", ""), ("steps", "Recommended next steps"), ("findings", ""), ("gates", ""),
        ("coverage", ""), ("tables", ""), ("threats", ""), ("leakage", ""), ("visible", ""),
        ("cost", ""), ("unmeasured", ""), ("record", ""), ("placing", ""),
    ),
    View.STATEMENT: (
        ("paragraph", ""), ("systems", "1. System"), ("tables", "2. Tables"),
        ("threats", "3. Adversaries and what they were granted"),
        ("gates", "4. Limits and verdicts"), ("summed", "5. Findings"), ("claims", "6. Claims"),
        ("coverage", "7. Coverage"), ("record", "8. Record"), ("signatures", "9. Signatures"),
    ),
    View.SUMMARY: (
        ("scope", ""), ("answers", ""), ("cheapest", ""), ("gaps", ""), ("steps", ""),
        ("beyond", ""), ("gates", ""), ("leakage", ""), ("findings", ""),
        ("visible", "What encryption hides, and what not"), ("tables", ""), ("end", ""),
    ),
    View.TERMINAL: (
        ("curves", ""), ("answers", ""), ("gates", ""),
        ("visible", "What encryption hides, and what not"), ("bounds", ""), ("cheapest", ""),
        ("gaps", ""), ("steps", ""), ("end", ""),
    ),
    View.WHOLE: (
        ("leakage", ""), ("curves", ""), ("answers", ""), ("gates", ""),
        ("visible", "What encryption hides, and what not"), ("bounds", ""), ("findings", ""),
        ("cheapest", ""), ("beyond", ""), ("gaps", ""), ("steps", ""), ("end", ""),
    ),
    View.NOTEBOOK: (
        ("scope", ""), ("answers", ""), ("cheapest", ""), ("gaps", ""), ("gates", ""),
        ("beyond", ""), ("findings", ""), ("notes", ""), ("leakage", ""),
    ),
}  # fmt: skip
"""Of each view the keys of its sections in order, with a title of its own where it has one."""


def build_report(summary: Summary, *views: View) -> Report:
    """The report of an audit, see :mod:`vflsec.report.tree`.

    Args:
        summary: of :func:`vflsec.report.summary.read_summary`.
        views: who is to see it; everybody if none is named.
    """
    outlines = {view: OUTLINES[view] for view in views or View}
    keys = dict.fromkeys(key for outline in outlines.values() for key, _ in outline)
    made = {key: _SECTIONS[key](summary) for key in keys}
    verdict, how = headline(summary)
    report: Report = clean_tree(
        Report(
            summary.name, verdict, how, first_screen.scope(summary), summary.versions["vflsec"],
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
    more = advice.command(summary, "report")
    return build_report(summary, View.WHOLE if whole or not more else View.TERMINAL)


def _entitle(section: Section, title: str) -> Section:
    return replace(section, title=title) if title else section


def _list(title: str, items: Sequence[str], key: str, tone: Tone = Tone.PLAIN) -> Section:
    return Section(title, (Bullets(tuple(items)),) if items else (), key=key, tone=tone)


def _build_steps(summary: Summary) -> Section:
    found = tuple(advice.next_steps(summary))
    return Section("Next", (Steps(found),) if found else (), key="steps")


def _build_findings(summary: Summary) -> Section:
    """What was found beside the verdicts, which the gates say."""
    found = tuple(beside_verdicts(summary))
    blocks = (Paragraph(first_screen.each(summary), Tone.SOFT), Bullets(found, most=12))
    return Section("Findings", blocks if found else (), key="findings")


def _build_verdict(summary: Summary) -> Section:
    """The first screen of the page."""
    answers, *rest = (
        _SECTIONS[key](summary) for key in ("answers", "limits", "cheapest", "gaps", "beyond")
    )
    scope = Paragraph(first_screen.scope(summary), Tone.LEAD)
    return Section("", (scope, answers, *build_first_figures(summary), *rest), key="verdict")


def _build_answers(summary: Summary) -> Section:
    said = Bullets(tuple(first_screen.answers(summary)))
    curves = build_curves(summary, View.PAGE, View.SUMMARY)
    return Section("Does it leak, how much, to whom?", (said, *curves), key="answers")


def _build_limits(summary: Summary) -> Section:
    lines = (*judged(summary), *filter(None, [first_screen.answered(summary)]))
    return Section("Do the limits hold?", (Bullets(lines),) if lines else (), key="limits")


def _build_beyond(summary: Summary) -> Section:
    title = "Not judged by any gate, and leaking (advantage over the strongest control)"
    return _list(title, beyond(summary), "beyond")


def _build_summed(summary: Summary) -> Section:
    """What leaks and what it costs to stop, as the page to sign has it."""
    said = (*first_screen.answers(summary), *first_screen.cheapest(summary))
    corrected = Paragraph(first_screen.CORRECTED, Tone.SOFT)
    curves = build_curves(summary, View.STATEMENT)
    return Section("Findings", (corrected, Bullets(said), *curves), key="findings")


def _build_leakage(summary: Summary) -> Section:
    found, claims = build_leakage(summary), build_claims(summary)
    blocks = found or (Paragraph("Nothing was measured.", views=_PAGE),)
    more = (claims,) if claims else ()
    return Section("Leakage and utility", (*blocks, *more), key="leakage", nav="Leakage")


def _build_claims(summary: Summary) -> Section:
    none = (
        "No defense claims a guarantee. Noise without an accountant is noise, not differential "
        "privacy."
    )
    return Section("Claims", (build_claims(summary) or Paragraph(none),), key="claims")


def _build_unmeasured(summary: Summary) -> Section:
    """What gave no figure, on every data set, and notes on the plan."""
    rows = []
    for name in dict.fromkeys(p.dataset for p in summary.points):
        points = [p for p in summary.points if p.dataset == name]
        rows += [(name, *of) for of in find_unmeasured(points)]
    blocks: list[Block] = [Paragraph("Every attack of the scenario gave a figure.")]
    if rows:
        blocks = [Paragraph("What could not be measured is not the same as safe."),
                  build_unmeasured(rows, "Data")]  # fmt: skip
    blocks.append(_build_notes(summary))
    return Section("What was not observable", tuple(blocks), key="unseen", nav="Not observable")


def _build_notes(summary: Summary) -> Section:
    return _list("Notes on the data and the plan", summary.notes, "notes")


def _untitled(key: str, build: Callable[[Summary], Block | tuple[Block, ...]]) -> Build:
    """What builds a section of one or more blocks without a title."""

    def make(summary: Summary) -> Section:
        made = build(summary)
        return Section("", made if isinstance(made, tuple) else (made,), key=key)

    return make


_SECTIONS: dict[str, Build] = {
    "verdict": _build_verdict,
    "paragraph": _untitled("verdict", lambda s: Paragraph(paragraph(s))),
    "scope": _untitled("scope", lambda s: Paragraph(first_screen.scope(s))),
    "answers": _build_answers,
    "limits": _build_limits,
    "cheapest": lambda s: _list("What does it cost to stop?", first_screen.cheapest(s), "cheapest"),
    "gaps": lambda s: _list("What was not tested", gaps(s), "gaps", Tone.WARNING),
    "beyond": _build_beyond,
    "curves": _untitled("curves", lambda s: build_curves(s, View.TERMINAL, View.WHOLE)),
    "steps": _build_steps,
    "findings": _build_findings,
    "gates": build_gates,
    "bounds": _untitled("bounds", lambda s: Paragraph(bounds(s), Tone.SOFT)),
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
    "systems": build_systems,
    "summed": _build_summed,
    "claims": _build_claims,
    "signatures": lambda s: build_signatures(),
    "end": build_ending,
}
"""What builds each section, by key."""
