"""One page over several audits: their verdicts, what changed by gate, and leaks side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from vflsec._version import __version__
from vflsec.audit.findings import format_gain
from vflsec.audit.gate import Verdict
from vflsec.audit.leakage_claims import Quantity, find_leaks, format_secret, rank
from vflsec.audit.summary import Summary, read_summary
from vflsec.errors import ConfigError, format_count
from vflsec.report.curve import build_gain, find_gains
from vflsec.report.exports import load_summary
from vflsec.report.first_screen import name_most
from vflsec.report.numbers import format_number
from vflsec.report.sanitize import clean_tree
from vflsec.report.tree import TONES, Block, Cell, Paragraph, Report, Section, Table, View
from vflsec.report.tree import make_columns as columns
from vflsec.report.ungated_leaks import find_tone
from vflsec.report.verdicts import (
    format_headline,
    format_place,
    format_point,
    hash_identity,
)
from vflsec.runtime.grouping import group_by

PAGE = "index.html"


@dataclass(frozen=True)
class Audited:
    """An audit, what it is called on the page, and the link to its report."""

    summary: Summary
    name: str
    link: str


def find_audits(folders: Iterable[Path], page: Path) -> list[Audited]:
    """The audits in and below some folders, the oldest first.

    Args:
        folders: where to look.
        page: folder of the page that links to them.

    Raises:
        ConfigError: there is none, or one cannot be read.
    """
    files = (p for folder in folders for p in sorted(folder.rglob("summary.json")))
    found = dict.fromkeys(p.parent.resolve() for p in files)
    if not found:
        raise ConfigError(
            "--index: no audit is in or below these folders. Name those of `vflsec audit`."
        )
    audits = []
    for folder in found:
        at = Path(os.path.relpath(folder, page.resolve()))
        name = folder.name if at == Path() else at.as_posix()
        link = quote((at / "report.html").as_posix())
        audits.append(Audited(read_summary(load_summary(folder)), name, link))
    return sorted(audits, key=lambda a: a.summary.when)


def build_index(audits: Sequence[Audited]) -> Report:
    """The page, as a report that :func:`vflsec.report.html.render_page` lays out."""
    verdicts = [format_headline(a.summary)[0] for a in audits]
    said = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    sections = (
        Section("Audits", (_build_audits(audits),), key="audits", nav="Audits"),
        Section("Changes since the last audit", tuple(_build_changes(audits)),
                key="changes", nav="Changes"),
        Section("Side by side", (_build_beside(audits),), key="beside", nav="Side by side"),
    )  # fmt: skip
    index: Report = clean_tree(Report(
        f"{format_count(len(audits), 'audit')}, {said}", said, said, __version__,
        sections={View.PAGE: sections, View.WHOLE: sections},
    ))  # fmt: skip
    return index


def _build_audits(audits: Sequence[Audited]) -> Table:
    heads = ("Audit", "Scenario", "When (UTC)", "Verdict", "Gates", "Strongest leak, undefended")
    return Table("", columns(*heads, name="Audit", states=("Verdict",)),
                 tuple(map(_audit_row, audits)), "Audits", PAGE)  # fmt: skip


def _audit_row(a: Audited) -> tuple[Cell | str, ...]:
    found, how = format_headline(a.summary)
    leaks = [c for c in find_leaks(a.summary.claims) if c.is_leak]
    most = max(leaks, key=rank, default=None)
    single = [c for c in a.summary.claims
              if c.is_leak and c.is_undefended and c.quantity is Quantity.EXPOSED]  # fmt: skip
    none = f"{name_most(single)}; on average none" if single else "none"
    none += " is significant"
    said = none if most is None else (
        f"{format_secret(most)} to {most.adversary}, "
        f"{format_gain(most.metric, most.advantage, most.low, most.high)}"
    )  # fmt: skip
    return (Cell(a.name, link=a.link), a.summary.name, a.summary.when[:16].replace("T", " "),
            Cell(found, find_tone(a.summary)), how, said)  # fmt: skip


def _build_changes(audits: Sequence[Audited]) -> Iterator[Block]:
    """Of each scenario that was audited twice, every gate before and now; changed ones first."""
    of = group_by(audits, lambda a: a.summary.name)
    again = [pair for every in of.values() if len(pair := every[-2:]) == 2]
    if not again:
        yield Paragraph("No scenario was audited twice.")
    states = ("Before", "Now")
    values = ("Value before", "Value now")
    heads = columns("Gate", "Where", *states, *values, name="Gate", states=states, numbers=values)
    for old, new in again:
        before, now = ({hash_identity(v): v for v in a.summary.gates} for a in (old, new))
        both = sorted(
            ((before.get(k), now.get(k)) for k in {**now, **before}),
            key=lambda pair: bool(pair[0] and pair[1] and pair[0].verdict == pair[1].verdict),
        )
        rows = tuple(_change_row(*pair) for pair in both)
        yield Table(f"{new.summary.name}: {old.name} and {new.name}", heads, rows, source=PAGE)


def _change_row(was: Verdict | None, now: Verdict | None) -> tuple[Cell | str, ...]:
    known = [v for v in (was, now) if v is not None]
    states = ("–" if v is None else Cell(v.verdict, TONES[v.verdict]) for v in (was, now))
    values = ("–" if v is None else format_number(v.value, limit=v.threshold) for v in (was, now))
    return known[0].label, format_point(known[0]), *states, *values


def _build_beside(audits: Sequence[Audited]) -> Table:
    """What each attacker gains on each target under each training, in every audit."""
    of = [find_gains(a.summary.claims) for a in audits]
    names = [a.name for a in audits]
    rows = (
        (f"{at.dataset}, {at.algorithm}, {format_place(at)}", told,
         *(build_gain(found.get((told, at))) for found in of))
        for told, at in dict.fromkeys(key for found in of for key in found)
    )  # fmt: skip
    return Table(
        "Strongest advantage; * is significant (corrected)",
        columns("Training", "What, to whom", *names, name="Training", numbers=names), tuple(rows),
        "Leaks", PAGE,
    )  # fmt: skip
