"""The report of an audit: every section built once, and who is shown which, in which order.

A new section is a function that returns one, an entry of :func:`_build_sections`, and its key in
the outlines of those who shall see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vflsec.report import advice, first_screen
from vflsec.report.cost_tables import build_claims, build_cost
from vflsec.report.coverage import build_coverage, gaps
from vflsec.report.curve import build_curves
from vflsec.report.leakage_tables import build_leakage, build_unmeasured, find_unmeasured
from vflsec.report.provenance import build_ending, build_record, build_visibility
from vflsec.report.sanitize import clean_tree
from vflsec.report.statement import build_signatures, build_systems, paragraph
from vflsec.report.tables import build_tables
from vflsec.report.threat_model import build_placing, build_threats
from vflsec.report.tree import (
    Block,
    Bullets,
    Paragraph,
    Report,
    Section,
    Step,
    Steps,
    Tone,
    View,
)
from vflsec.report.ungated_leaks import beyond
from vflsec.report.verdicts import beside_verdicts, build_gates, headline, judged

__all__ = ["build_report"]

Summary = Mapping[str, Any]

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


def build_report(summary: Summary) -> Report:
    """The report of an audit, see :mod:`vflsec.report.tree`.

    Args:
        summary: of :func:`vflsec.report.exports.summary_of`.
    """
    verdict, how = headline(summary)
    sections = _build_sections(summary)
    views = {
        view: tuple(_entitle(sections[key], title) for key, title in outline)
        for view, outline in OUTLINES.items()
    }
    return clean_tree(
        Report(
            summary["name"], verdict, how, first_screen.scope(summary),
            summary["versions"]["vflsec"], advice.command(summary, "report"), views,
        )
    )  # fmt: skip


def _entitle(section: Section, title: str) -> Section:
    return replace(section, title=title) if title else section


def _build_sections(summary: Summary) -> dict[str, Section]:
    """Every section of every view, by key."""
    answers = Section(
        "Does it leak, how much, to whom?",
        (
            Bullets(tuple(first_screen.answers(summary))),
            *build_curves(summary, View.PAGE, View.SUMMARY),
        ),
        key="answers",
    )
    limits = Section(
        "Do the limits hold?",
        (Paragraph(first_screen.scope(summary), Tone.LEAD), Bullets(tuple(judged(summary)))),
        key="limits",
    )
    cheapest = _list("What does it cost to stop?", first_screen.cheapest(summary), "cheapest")
    missing = _list("No attack exists, or was not run", gaps(summary), "gaps", Tone.WARNING)
    title = "Not judged by any gate, and leaking (advantage over the strongest control)"
    ungated = _list(title, beyond(summary), "beyond")
    bounds = Paragraph(first_screen.bounds(summary), Tone.SOFT)
    claims = build_claims(summary)
    return {
        "verdict": Section("", (answers, limits, cheapest, missing, ungated), key="verdict"),
        "paragraph": Section("", (Paragraph(paragraph(summary)),), key="verdict"),
        "scope": Section("", (Paragraph(first_screen.scope(summary)),), key="scope"),
        "answers": answers, "limits": limits, "cheapest": cheapest, "gaps": missing,
        "beyond": ungated,
        "curves": Section("", build_curves(summary, View.TERMINAL, View.WHOLE), key="curves"),
        "steps": _build_steps(summary),
        "findings": _build_findings(summary),
        "gates": build_gates(summary, bounds),
        "bounds": Section("", (bounds,), key="bounds"),
        "coverage": build_coverage(summary),
        "tables": build_tables(summary),
        "threats": build_threats(summary),
        "leakage": _build_leakage(summary, claims),
        "visible": build_visibility(summary),
        "cost": Section("Cost and messages", build_cost(summary), key="cost", nav="Cost"),
        "unmeasured": _build_unmeasured(summary),
        "notes": _list("Notes on the data and the plan", summary["notes"], "notes"),
        "record": build_record(summary),
        "placing": build_placing(summary),
        "systems": build_systems(summary),
        "summed": Section(
            "Findings",
            (Paragraph(first_screen.CORRECTED, Tone.SOFT),
             Bullets((*first_screen.answers(summary), *first_screen.cheapest(summary))),
             *build_curves(summary, View.STATEMENT)),
            key="findings",
        ),
        "claims": _build_claims(claims),
        "signatures": build_signatures(),
        "end": build_ending(summary),
    }  # fmt: skip


def _list(title: str, items: list[str], key: str, tone: Tone = Tone.PLAIN) -> Section:
    return Section(title, (Bullets(tuple(items)),) if items else (), key=key, tone=tone)


def _build_steps(summary: Summary) -> Section:
    found = tuple(Step(s.text, s.command) for s in advice.next_steps(summary))
    return Section("Next", (Steps(found),) if found else (), key="steps")


def _build_findings(summary: Summary) -> Section:
    """What was found beside the verdicts, which the gates say."""
    found = tuple(beside_verdicts(summary))
    blocks = (Paragraph(first_screen.each(summary), Tone.SOFT), Bullets(found, most=12))
    return Section("Findings", blocks if found else (), key="findings")


def _build_leakage(summary: Summary, claims: Block | None) -> Section:
    found = build_leakage(summary)
    blocks = found or (Paragraph("Nothing was measured.", views=_PAGE),)
    more = (claims,) if claims else ()
    return Section("Leakage and utility", (*blocks, *more), key="leakage", nav="Leakage")


def _build_claims(found: Block | None) -> Section:
    none = Paragraph(
        "No defense claims a guarantee. Noise without an accountant is noise, not differential "
        "privacy."
    )
    return Section("Claims", (found or none,), key="claims")


def _build_unmeasured(summary: Summary) -> Section:
    """What gave no figure, on every data set, and notes on the plan."""
    rows = []
    for name in dict.fromkeys(p["dataset"] for p in summary["points"]):
        points = [p for p in summary["points"] if p["dataset"] == name]
        rows += [(name, *of) for of in find_unmeasured(points)]
    blocks: list[Block] = [Paragraph("Every attack of the scenario gave a figure.")]
    if rows:
        blocks = [Paragraph("What could not be measured is not the same as safe."),
                  build_unmeasured(rows, "Data")]  # fmt: skip
    blocks.append(_list("Notes on the data and the plan", summary["notes"], ""))
    return Section("What was not observable", tuple(blocks), key="unseen", nav="Not observable")
