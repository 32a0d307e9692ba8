"""The page that a data-protection officer signs: what was audited, what was tried, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.report import first_screen
from vflsec.report.coverage import RAN, families, messages
from vflsec.report.html import render
from vflsec.report.sanitize import clean
from vflsec.report.ungated_leaks import unjudged
from vflsec.report.verdicts import headline, place

__all__ = ["paragraph", "statement"]

_TEMPLATE = "statement.html.j2"

_MEANS = {
    "PASS": "Every limit that was set holds for what was tried",
    "FAIL": "At least one limit that was set does not hold",
    "INCONCLUSIVE": "No limit is shown to be broken, and not all are shown to hold",
    "NO GATE": "No limit was set, so nothing was judged",
    "UNFINISHED": "Not all that was planned was measured, so nothing was judged",
}


def statement(summary: Mapping[str, Any]) -> str:
    """The page of a summary (`vflsec.report.exports.summary_of`), complete in itself."""
    return render(
        _TEMPLATE,
        summary,
        paragraph=paragraph(summary),
        systems=_systems(summary),
    )


def paragraph(summary: Mapping[str, Any]) -> str:
    """The verdict in plain words; the figures stand under it."""
    found, _ = headline(summary)
    data = ", ".join(clean(name) for name in summary["parties"]) or "no data"
    when = f" on {summary['when'][:10]}" if summary.get("when") else ""
    seeds = max((len(p["seeds"]) for p in summary["parties"].values()), default=0)
    parts = [
        f"The training described below ({data}) was audited{when}, {seeds} "
        f"time{'s' if seeds != 1 else ''} "
        + (
            "with different random splits." if summary.get("scenario") else "from recordings of it."
        ),
        *_learns(summary),
        f"{_MEANS[found]}: {first_screen.scope(summary)}",
        *(unjudged(summary) if found == "FAIL" else ()),  # else it is part of the scope
    ]
    every, crossed = families(summary), messages(summary)
    left = sum(not f["tried"] for f in every)
    unread = sum(m["state"] != RAN for m in crossed)
    parts.append(
        f"Of {len(every)} published families of attacks {left} gave no figure here, and "
        f"{unread} of {len(crossed)} kinds of messages were read by no attack that ran. What was "
        "not tried is not known to be safe."
    )
    return " ".join(parts)


def _learns(summary: Mapping[str, Any]) -> list[str]:
    """Who learns what without a defense, without a figure."""
    found = [r for r in summary.get("leaks", []) if leaks(r["advantage"], r["low"])]
    said = dict.fromkeys(
        f"{clean(r['adversary'])} can work out the {clean(strongest_attack.secret(r))} "
        f"({clean(r['dataset'])})"
        for r in found
    )
    turned = first_screen.reverses(summary)
    backwards = dict.fromkeys(
        f"the {clean(strongest_attack.secret(r))} ({clean(r['dataset'])}), which {clean(r['adversary'])} can "
        "work out once it knows which way round that is"
        for r in turned
    )
    learnt = {r["dataset"] for r in [*found, *turned]}
    none = [d for d in summary["parties"] if d not in learnt]
    out = []
    if said:
        out.append(f"Without a defense, better than by itself, {'; '.join(said)}.")
    if turned:
        out.append(f"Without a defense an attack ranks in reverse {'; '.join(backwards)}.")
    if none:
        out.append(f"On {', '.join(map(clean, none))} no such leak was shown.")
    return out


def _systems(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Data set by data set: who holds what, what trains, under which defenses."""
    out = []
    for name, facts in summary["parties"].items():
        here = [p for p in summary["points"] if p["dataset"] == name and p["attack"]]
        out.append(
            {
                "name": name,
                "parties": facts.get("parties", []),
                "classes": facts.get("classes"),
                "labels": facts.get("labels", []),
                "rows": {_rows_of(k): n for k, n in facts.get("rows", {}).items()},
                "seeds": facts.get("seeds", []),
                "trainings": list(dict.fromkeys(clean(p["algorithm"]) for p in here)),
                "defenses": list(dict.fromkeys(place(p) for p in here)),
            }
        )
    return out


def _rows_of(key: str) -> str:
    """A row set's key in words."""
    what, _, party = key.partition(":")
    return f"all training rows of {party}" if what == "local" and party else key
