"""What a report says of the run itself: what was visible, the record, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.core.visibility import HEADS, Line, cells
from vflsec.report import advice, first_screen
from vflsec.report.coverage import older
from vflsec.report.numbers import format_short
from vflsec.report.tree import (
    Block,
    Bullets,
    Column,
    Fact,
    Facts,
    Folded,
    Kind,
    Paragraph,
    Section,
    Table,
    Tone,
    Verbatim,
    View,
)
from vflsec.report.verdicts import unfinished

__all__ = ["build_ending", "build_record", "build_visibility", "build_visible_table"]

Summary = Mapping[str, Any]

_PAGE = frozenset({View.PAGE})
_SHORT = frozenset({View.PAGE, View.SUMMARY})
_LISTED = frozenset({View.SUMMARY, View.TERMINAL, View.WHOLE})
_STATEMENT = frozenset({View.STATEMENT})
_TERMINAL = frozenset({View.TERMINAL})
_PRINTED = frozenset({View.TERMINAL, View.WHOLE})


def build_visibility(summary: Summary) -> Section:
    """What encryption hides and leaves, and who holds which message."""
    entries = summary.get("visibility", [])
    if not entries:
        return Section("What stays visible", (), key="visible")
    said = tuple(text for e in entries for _, text in e["sentences"])
    intro = Paragraph(
        "What encryption hides and what not, in a sentence for each data set, and who holds which "
        "message. An attack whose inputs nobody sees is not observable, which is not the same as "
        "safe.", views=_PAGE,
    )  # fmt: skip
    listed = (Bullets(said, views=_LISTED),) if said else ()
    protocols = (_build_protocol(e) for e in entries)
    return Section(
        "What stays visible", (intro, *listed, *protocols), key="visible", nav="What stays visible"
    )


def _build_protocol(e: Mapping[str, Any]) -> Section:
    said = tuple(Paragraph(text, views=_PAGE) for _, text in e["sentences"])
    blocks: list[Block] = [*said, build_visible_table(e)]
    if e.get("measured"):
        heads = {"dataset": "Data", "attack": "Attack", "adversary": "By", "metric": "Metric",
                 "value": "Measured", "control": "Control", "unencrypted": "Unencrypted",
                 "change": "Change"}  # fmt: skip
        kinds = {"attack": Kind.NAME} | dict.fromkeys([*heads][4:], Kind.NUMBER)
        blocks.append(
            Table(
                f"What attacks measured under {e['defense']}, beside the same attack unencrypted",
                tuple(Column(head, kinds.get(k, Kind.TEXT)) for k, head in heads.items()),
                tuple(
                    tuple(format_short(m, k) if kinds.get(k) is Kind.NUMBER else m[k]
                          for k in heads)
                    for m in e["measured"]
                ),
                views=_PAGE,
            )
        )  # fmt: skip
    if e.get("unseen"):
        heads_ = (Column("Attack", Kind.NAME), Column("By"), Column("State"),
                  Column("Why", Kind.PROSE))  # fmt: skip
        rows = tuple(map(tuple, e["unseen"]))
        title = f"Attacks that could not be made under {e['defense']}"
        blocks.append(Table(title, heads_, rows, views=_PAGE))
    return Section(e["defense"], tuple(blocks), views=_SHORT)


def build_visible_table(e: Mapping[str, Any]) -> Table:
    """Who holds what under one protocol."""
    return Table(
        f"Who holds what under {e['defense']}",
        tuple(Column(h.capitalize(), Kind.TEXT if i else Kind.NAME) for i, h in enumerate(HEADS)),
        tuple(cells(Line(**line)) for line in e["lines"]),
    )  # fmt: skip


def build_record(summary: Summary) -> Section:
    """What was audited, with what, when and by whom."""
    versions = ", ".join(f"{k} {v}" for k, v in summary["versions"].items())
    before = summary.get("made_before")
    attacker = summary.get("attacker") or {"name": "default"}
    searched = ""
    if attacker.get("choices"):
        seeds = ", ".join(map(str, attacker["seeds"]))
        searched = (
            f", settings from worlds of the seeds {seeds} ({attacker['trainings']} trainings, "
            f"{attacker['seconds']:.0f} s)"
        )
    who, when = summary.get("who", ""), summary.get("when", "")
    seeds_of = {n: of["seeds"] for n, of in summary["parties"].items() if of.get("seeds")}
    level = f"{100 * summary['confidence']:g}"
    file = summary.get("scenario_file") or summary["name"]
    facts = (
        Fact("Scenario", f"{file}, hash", summary["scenario_hash"]),
        *(Fact(f"Data: {name}", "hash", code) for name, code in summary["data"].items()),
        *(Fact(f"Seeds on {n}", ", ".join(map(str, of))) for n, of in seeds_of.items()),
        Fact("Versions", versions + (f". Kept from before: {before}" if before else "")),
        Fact("Device", summary["device"]),
        Fact("Attacker", attacker["name"] + searched),
        Fact("When", f"{when} UTC" if when else "not recorded"),
        Fact("Trainings", first_screen.work(summary)),
        Fact("Confidence", f"{level} %, over seeds, never sample counts multiplied by seeds"),
    )
    lines = tuple(summary.get("scenario", "").splitlines())
    resolved = (Folded("The resolved scenario", (Verbatim(lines),), views=_PAGE),)
    return Section(
        "Record",
        (
            Facts((Fact("Run by", who or "_" * 24),), views=_STATEMENT),
            Facts((Fact("Run by", who or "not recorded (VFLSEC_AUDITOR names it)"),), views=_PAGE),
            Facts(facts),
            *(resolved if lines else ()),
        ),
        key="record", nav="Record",
    )  # fmt: skip


def build_ending(summary: Summary) -> Section:
    """What stands last: which attacker it was, what it took, and where to read on."""
    more = advice.command(summary, "report")
    files = (
        f"{first_screen.work(summary)}; vflsec {summary['versions']['vflsec']}, scenario "
        f"{summary['scenario_hash']}. Details: report.html; to sign: statement.html."
    )
    halted = (Paragraph(unfinished(summary), Tone.WARNING, views=_PRINTED),)
    listed = frozenset({View.SUMMARY})
    return Section(
        "",
        (
            *(halted if not summary.get("complete", True) else ()),
            Paragraph(first_screen.attacker(summary), views=_LISTED),
            *(Paragraph(text, views=listed) for text in older(summary)),
            Paragraph(files, views=listed),
            Paragraph(f"{first_screen.work(summary)}.", views=_PRINTED),
            Paragraph("Every attack beside its controls, and the findings:", command=more,
                      views=_TERMINAL),
        ),
        key="end",
    )  # fmt: skip
