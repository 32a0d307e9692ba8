"""What was tried and what was not: by family of attacks, and by message that crossed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from vflsec.core.visibility import looked_at
from vflsec.label import make_label
from vflsec.report.attack_families import FAMILIES, OTHERS, members, reads
from vflsec.report.sanitize import clean
from vflsec.report.tree import Cell, Column, Kind, Paragraph, Section, Table, Tone, View
from vflsec.specs import WHICHEVER

USUAL = 0.1
"""The limit that drafts have, where no gate asks about columns."""

__all__ = ["NONE", "NOT_RUN", "RAN", "UNSEEN", "build_coverage", "families", "gaps",
           "messages", "older", "uncovered", "unread"]  # fmt: skip

OUTSIDE = (
    "side channels such as timing",
    "a party that departs from the protocol otherwise than the attacks above say of theirs",
)
"""What no attack here tries."""

RAN, UNSEEN, NOT_RUN, NONE = (
    "tried", "not observable here", "was not run", "no attack exists"
)  # fmt: skip


def _ran(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Attacks that gave a figure, by key."""
    found = {p["attack_key"] for p in summary["points"] if p["attack"] and p["status"] == "ok"}
    return {k: s for k, s in summary["attacks"].items() if k in found}


def families(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every published family with the attacks of it that gave a figure, or why none did.

    ``state``: tried; not observable here; was not run; no attack exists (for this kind of label).
    """
    ran = {s["name"] for s in _ran(summary).values()}
    asked = {s["name"] for s in summary["attacks"].values()}
    of = members(summary)
    for spec in summary["attacks"].values():
        if not any(spec["name"] in m for m in of.values()):
            of.setdefault(OTHERS, []).append(spec["name"])
    published = {f.name: f.published for f in FAMILIES}
    out = []
    for family, names in of.items():
        tried = [n for n in names if n in ran]
        refused = [n for n in names if n in asked and n not in ran]
        if family == OTHERS and not tried and not refused:
            continue
        out.append(
            {
                "family": clean(family),
                "state": RAN if tried else UNSEEN if refused else NOT_RUN if names else NONE,
                "tried": tried, "refused": refused, "members": names,
                "source": published.get(family, "this scenario"),
            }
        )  # fmt: skip
    return out


def messages(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every kind of message that crossed, who got it, and which attacks read it there.

    ``state``: tried; was not run (attacks that read such a message are registered); no attack
    exists. Of several names of one kind those count as not read that were not kept whole, and so
    does what crossed in a ``phase`` after which no attack is made.
    """
    ran, of = _ran(summary), members(summary)
    kinds: dict[str, list[str]] = defaultdict(list)
    for f in FAMILIES:
        for kind in f.reads:
            kinds[kind] += of[f.name]
    crossed: dict[tuple[str, str, str, str, str], None] = {}
    unread: set[tuple[str, str]] = set()
    attacked = _attacked(summary)
    for c in summary["cost"]["points"]:
        if c["role"] == "audit":
            unread |= {(k, n) for k, n in c.get("unread", ())}
            for t in c["traffic"]:
                after = attacked[c["algorithm"]] or {t["phase"]}
                heard = t["kind"] not in kinds or looked_at(t["kind"], t["phase"], after)
                phase = "" if heard else t["phase"]
                crossed[t["kind"], t["name"], t["sender"], t["receiver"], phase] = None
    for kind, name, sender, receiver, phase in [*crossed]:  # a second exchange has no traffic
        for again in sorted(n for k, n in unread if k == kind and n.startswith(f"{name}#")):
            crossed[kind, again, sender, receiver, phase] = None
    out = []
    for kind, name, sender, receiver, phase in crossed:
        used = sorted(
            {
                s["name"] for s in ran.values()
                if kind in reads(s["needs"]) and receiver in s["adversary"]
                and (kind, name) not in unread and not phase
            }
        )  # fmt: skip
        none = phase or (kind, name) in unread
        others = [] if none else sorted(set(kinds.get(kind, ())) - set(used))
        out.append(
            {
                "kind": clean(kind), "name": clean(name), "sender": clean(sender),
                "receiver": clean(receiver), "phase": clean(phase), "tried": used,
                "others": others, "state": RAN if used else NOT_RUN if others else NONE,
            }
        )  # fmt: skip
    return out


def _attacked(summary: Mapping[str, Any]) -> Mapping[str, set[str]]:
    """The phases after which attacks are made, by algorithm."""
    found: dict[str, set[str]] = defaultdict(set)
    for p in summary["points"]:
        if p["attack"] and p["phase"]:
            found[p["algorithm"]].add(p["phase"].partition("@")[0])
    return found


def uncovered(summary: Mapping[str, Any]) -> list[str]:
    """One registered attack of each family that was not run and reads what crossed."""
    readable = {n for m in messages(summary) for n in m["others"]}
    every = [f["members"] for f in families(summary) if f["state"] == NOT_RUN]
    return [found[0] for of in every if (found := [n for n in of if n in readable])]


def gaps(summary: Mapping[str, Any]) -> list[str]:
    """What the verdict does not speak of, one line each: first-class, for silence is no proof."""
    every = families(summary)
    out = []
    for state in (NOT_RUN, UNSEEN, NONE):
        of = [f["family"] for f in every if f["state"] == state]
        if of:
            what = "No attack exists here" if state == NONE else state.capitalize()
            out.append(f"{what} ({len(of)} of {len(every)} families): {_list(of)}.")
    return [*out, *unread(summary), *_undeclared(summary), *_unasked(summary)]


def unread(summary: Mapping[str, Any]) -> list[str]:
    """Messages of which no verdict speaks, one line for each reason why."""
    crossed, out = messages(summary), []
    for state in (NOT_RUN, NONE):
        said = _messages(m for m in crossed if m["state"] == state)
        if said:
            what = "Messages that no attack that ran reads" if state == NOT_RUN else (
                "Messages for which no attack exists here"
            )  # fmt: skip
            out.append(f"{what}: {_list(said)}.")
    return out


def older(summary: Mapping[str, Any]) -> list[str]:
    """That trainings are those of other code or versions, a line; or none."""
    made = clean(summary.get("made_before") or "")
    if not made:
        return []
    return [f"Trainings made with {made} were kept and are judged; --fresh trains them again."]


def _undeclared(summary: Mapping[str, Any]) -> list[str]:
    """What crossed although the algorithm's `sends`, by which attacks are planned, lacks it."""
    found: dict[str, dict[str, None]] = {}
    for c in summary["cost"]["points"]:
        for kind, sender, receiver in c.get("undeclared", ()) if c["role"] == "audit" else ():
            said = f"{clean(kind)} from {clean(sender)} to {clean(receiver)}"
            found.setdefault(clean(c["algorithm"]), {})[said] = None
    return [
        f"Not named in `sends` of {algorithm}, so attacks that need it were set aside though it "
        f"crossed: {_list(said)}."
        for algorithm, said in found.items()
    ]


def _unasked(summary: Mapping[str, Any]) -> list[str]:
    """Parties together, and what labels may tell without being told, where no attack asks for it.

    One class that is told wholly adds 1/C to a balanced accuracy at most, and to an accuracy its
    share, which is about as much where that is the figure; a limit may allow it.
    """
    ran = _ran(summary).values()
    asked = any(s["target"] == "label" for s in ran)
    limits = [
        v["gate"]["max"] for v in summary["gates"]
        if v["gate"]["metric"] == "advantage" and v["gate"]["max"] is not None
    ]  # fmt: skip
    out: dict[str, None] = {}
    for facts in summary["parties"].values():
        passive = [clean(p) for p in facts.get("parties", ())[1:]]
        if len(passive) > 1 and ran and all(len(s["adversary"]) < 2 for s in ran):
            out[
                f"Was not run: any attack by parties together ({', '.join(passive)}), to whom two "
                "messages may tell what each by itself does not."
            ] = None
        label = make_label(facts.get("classes") or 0, tuple(facts.get("labels", ())))
        questions = any("question=" in s["label"] for s in ran)
        if asked and (left := label.find_unasked(questions, max(limits, default=None))):
            out[left] = None
    return [*out, *_columns(summary)]


def _columns(summary: Mapping[str, Any]) -> list[str]:
    """What attacks on columns were not asked: one of many whose mean is judged, and the others
    where an attack looks at one.

    One column of d that is told wholly adds 1/d to an R² over all of them.
    """
    ran = _ran(summary)
    whose: dict[str, set[str]] = defaultdict(set)
    for p in summary["points"]:
        if p["attack_key"] in ran and p.get("victim"):
            whose[p["attack_key"]] |= set(p["victim"].split("+"))
    asked = {k: ran[k]["target"] for k in whose}
    limits = [
        v["gate"]["max"] for v in summary["gates"]
        if v["gate"]["metric"] == "advantage" and v["gate"]["max"] is not None
        and v["gate"].get("target", "*") in ("feature", "*")
    ]  # fmt: skip
    limit = max(limits, default=USUAL)
    out: dict[str, None] = {}
    for facts in summary["parties"].values():
        sizes = facts.get("columns") or {}
        most = max((sum(sizes.get(p, 0) for p in whose[k]) for k, of in asked.items()
                    if of == "feature"), default=0)  # fmt: skip
        best = any(v["gate"].get("of") == "r2_column" for v in summary["gates"])
        if most > 1 and limit >= 1 / most and not best:
            out[
                f"Was not asked: whether one column of {most} is told. That adds about "
                f"{1 / most:.2g} to an R² which is the mean over columns, within a limit of "
                f'{limit:g} (a gate with of = "r2_column" asks about the one that is told best).'
            ] = None
        alone = {k: _settings(ran[k]) for k, of in asked.items() if of == "attribute"}
        every = [p for k, of in alone.items() if of.get("column") == WHICHEVER for p in whose[k]]
        looked = {p for k, of in asked.items() if of in ("feature", "attribute") for p in whose[k]}
        left = sum(d for p, d in sizes.items() if p in looked and p not in every)
        one = sum(of.get("column") != WHICHEVER for of in alone.values())
        if alone and left > one:
            tails = any(of.get("ask") or of.get("category") for of in alone.values())
            what = "" if tails else ", and not at tails or one category alone (ask, category)"
            out[
                f"Was not asked: which side of their mean or which category rows have in the "
                f"other {left - one} of {left} columns; each attribute attack looks at "
                f'one{what}; column = "*" asks about any.'
            ] = None
    return list(out)


def _settings(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of an attack that reports ask about; in summaries of earlier versions, as far as
    its label tells them.
    """
    found: Mapping[str, Any] | None = spec.get("params")
    if found is None:
        label = spec["label"]
        found = {k: True for k in ("ask", "category") if f"{k}=" in label}
        found = {**found, "column": WHICHEVER} if f"column={WHICHEVER})" in label else found
    return found


def _messages(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Each kind of message once for each sender, with all who got it."""
    found: dict[str, dict[str, None]] = {}
    for m in rows:
        found.setdefault(f"{_message(m)} from {m['sender']}", {})[m["receiver"]] = None
    return [f"{what} to {' and '.join(to)}" for what, to in found.items()]


def _list(parts: Iterable[str]) -> str:
    return "; ".join(p[0].lower() + p[1:] for p in parts)


def build_coverage(summary: Mapping[str, Any]) -> Section:
    """What could have been tried, and what was."""
    crossed = messages(summary)
    page, statement = frozenset({View.PAGE}), frozenset({View.STATEMENT})
    kinds = (Column("Message", Kind.NAME), Column("From"), Column("To"),
             Column("State", Kind.STATE), Column("Read by"), Column("Not run"))  # fmt: skip
    read = Table(
        "Messages that crossed, and the attacks that read them where they arrived", kinds,
        tuple(
            (_message(m), m["sender"], m["receiver"], _state(m["state"]), _names(m["tried"]),
             _names(m["others"]))
            for m in crossed
        ),
    )  # fmt: skip
    return Section(
        "Coverage",
        (
            Paragraph("What could have been tried, and what was. A family that was not run, and a "
                      "message for which no attack exists, are not the same as safe.", views=page),
            Table(
                "Published attack families, tried and not tried",
                (Column("Family", Kind.NAME), Column("State", Kind.STATE), Column("Attacks"),
                 Column("Published", Kind.PROSE)),
                tuple(map(_family_row, families(summary))),
            ),
            *((read,) if crossed else ()),
            Paragraph(f"Not audited here at all: {'; '.join(OUTSIDE)}.", views=statement),
        ),
        key="coverage", nav="Coverage",
    )  # fmt: skip


def _state(state: str) -> Cell:
    return Cell(state, Tone.GOOD if state == RAN else Tone.WARNING)


def _family_row(f: Mapping[str, Any]) -> tuple[Cell | str, ...]:
    could = "" if f["tried"] or f["refused"] else ", ".join(f["members"])
    made = Cell(_names(f["tried"] + f["refused"]), note=f"could be: {could}" if could else "")
    return f["family"], _state(f["state"]), made, f["source"]


def _message(m: Mapping[str, Any]) -> str:
    """The kind of a message, its name, and the phase in which no attack looks."""
    text = f"{m['kind']} ({m['name']})" if m["name"] else str(m["kind"])
    return f"{text} in {m['phase']}" if m["phase"] else text


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "–"
