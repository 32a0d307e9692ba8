"""What surely leaks and no gate limits: where the system is judged, and at other strengths.

A headline speaks only of what is judged. A passing audit may hold a leak of columns where gates
limit labels, at the very strength that will be deployed, or one at a strength that nobody means to
deploy; its reader should not have to look for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.gate import is_leak_limit
from vflsec.audit.gate_selection import answer
from vflsec.audit.leakage import is_undefended
from vflsec.report.coverage import USUAL
from vflsec.report.sanitize import clean
from vflsec.report.verdicts import gate_of, place, some, weighed

__all__ = ["beyond", "deployed", "parts", "ungated", "unjudged", "unstopped"]

_POINT = ("dataset", "algorithm", "defense", "strength")


def ungated(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What leaks and no gate limits: at each point, of each adversary and secret the most.

    Returns:
        points of the summary with ``judged``: whether some gate judges the system there. Those
        first, then the largest.
    """
    at: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for p in summary["points"]:
        at.setdefault(tuple(p[k] for k in _POINT), []).append(p)
    judging, asked = set(), set()
    for v in summary["gates"]:
        if v["gate"]["metric"] == "epsilon_lower":
            continue  # a claim is judged wherever it is made
        point = tuple(v[k] for k in _POINT)
        judging.add(point)
        if is_leak_limit(gate_of(v)):
            asked |= {answer(p) for p in weighed(v, at.get(point, ()))}
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for p in summary["points"]:
        if not p["attack"] or p["metric"] != p["primary"]:
            continue
        if not leaks(p.get("advantage"), p.get("advantage_low")) or answer(p) in asked:
            continue
        key = (*(p[k] for k in _POINT), p["adversary"], strongest_attack.secret(p))
        if key not in worst or p["advantage"] > worst[key]["advantage"]:
            worst[key] = {**p, "judged": tuple(p[k] for k in _POINT) in judging}
    return sorted(worst.values(), key=lambda p: (not p["judged"], -p["advantage"]))


def deployed(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of :func:`ungated` at points that a gate judges, so that a PASS is not about them.

    Gains within what gates allow elsewhere are left to :func:`beyond`.
    """
    most = _allowed(summary)
    return [p for p in ungated(summary) if p["judged"] and p["advantage"] > most]


def _allowed(summary: Mapping[str, Any]) -> float:
    """The least advantage that gates allow, :data:`USUAL` where none limits one."""
    gates = [v["gate"] for v in summary["gates"] if v["defense"]]
    least = [g["max"] for g in gates if g["metric"] == "advantage" and g["max"] is not None]
    return min(least, default=USUAL)


def beyond(summary: Mapping[str, Any]) -> list[str]:
    """A line for each adversary and secret of :func:`ungated`, with the points where it leaks."""
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for p in ungated(summary):
        lines.setdefault((p["dataset"], _told(p)), []).append(p)
    several = len({p["algorithm"] for p in summary["points"] if p["attack"]}) > 1
    out = []
    for (dataset, what), of in lines.items():
        of.sort(key=lambda p: (not p["judged"], p["strength"] or 0.0))
        attacks = list(dict.fromkeys(clean(p["attack"]) for p in of))
        by = "" if len(attacks) > 1 else f" ({attacks[0]})"
        said = some([_at(p, several, not by) for p in of], ", ")
        out.append(f"{clean(dataset)}: {what}, {said}{by}")
    return out


def unstopped(summary: Mapping[str, Any]) -> list[str]:
    """What leaks without a defense, is limited by no gate, and leaks at every strength tried.

    What no longer gains more than gates allow elsewhere, and did, was stopped.
    """
    every: dict[tuple[str, str], dict[tuple[Any, ...], None]] = {}
    for p in summary["points"]:
        if p["attack"] and not is_undefended(p):
            point = (p["defense"], p["strength"])
            every.setdefault((p["dataset"], p["algorithm"]), {})[point] = None
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for p in ungated(summary):
        found.setdefault((p["dataset"], p["algorithm"], _told(p)), []).append(p)
    out = []
    for (dataset, algorithm, what), of in found.items():
        tried = every.get((dataset, algorithm), {})
        defended = {(p["defense"], p["strength"]): p for p in of if not is_undefended(p)}
        bare = max((p["advantage"] for p in of if is_undefended(p)), default=0.0)
        most = _allowed(summary) if bare > _allowed(summary) else 0.0
        left = [p for p in defended.values() if p["advantage"] > most]
        if tried and bare and len(left) == len(tried):
            last = max(defended.values(), key=lambda p: p["strength"] or 0.0)
            out.append(
                f"{clean(dataset)}: nothing that was tried stops {what}, {last['advantage']:+z.2f} "
                f"with {place(last)}, and no gate limits it."
            )
    return out


def _told(p: Mapping[str, Any]) -> str:
    """``the columns of shop to bank``: what leaks to whom."""
    return f"the {clean(strongest_attack.secret(p))} to {clean(p['adversary'])}"


def _at(p: Mapping[str, Any], several: bool, by: bool) -> str:
    """``+0.82 with iso 5, which is judged``."""
    where = "without a defense" if is_undefended(p) else f"with {place(p)}"
    if several:
        where = f"{clean(p['algorithm'])} {where}"
    judged = ", which is judged" if p["judged"] else ""
    attack = f" ({clean(p['attack'])})" if by else ""
    return f"{p['advantage']:+z.2f} {where}{judged}{attack}"


def parts(points: Iterable[Mapping[str, Any]]) -> str:
    """``the columns of shop to bank (+0.82)`` and the like, each once, the largest first."""
    most: dict[str, float] = {}
    for p in points:
        most[_told(p)] = max(most.get(_told(p), p["advantage"]), p["advantage"])
    ordered = sorted(most.items(), key=lambda pair: -pair[1])
    return some([f"{what} ({gain:+z.2f})" for what, gain in ordered], ", ")


def unjudged(summary: Mapping[str, Any]) -> list[str]:
    """A line on what leaks where the system is judged although no gate asks, or none."""
    found = deployed(summary)
    where = some(list(dict.fromkeys(place(p) for p in found)), ", ")
    return [f"Leaks at {where}, and no gate limits it: {parts(found)}."] if found else []
