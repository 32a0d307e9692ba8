"""What the page that a data-protection officer signs says beside the report's sections."""

from __future__ import annotations

from vflsec.audit.strongest_attack import format_secret
from vflsec.report import first_screen
from vflsec.report.coverage import State, families, messages
from vflsec.report.exposed_people import find_exposed
from vflsec.report.summary import Summary
from vflsec.report.threat_model import kind_of_label
from vflsec.report.tree import Fact, Facts, Paragraph, Section, Signatures, Tone
from vflsec.report.ungated_leaks import unjudged
from vflsec.report.verdicts import headline, place

_MEANS = {
    "PASS": "Every limit that was set holds for what was tried",
    "FAIL": "At least one limit that was set does not hold",
    "INCONCLUSIVE": "No limit is shown to be broken, and not all are shown to hold",
    "NO GATE": "No limit was set, so nothing was judged",
    "UNFINISHED": "Not all that was planned was measured, so nothing was judged",
}


def paragraph(summary: Summary) -> str:
    """The verdict in plain words; the figures stand under it."""
    found, _ = headline(summary)
    data = ", ".join(summary.parties) or "no data"
    when = f" on {summary.when[:10]}" if summary.when else ""
    seeds = max((len(p.seeds) for p in summary.parties.values()), default=0)
    parts = [
        f"The training described below ({data}) was audited{when}, {seeds} "
        f"time{'s' if seeds != 1 else ''} "
        + ("with different random splits." if summary.scenario else "from recordings of it."),
        *_learns(summary),
        f"{_MEANS[found]}: {first_screen.scope(summary)}",
        *filter(None, [first_screen.answered(summary)]),
        *(unjudged(summary) if found == "FAIL" else ()),  # else it is part of the scope
    ]
    every, crossed = families(summary), messages(summary)
    left = sum(not f.tried for f in every)
    unread = sum(m.state != State.TESTED for m in crossed)
    parts.append(
        f"Of {len(every)} published families of attacks {left} gave no figure here, and "
        f"{unread} of {len(crossed)} kinds of messages were read by no attack that ran. What was "
        "not tried is not known to be safe."
    )
    return " ".join(parts)


def _learns(summary: Summary) -> list[str]:
    """Who learns what without a defense, without a figure."""
    found = [r for r in summary.leaks or () if r.is_leak]
    said = dict.fromkeys(
        f"{r.adversary} can work out the {format_secret(r)} ({r.dataset})" for r in found
    )
    turned = first_screen.reverses(summary)
    backwards = dict.fromkeys(
        f"the {format_secret(r)} ({r.dataset}), which {r.adversary} can "
        "work out once it knows which way round that is"
        for r in turned
    )
    people = [row.point for row in find_exposed(summary)]
    single = dict.fromkeys(f"{format_secret(p)} ({p.dataset}) to {p.adversary}" for p in people)
    learnt = {r.dataset for r in [*found, *turned, *people]}
    none = [d for d in summary.parties if d not in learnt]
    out = []
    if said:
        out.append(f"Without a defense and beyond its baseline, {'; '.join(said)}.")
    if turned:
        out.append(f"Without a defense an attack ranks in reverse {'; '.join(backwards)}.")
    if single:
        out.append(f"Single people are exposed: {'; '.join(single)}.")
    if none:
        what = "no leak of the kind that these attacks look for was shown"
        out.append(f"On {', '.join(none)} {what}.")
    return out


def build_systems(summary: Summary) -> Section:
    """Data set by data set: who holds what, what trains, under which defenses."""
    out = []
    for name, of in summary.parties.items():
        here = [p for p in summary.points if p.dataset == name and p.attack]
        parties = of.parties
        first_ = parties[0] if parties else "not recorded"
        rows = ", ".join(f"{_rows_of(k)} {n}" for k, n in of.rows.items())
        facts = (
            Fact("Holds the labels", first_ + kind_of_label(of)),
            Fact("Hold further columns", ", ".join(parties[1:]) or "nobody"),
            Fact("Trained by", "; ".join(dict.fromkeys(p.algorithm for p in here))
                 or "nothing that was attacked"),
            Fact("Defenses", ", ".join(dict.fromkeys(map(place, here)))),
            Fact("Rows", rows),
            Fact("Seeds", ", ".join(map(str, of.seeds))),
        )  # fmt: skip
        out.append(Section(name, (Facts(facts),)))
    return Section("System", tuple(out), key="system")


def build_signatures() -> Section:
    """Where to sign, and what that confirms."""
    who = ("Who ran the audit", "Data-protection officer", "For the controller")
    confirms = Paragraph(
        "An audit shows what the attacks that were tried could do with the means they were given. "
        "It cannot show that no attack exists. Who signs confirms to have read this page, not that "
        "the system is anonymous.", Tone.SOFT,
    )  # fmt: skip
    lines = Signatures(tuple(f"{name}: name, date, signature" for name in who))
    return Section("Signatures", (confirms, lines), key="together")


def _rows_of(key: str) -> str:
    """A row set's key in words."""
    what, _, party = key.partition(":")
    return f"all training rows of {party}" if what == "local" and party else key
