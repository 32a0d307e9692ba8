"""What a report says of the run itself: what was visible, the record, and how it ends."""

from __future__ import annotations

from vflsec.audit.exposure import Outcome, Protocol
from vflsec.audit.summary import Summary
from vflsec.core.visibility import HEADS, format_cells
from vflsec.errors import format_count
from vflsec.report import advice, first_screen, tree
from vflsec.report.coverage import find_older
from vflsec.report.numbers import format_short
from vflsec.report.sanitize import scenario_name
from vflsec.report.tree import Fact, Paragraph, Section, Table, Tone, View, make_columns
from vflsec.report.verdicts import find_unfinished

_SHORT = View.PAGE | View.SUMMARY
_LISTED = View.SUMMARY | View.TERMINAL | View.WHOLE
_PRINTED = View.TERMINAL | View.WHOLE


def build_visibility(summary: Summary) -> Section:
    """What encryption hides and leaves, and who holds which message."""
    title, entries = "What stays visible", summary.visibility
    said = tree.Bullets(tuple(text for e in entries for _, text in e.sentences), views=_LISTED)
    return Section(title, (said, *map(_build_protocol, entries)), nav=title)


def _build_protocol(e: Outcome) -> Section:
    said = (Paragraph(text, views=View.PAGE) for _, text in e.sentences)
    figures = ("Measured", "Control", "Unencrypted", "Change")
    heads = make_columns("Data", "Attack", "By", "Metric", *figures, name="Attack",
                         numbers=figures)  # fmt: skip
    rows = tuple(
        (m.dataset, m.attack, m.adversary, m.metric,
         format_short(m.value, m.value_low, m.value_high), format_short(m.control),
         format_short(m.unencrypted), format_short(m.change, m.change_low, m.change_high))
        for m in e.measured
    )  # fmt: skip
    measured = Table(f"Attacks under {e.defense}", heads, rows, views=View.PAGE)
    heads = make_columns("Attack", "By", "State", "Why", name="Attack", prose=("Why",))
    unseen = Table(f"Attacks not possible under {e.defense}", heads, e.unseen, views=View.PAGE)
    return Section(e.defense, (*said, build_visible_table(e), measured, unseen), views=_SHORT)


def build_visible_table(e: Protocol) -> Table:
    """Who holds what under one protocol."""
    heads = [h.capitalize() for h in HEADS]
    columns = make_columns(*heads, name=heads[0])
    return Table(f"Who holds what under {e.defense}", columns, tuple(map(format_cells, e.lines)))


def build_record(summary: Summary) -> Section:
    """What was audited, with what, when and by whom."""
    versions = ", ".join(f"{k} {v}" for k, v in summary.versions.items())
    before = f". Kept from before: {summary.made_before}" if summary.made_before else ""
    file = scenario_name(summary.scenario_file or summary.name)
    level = f"{100 * summary.confidence:g} %"
    facts = (
        Fact("Run by", summary.who or "not recorded (VFLSEC_AUDITOR)"),
        Fact("Scenario", f"{file}, hash", summary.scenario_hash),
        *(Fact(f"Data: {name}", "hash", code) for name, code in summary.data.items()),
        *(Fact(f"Seeds on {name}", _join(of.seeds))
          for name, of in summary.parties.items() if of.seeds),
        Fact("Versions", versions + before),
        Fact("Device", summary.device),
        Fact("Attacker", summary.attacker.name + _searched(summary)),
        Fact("When", f"{summary.when} UTC" if summary.when else "not recorded"),
        Fact("Trainings", first_screen.describe_work(summary)),
        Fact("Confidence", f"{level}, over seeds"),
    )  # fmt: skip
    lines = tree.Verbatim(tuple(summary.scenario.splitlines()))
    resolved = tree.Folded("The resolved scenario", (lines,), views=View.PAGE)
    return Section("Record", (tree.Facts(facts), resolved), nav="Record")


def _join(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _searched(summary: Summary) -> str:
    """On which worlds settings of a strong attacker were tried, where several were."""
    found = summary.attacker
    if not found.choices:
        return ""
    return (
        f", worlds of seeds {_join(found.seeds)} ({format_count(found.trainings, 'training')}, "
        f"{found.seconds:.0f} s)"
    )


def build_ending(summary: Summary) -> Section:
    """What stands last: which attacker it was, what it took, and where to read on."""
    more = advice.format_command(summary, "report")
    files = (
        f"{first_screen.describe_work(summary)}; vflsec {summary.versions['vflsec']}, scenario "
        f"{summary.scenario_hash}. Details: report.html; to sign: statement.html."
    )
    halted = (Paragraph(find_unfinished(summary), Tone.WARNING, views=_PRINTED),)
    return Section(
        "",
        (
            *(halted if not summary.complete else ()),
            Paragraph(first_screen.describe_attacker(summary), views=_LISTED),
            *(Paragraph(text, views=View.SUMMARY) for text in find_older(summary)),
            Paragraph(files, views=View.SUMMARY),
            Paragraph(f"{first_screen.describe_work(summary)}.", views=_PRINTED),
            Paragraph("Every attack and finding:", command=more, views=View.TERMINAL),
        ),
    )  # fmt: skip
