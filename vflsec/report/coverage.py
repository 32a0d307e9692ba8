"""What was tried and what was not: by family of attacks, and by message that crossed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from vflsec.report.families import FAMILIES, OTHERS, members, reads
from vflsec.report.text import clean

__all__ = ["NONE", "NOT_RUN", "RAN", "UNSEEN", "families", "gaps", "messages", "uncovered"]

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
    exists. Of several names of one kind those count as not read that were not kept whole.
    """
    ran, of = _ran(summary), members(summary)
    kinds: dict[str, list[str]] = defaultdict(list)
    for f in FAMILIES:
        for kind in f.reads:
            kinds[kind] += of[f.name]
    crossed: dict[tuple[str, str, str, str], None] = {}
    unread: set[tuple[str, str]] = set()
    for c in summary["cost"]["points"]:
        if c["role"] == "audit":
            unread |= {(k, n) for k, n in c.get("unread", ())}
            for t in c["traffic"]:
                crossed[t["kind"], t["name"], t["sender"], t["receiver"]] = None
    out = []
    for kind, name, sender, receiver in crossed:
        used = sorted(
            {
                s["name"] for s in ran.values()
                if kind in reads(s["needs"]) and receiver in s["adversary"]
                and (kind, name) not in unread
            }
        )  # fmt: skip
        others = [] if (kind, name) in unread else sorted(set(kinds.get(kind, ())) - set(used))
        out.append(
            {
                "kind": clean(kind), "name": clean(name), "sender": clean(sender),
                "receiver": clean(receiver), "tried": used, "others": others,
                "state": RAN if used else NOT_RUN if others else NONE,
            }
        )  # fmt: skip
    return out


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
    crossed = messages(summary)
    for state in (NOT_RUN, NONE):
        said = _messages(m for m in crossed if m["state"] == state)
        if said:
            what = "Messages that no attack that ran reads" if state == NOT_RUN else (
                "Messages for which no attack exists here"
            )  # fmt: skip
            out.append(f"{what}: {_list(said)}.")
    return out


def _messages(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Each kind of message once for each sender, with all who got it."""
    found: dict[str, dict[str, None]] = {}
    for m in rows:
        what = f"{m['kind']} ({m['name']})" if m["name"] else m["kind"]
        found.setdefault(f"{what} from {m['sender']}", {})[m["receiver"]] = None
    return [f"{what} to {' and '.join(to)}" for what, to in found.items()]


def _list(parts: Iterable[str]) -> str:
    return "; ".join(p[0].lower() + p[1:] for p in parts)
