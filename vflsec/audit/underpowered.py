"""Questions about a quantity that an audit can answer with a FAIL only, and so sets aside.

A question looks at fewer rows than the order of all values does: of 200 rows 20 are in a tenth, and
an AUC of nothing is spread by 0.07. With a few seeds its interval is wider than any limit, whatever
the system is, and a verdict that waited for it would say nothing of the system. Whether that is so
is told by rows, seeds and the limit alone, before any figure is seen: a question is judged where
its interval, were nothing told, is no wider than the limit. Else, and where its attack is not shown
to be alive, it may fail a gate like any other, and a PASS names it as not answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vflsec.audit import intervals
from vflsec.audit.gate_selection import bare
from vflsec.specs import QUESTIONS, asked

if TYPE_CHECKING:
    from vflsec.audit.gate import Gate
    from vflsec.audit.gate_candidate import Candidate

__all__ = ["Unsettled", "settled", "unsettled"]

_MOST_SEEDS = 100


@dataclass(frozen=True)
class Unsettled:
    """A question that is not judged: `attack`, its `question`, and why.

    Attributes:
        dead: why the attack is not shown to be alive; '' where rows are too few.
        rows, seeds: that it was scored on.
        takes: seeds that settle it; None where more than :data:`_MOST_SEEDS` do, or none.
    """

    attack: str
    question: str
    dead: str = ""
    rows: int = 0
    seeds: int = 0
    takes: int | None = None


def unsettled(row: Mapping[str, Any], seeds: int, dead: str, gate: Gate) -> Unsettled | None:
    """Why a question is not judged; None if it is, as what is no question always is.

    A gate that names the question, or says what must be found (`detect`), has it judged.

    Args:
        row: a point.
        seeds: behind its figure.
        dead: why its attack is not shown to be alive; '' where it is.
        gate: what was asked.
    """
    question, name = str(row.get("of_label") or ""), str(row["attack"])
    if question not in QUESTIONS or gate.attack == name or gate.detect is not None:
        return None
    if not gate.limits_leaks or row["metric"] != "auc":
        return None
    found = Unsettled(bare(name), question, dead, int(row["n"]), seeds)
    if dead:
        return found
    yes = max(1, round(QUESTIONS[question] * found.rows))
    # of an AUC of nothing (Mann and Whitney 1947), and of its difference from a control's
    error = math.sqrt(2 * (found.rows + 1) / (12 * yes * max(found.rows - yes, 1)))

    def within(k: int) -> bool:
        half = intervals.t_half_width(k, gate.confidence, "upper")
        return half is not None and 2 * half * error <= gate.threshold

    if within(seeds):
        return None
    takes = next(filter(within, range(seeds + 1, _MOST_SEEDS + 1)), None)
    return Unsettled(found.attack, question, "", found.rows, seeds, takes)


def settled(
    found: Sequence[Candidate], beyond: Sequence[Candidate], gate: Gate
) -> tuple[list[Candidate], list[Unsettled]]:
    """What a verdict weighs, and the questions that it leaves unanswered.

    Args:
        found: all that was measured; where it is questions alone that are not settled, they are
            weighed all the same, for nothing else answers the gate.
        beyond: those that fail.
        gate: what was asked.
    """
    failing = {id(c) for c in beyond}
    each = [None if id(c) in failing else unsettled(c.row, c.n, c.dead, gate) for c in found]
    kept = [c for c, why in zip(found, each, strict=True) if why is None]
    return (kept, [why for why in each if why]) if kept else (list(found), [])


def in_words(left: Sequence[Unsettled]) -> str:
    """What a PASS leaves unanswered, or ''."""
    out, few = [], [u for u in left if not u.dead]
    if few:
        takes = [u.takes for u in few]
        enough = "" if None in takes else f"{max(k for k in takes if k)} seeds or "
        out.append(
            f"{few[0].seeds} seeds of {min(u.rows for u in few)} rows do not answer whether a "
            f"value is {_listed(few)}, which could have failed the gate only; {enough}more rows "
            "would do"
        )
    for u in (u for u in left if u.dead):
        out.append(
            f"{u.attack} is not shown to tell whether a value is {asked(u.question)} ({u.dead}), "
            "so its silence there proves nothing"
        )
    return "; and ".join(dict.fromkeys(out))


def _listed(few: Iterable[Unsettled]) -> str:
    by: dict[str, dict[str, None]] = {}
    for u in few:
        by.setdefault(u.attack, {})[asked(u.question)] = None
    said: dict[tuple[str, ...], list[str]] = {}
    for attack, what in by.items():
        said.setdefault(tuple(what), []).append(attack)
    return ", or ".join(f"{' or '.join(w)} ({' and '.join(names)})" for w, names in said.items())
