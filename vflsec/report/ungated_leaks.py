"""What leaks significantly and no gate limits: where the system is judged, and at other strengths.

A headline speaks only of what is judged. A passing audit may hold a leak of columns where gates
limit labels, at the very strength that will be deployed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from vflsec.audit.controls import leaks
from vflsec.audit.leakage_claims import format_secret
from vflsec.audit.point import Point, Training
from vflsec.report.summary import Summary
from vflsec.report.tree import TONES, Tone
from vflsec.report.unasked import USUAL
from vflsec.report.verdicts import deployment, headline, place, some, weighed


@dataclass(frozen=True)
class Ungated:
    """What leaks and no gate limits.

    Attributes:
        point: the strongest attack there.
        gain: its advantage.
        judged: whether some gate judges the system there.
    """

    point: Point
    gain: float
    judged: bool

    @property
    def secret(self) -> str:
        """``the columns of shop to bank``: what leaks to whom."""
        return f"the {format_secret(self.point)} to {self.point.adversary}"


def ungated(summary: Summary) -> list[Ungated]:
    """What leaks and no gate limits: at each training, of each attacker and target the most.

    Returns:
        first where some gate judges the system, then the largest.
    """
    at: dict[Training, list[Point]] = defaultdict(list)
    for p in summary.points:
        at[p.training].append(p)
    judging, asked = set(), set()
    for v in summary.gates:
        if v.gate.metric != "epsilon_lower":  # a claim is judged wherever it is made
            judging.add(v.training)
            if v.gate.needs_validated:
                asked |= {p.answer for p in weighed(v, at[v.training])}
    worst: dict[tuple[Training, str], Ungated] = {}
    for p in summary.points:
        gain = p.advantage.mean
        if not p.is_main or p.answer in asked or gain is None or not leaks(gain, p.advantage.low):
            continue
        found = Ungated(p, gain, p.training in judging)
        key = p.training, found.secret
        if key not in worst or gain > worst[key].gain:
            worst[key] = found
    return sorted(worst.values(), key=lambda u: (not u.judged, -u.gain))


def deployed(summary: Summary) -> list[Ungated]:
    """Those of :func:`ungated` at points that a gate judges, so that a PASS is not about them.

    Gains within what gates allow elsewhere are left to :func:`beyond`.
    """
    most = _allowed(summary)
    return [u for u in ungated(summary) if u.judged and u.gain > most]


def find_tone(summary: Summary) -> Tone:
    """How the verdict is to be shown: good where every gate passes without a warning and nothing
    leaks that no gate limits.
    """
    found, _ = headline(summary)
    if found == "PASS" and (ungated(summary) or any(v.warnings for v in summary.gates)):
        return Tone.WARNING
    return TONES.get(found, Tone.PLAIN)


def _allowed(summary: Summary) -> float:
    """The least advantage that gates allow, :data:`USUAL` where none limits one."""
    gates = [v.gate for v in summary.gates if v.defense]
    return min((g.max for g in gates if g.metric == "advantage" and g.max is not None),
               default=USUAL)  # fmt: skip


def beyond(summary: Summary) -> list[str]:
    """A line for each attacker and target of :func:`ungated`, with the points where it leaks."""
    lines: dict[tuple[str, str], list[Ungated]] = defaultdict(list)
    for u in ungated(summary):
        lines[u.point.dataset, u.secret].append(u)
    return [
        f"{dataset}: {what}, {some([_at(u) for u in of], ', ')}"
        for (dataset, what), of in lines.items()
    ]


def _at(u: Ungated) -> str:
    """``+0.82 with iso 5 (norm, judged)``."""
    judged = ", judged" if u.judged else ""
    return f"{u.gain:+z.2f} {deployment(u.point)} ({u.point.attack}{judged})"


def unstopped(summary: Summary, dataset: str) -> list[str]:
    """What leaks without a defense, is limited by no gate, and leaks at every strength tried.

    What no longer gains more than gates allow elsewhere, and did, was stopped.
    """
    every: dict[str, set[Training]] = defaultdict(set)
    for p in summary.points:
        if p.dataset == dataset and p.attack and not p.is_undefended:
            every[p.algorithm].add(p.training)
    found: dict[tuple[str, str], list[Ungated]] = defaultdict(list)
    for u in ungated(summary):
        if u.point.dataset == dataset:
            found[u.point.algorithm, u.secret].append(u)
    out = []
    for (algorithm, what), of in found.items():
        last = _left(of, len(every[algorithm]), _allowed(summary))
        if last is not None:
            where = deployment(last.point)
            out.append(f"No tested defense stops {what}: {last.gain:+z.2f} {where}, not gated.")
    return out


def _left(of: Iterable[Ungated], tried: int, allowed: float) -> Ungated | None:
    """One leak at the largest strength, if it is there without a defense and at all `tried`."""
    defended = [u for u in of if not u.point.is_undefended]
    bare = max((u.gain for u in of if u.point.is_undefended), default=0.0)
    most = allowed if bare > allowed else 0.0
    if not tried or not bare or sum(u.gain > most for u in defended) < tried:
        return None
    return max(defended, key=lambda u: u.point.strength or 0.0)


def parts(found: Iterable[Ungated]) -> str:
    """``the columns of shop to bank (+0.82)`` and the like, each once, the largest first."""
    most: dict[str, float] = {}
    for u in found:
        most[u.secret] = max(most.get(u.secret, u.gain), u.gain)
    ordered = sorted(most.items(), key=lambda pair: -pair[1])
    return some([f"{what} ({gain:+z.2f})" for what, gain in ordered], ", ")


def unjudged(summary: Summary) -> list[str]:
    """A line on what leaks where the system is judged although no gate asks, or none."""
    found = deployed(summary)
    where = some(list(dict.fromkeys(place(u.point) for u in found)), ", ")
    return [f"Leaks at {where}, and no gate limits it: {parts(found)}."] if found else []
