"""What leaks significantly and no gate limits: where the system is judged, and elsewhere.

A headline speaks only of what is judged. A passing audit may hold a leak of columns where gates
limit labels, at the very strength that will be deployed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from vflsec.audit.exposed import EXPOSED
from vflsec.audit.gate import FAIL
from vflsec.audit.leakage_claims import APART, USUAL, LeakageClaim, Quantity, format_secret
from vflsec.audit.summary import Summary
from vflsec.errors import join_some
from vflsec.report.tree import TONES, Tone
from vflsec.report.verdicts import (
    NO_RISE,
    find_judged,
    find_weighed,
    format_deployment,
    format_headline,
    format_place,
    name_rows,
)
from vflsec.runtime.grouping import group_by


def find_ungated(summary: Summary) -> list[LeakageClaim]:
    """Claims that leak and that no gate limits: first where one judges, then the largest.

    A limit on exposed rows is none on the mean over rows, and the reverse. Exposed rows are named
    where the mean is not, and no gate fails for the same.
    """
    at = group_by(summary.points, lambda p: p.training)
    asked = {
        (p.answer, metric in EXPOSED)
        for v in summary.limits if v.gate.needs_validated
        for p in find_weighed(v, at.get(v.training, ()))
        for metric in (p.metric, v.judged_by or p.metric)
    }  # fmt: skip
    leaks = [
        c for c in summary.claims
        if c.is_leak and c.quantity is not Quantity.REVERSED
        and (c.answer, _is_exposed(c)) not in asked
    ]  # fmt: skip
    named = {c.about for c in leaks if not _is_exposed(c)}
    named |= {v.without(*APART) for v in summary.gates if v.verdict == FAIL}
    found = [c for c in leaks if not _is_exposed(c) or c.about not in named]
    judged = find_judged(summary)
    return sorted(found, key=lambda c: (c.training not in judged, -_gain(c)))


def _is_exposed(c: LeakageClaim) -> bool:
    return c.quantity is Quantity.EXPOSED


def _gain(c: LeakageClaim) -> float:
    return c.advantage or 0.0


def _format_gain(c: LeakageClaim) -> str:
    """``+0.35``, or ``198 more of 1,000 rows named``."""
    if not _is_exposed(c):
        return f"{_gain(c):+z.2f}"
    return f"{1000 * _gain(c):,.0f} more of 1,000 {name_rows(is_part=c.is_part)} named"


def _format_who(c: LeakageClaim) -> str:
    """``the columns of shop to bank``: what leaks to whom."""
    return f"the {format_secret(c)} to {c.adversary}"


def find_deployed(summary: Summary) -> list[LeakageClaim]:
    """Those at points that a gate judges, so that a PASS is not about them.

    Gains within what gates allow elsewhere are left to :func:`describe_ungated`.
    """
    most, judged = _allowed(summary), find_judged(summary)
    return [c for c in find_ungated(summary) if c.training in judged and _gain(c) > most]


def find_tone(summary: Summary) -> Tone:
    """How the verdict is to be shown: good where every gate passes without a warning and nothing
    leaks that no gate limits; nothing is good where there is no gate.
    """
    found, _ = format_headline(summary)
    passed = found in ("PASS", NO_RISE)
    if passed and (find_ungated(summary) or any(v.warnings for v in summary.gates)):
        return Tone.WARNING
    return TONES.get(found, Tone.PLAIN)


def _allowed(summary: Summary) -> float:
    """The least advantage that gates allow, of something else, or :data:`USUAL` if that is less."""
    gates = [v.gate for v in summary.limits if v.defense]
    return min([USUAL, *(g.max for g in gates if g.metric == "advantage" and g.max is not None)])


def describe_ungated(summary: Summary) -> list[str]:
    """A line for each attacker and target of :func:`find_ungated`, with where it leaks."""
    lines: dict[str, list[str]] = defaultdict(list)
    judged = find_judged(summary)
    for c in find_ungated(summary):
        also = ", judged" if c.training in judged else ""
        where = f"{_format_gain(c)} {format_deployment(c)} ({c.attack}{also})"
        lines[f"{c.dataset}: {_format_who(c)}"].append(where)
    return [f"{what}, {join_some(of)}" for what, of in lines.items()]


def find_unstopped(summary: Summary, dataset: str) -> list[str]:
    """What leaks without a defense, is limited by no gate, and leaks at every strength tried.

    What no longer gains more than gates allow elsewhere, and did, was stopped.
    """
    here = [c for c in summary.claims if c.dataset == dataset and not c.is_undefended]
    mine = (c for c in find_ungated(summary) if c.dataset == dataset)
    out = []
    for (algorithm, what), of in group_by(mine, lambda c: (c.algorithm, _format_who(c))).items():
        tried = len({c.training for c in here if c.algorithm == algorithm})
        last = _find_last(of, tried, _allowed(summary))
        if last is not None:
            where = format_deployment(last)
            out.append(f"No tested defense stops {what}: {_gain(last):+z.2f} {where}, not gated.")
    return out


def _find_last(of: Sequence[LeakageClaim], tried: int, allowed: float) -> LeakageClaim | None:
    """The leak at the largest strength, if it is there without a defense and at all `tried`."""
    defended = [c for c in of if not c.is_undefended]
    bare = max((_gain(c) for c in of if c.is_undefended), default=0.0)
    most = allowed if bare > allowed else 0.0
    if not tried or not bare or sum(_gain(c) > most for c in defended) < tried:
        return None
    return max(defended, key=lambda c: c.strength or 0.0)


def format_parts(found: Iterable[LeakageClaim]) -> str:
    """``the columns of shop to bank (+0.82)`` and the like, each once, the largest first."""
    most: dict[str, str] = {}
    for c in sorted(found, key=_gain, reverse=True):
        most.setdefault(_format_who(c), _format_gain(c))
    return join_some([f"{what} ({gain})" for what, gain in most.items()])


def describe_unjudged(summary: Summary) -> list[str]:
    """A line on what leaks where the system is judged although no gate asks, or none."""
    found = find_deployed(summary)
    where = join_some(list(dict.fromkeys(map(format_place, found))))
    return [f"Leaks at {where}, and no gate limits it: {format_parts(found)}."] if found else []
