"""What `vflsec check` prints: tables, what will run, what cannot and why, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from vflsec.audit.defense_label import format_defense
from vflsec.audit.exposure import Protocol
from vflsec.core.visibility import claim
from vflsec.errors import format_count
from vflsec.plan.values import Encryption, Group, Plan, Price
from vflsec.report.console import print_blocks
from vflsec.report.numbers import format_bytes, format_duration
from vflsec.report.progress import warn_of_memory
from vflsec.report.provenance import build_visible_table
from vflsec.report.sanitize import clean_tree
from vflsec.report.tables import build_profile
from vflsec.report.tree import Block, Bullets, Column, Kind, Paragraph, Section, Table, Tone
from vflsec.runtime.grouping import group_by


def print_plan(plan: Plan, console: Console) -> None:
    """What is in the tables, what will run, what cannot and why, and the estimate."""
    print_blocks(build_plan(plan), console)


def build_plan(plan: Plan) -> tuple[Block, ...]:
    """What is in the tables, what will run, what cannot and why, and the estimate, as blocks."""
    groups = plan.groups
    roles = dict.fromkeys(g.role for g in groups)
    data = {g.data.name: g.data for g in groups if g.role == "audit"}
    said = [*list_attacks(groups), *(_ROLES[r] for r in roles if r in _ROLES)]
    blocks: tuple[Block, ...] = (
        *(build_profile(of.tables, brief=True) for of in data.values()),
        _build_groups(groups),
        *(Paragraph(f"  {line}") for line in said),
        *_build_refused(plan),
        *_build_visibility(plan.visibility),
        *(Paragraph(f"note: {note}", Tone.SOFT) for note in plan.notes),
        Section("", tuple(_build_cost(plan.cost))),
    )
    return tuple(map(clean_tree, blocks))


def _build_groups(groups: Sequence[Group]) -> Table:
    heads = [Column(name) for name in ("what for", "data", "algorithm", "defenses")]
    rows = []
    for group in groups:
        defenses = _stack(group)
        points = sorted({tuple(d.strength for d in c.defenses if d.strength is not None)
                         for c in group.cells})  # fmt: skip
        strengths = [", ".join(f"{s:g}" for s in point) for point in points if point]
        if strengths:
            defenses += f" at {'; '.join(strengths)}"
        count = str(len(group.cells))
        rows.append((group.role, group.data.name, group.title, defenses, count))
    return Table("", (*heads, Column("trainings", Kind.NUMBER)), tuple(rows))


def _build_refused(plan: Plan) -> list[Paragraph]:
    """Attacks that cannot be made, where, and why: those of one reason together."""
    under = {c.key: _stack(g) for g in plan.groups for c in g.cells}
    out = []
    said = group_by(plan.refused, lambda r: (r.status, r.reason.removeprefix(f"{r.attack.name}: ")))
    for (status, reason), of in said.items():
        defenses = (under[c] for r in of for c in r.cells if c in under)
        names, data, roles, where = (
            ", ".join(dict.fromkeys(some))
            for some in ((r.attack.name for r in of), (r.dataset for r in of),
                         (r.role for r in of), defenses)
        )  # fmt: skip
        text = f"{status}: {names} on {data} ({roles}; {where}): {reason}"
        out.append(Paragraph(text, Tone.WARNING))
    return out


def _build_visibility(entries: Iterable[Protocol]) -> list[Section]:
    """Who sees what, for every protocol that hides something, and what that buys."""
    seen: list[Any] = []
    out = []
    for entry in entries:
        same = entry.defense, entry.lines, entry.hides, entry.leaves
        if same not in seen:  # else another algorithm, the same protocol
            seen.append(same)
            said = Paragraph(claim("It", entry.hides, entry.leaves))
            title = f"What stays visible: {entry.defense}"
            out.append(Section(title, (build_visible_table(entry), said)))
    return out


def _build_cost(cost: Price) -> Iterable[Block]:
    """The estimate of time, memory, kept views and encryption."""
    seconds, controls = (format_duration(max(s, 1)) for s in (cost.seconds, cost.control_seconds))
    yield Paragraph(
        f"{format_count(round(cost.trainings), 'training')}, "
        f"{format_count(round(cost.attacks), 'attack')}, about "
        f"{format_count(round(cost.steps), 'step')}: roughly {seconds} on one CPU thread "
        f"({controls} for controls), {format_bytes(cost.memory_bytes)} of memory."
    )
    if text := warn_of_memory(cost):
        yield Paragraph(text, Tone.WARNING)
    if cost.views_bytes:
        yield Paragraph(
            f"With --keep-views: about {format_bytes(cost.views_bytes)} more on disk (--views-mb "
            "bounds them)."
        )
    if cost.ciphertext_bytes:
        lines = tuple(map(_encryption, cost.encryption))
        yield Section("What encryption costs (estimate)", (Bullets(lines),))


def _encryption(e: Encryption) -> str:
    """Seconds by operation and bytes of one batch, an epoch and the whole run."""
    seconds = sum(e.seconds.values())
    parts = ", ".join(f"{k} {v:.2g} s" for k, v in e.seconds.items())
    more = [
        f"{what} {format_duration(seconds * n)} and {format_bytes(e.bytes * n)}"
        for what, n in (("an epoch", e.per_epoch), ("the whole run", e.in_all))
    ]
    real = "" if e.computed else ", if it were real"
    return (
        f"{e.algorithm} with {e.defense} on {e.dataset}{real}: a batch {seconds:.2g} s "
        f"({parts}) and {format_bytes(e.bytes)}; {'; '.join(more)}."
    )


def _stack(group: Group) -> str:
    """Names and parameters of the defenses, without strengths."""
    return " + ".join(format_defense(d.name, d.params) for d in group.cells[0].defenses) or "none"


_ROLES = {
    "reference": "reference: no federation, or all columns in one place; not attacked.",
    "control": "control: a planted leak, to validate attacks.",
    "tuning": "tuning: drawn worlds, to try settings.",
}


def list_attacks(groups: Sequence[Group]) -> list[str]:
    """Which attacks are made on what, each list once, and one that lacks a few by what it lacks."""
    made: dict[tuple[str, ...], list[Group]] = {}
    for g in groups:
        if g.attacks:
            made.setdefault(tuple(dict.fromkeys(a.name for a in g.attacks)), []).append(g)
    out, whole = [], max(made, key=len, default=())
    for names, of in sorted(made.items(), key=lambda item: item[0] != whole):
        others = [g for other, theirs in made.items() if other != names for g in theirs]
        apart = dict.fromkeys(_distinguish(g, others) for g in of)
        where = f" ({', '.join(apart)})" if others else ""
        lacks = [n for n in whole if n not in names]
        few = {*names} < {*whole} and len(lacks) < len(names)
        said = f"the same without {', '.join(lacks)}" if few else ", ".join(names)
        out.append(f"attacks{where}: {said}")
    return out or ["attacks: none"]


def _distinguish(group: Group, others: Sequence[Group]) -> str:
    """A group in words that do not fit the others: its role, then its data and algorithm."""
    if all(o.role != group.role for o in others):
        return group.role
    return f"{group.role} of {group.data.name} by {group.title}"
