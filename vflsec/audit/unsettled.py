"""Questions about a quantity that an audit can answer with a FAIL only, and so sets aside.

A question looks at fewer rows than the order of all values does: of 200 rows 20 are in a tenth, and
an AUC of nothing is spread by 0.06. With a few seeds its interval is wider than any limit, whatever
the system is, and a verdict that waited for it would say nothing of the system. Whether that is so
is told by rows, seeds and the limit alone, before any figure is seen: a question is judged where
its interval, were nothing told, is no wider than the limit. Else, and where its attack is not shown
to be alive, it may fail a gate like any other, and a PASS names it as not answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vflsec.audit import intervals
from vflsec.cell import QUESTIONS

if TYPE_CHECKING:
    from vflsec.audit.gate import Gate
    from vflsec.audit.wording import Candidate

__all__ = ["settled", "unsettled"]

_MOST_SEEDS = 100


def unsettled(row: Mapping[str, Any], seeds: int, dead: str, gate: Gate) -> str:
    """Why a question is not judged, in words; '' if it is, as what is no question always is.

    A gate that names the question, or says what must be found (`detect`), has it judged.

    Args:
        row: a point.
        seeds: behind its figure.
        dead: why its attack is not shown to be alive; '' where it is.
        gate: what was asked.
    """
    share = QUESTIONS.get(str(row.get("of_label") or ""))
    if share is None or gate.attack == row["attack"] or gate.detect is not None:
        return ""
    if not gate.limits_leaks or row["metric"] != "auc":
        return ""
    if dead:
        return f"not shown to be alive: {dead}"
    n = int(row["n"])
    yes = max(1, round(share * n))
    error = math.sqrt((n + 1) / (12 * yes * max(n - yes, 1)))  # Mann and Whitney 1947
    if _within(error, seeds, gate):
        return ""
    least = next((k for k in range(seeds + 1, _MOST_SEEDS) if _within(error, k, gate)), None)
    cure = "more rows" if least is None else f"{least} seeds or more rows"
    return f"{yes} of {n} rows on {seeds} seeds; it takes {cure}"


def _within(error: float, seeds: int, gate: Gate) -> bool:
    """Whether an interval of as many seeds of that spread is no wider than the limit."""
    half = intervals.t_half_width(seeds, gate.confidence, "upper")
    return half is not None and 2 * half * error <= gate.threshold


def settled(
    found: Sequence[Candidate], beyond: Sequence[Candidate], gate: Gate
) -> tuple[list[Candidate], str]:
    """What a verdict weighs, and what it leaves unanswered in words, or ''.

    Args:
        found: all that was measured; where it is questions alone that are not settled, they are
            weighed all the same, for nothing else answers the gate.
        beyond: those that fail.
        gate: what was asked.
    """
    failing = {id(c) for c in beyond}
    why = {id(c): unsettled(c.row, c.n, c.dead, gate) for c in found if id(c) not in failing}
    kept = [c for c in found if not why.get(id(c))]
    if not kept:
        return list(found), ""
    open_ = {c.name: why[id(c)] for c in found if why.get(id(c))}
    said = "; ".join(f"{name} ({text})" for name, text in open_.items())
    return kept, f"not answered here, where it could have failed only: {said}" if said else ""
