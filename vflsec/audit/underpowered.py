"""Questions about a quantity that an audit can answer with a FAIL only, and so sets aside.

A question looks at fewer rows than the order of all values does: of 200 rows 20 are in a tenth, and
an AUC of nothing is spread by 0.07. With a few seeds its interval is wider than any limit, whatever
the system is, and a verdict that waited for it would say nothing of the system. Whether that is so
is told by rows, seeds and the limit alone, before any figure is seen: a question is judged where
its interval, were nothing told, is no wider than the limit. Else, and where its attack is not
validated, it may fail a gate like any other, and a PASS names it as not answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vflsec.audit import intervals
from vflsec.audit.controls import MOST_FORESEEN
from vflsec.audit.gate import Gate, Reason, Warn
from vflsec.audit.gate_candidate import Candidate
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.point import Point
from vflsec.specs import QUESTIONS, format_question


@dataclass(frozen=True)
class Unanswered:
    """A question that is not judged: `attack`, its `question`, and why.

    Attributes:
        not_validated: why the attack is not shown to work; None where rows are too few.
        rows, seeds: that it was scored on.
        takes: seeds that settle it; None where too many do, or none.
    """

    attack: str
    question: str
    not_validated: Reason | None = None
    rows: int = 0
    seeds: int = 0
    takes: int | None = None


def find_unanswered(
    point: Point, seeds: int, not_validated: Reason | None, gate: Gate
) -> Unanswered | None:
    """Why a question is not judged; None if it is, as what is no question always is.

    A gate that names the question, or says what must be found (`detect`), has it judged.

    Args:
        point: of its attack.
        seeds: behind its figure.
        not_validated: why its attack is not shown to work; None where it is.
        gate: what was asked.
    """
    question, name = point.of_label, point.attack
    if question not in QUESTIONS or gate.attack == name or gate.detect is not None:
        return None
    if not gate.limits_leaks or point.metric != "auc":
        return None
    found = Unanswered(strip_label(name), question, not_validated, point.n, seeds)
    if not_validated:
        return found
    yes = max(1, round(QUESTIONS[question] * found.rows))
    # of an AUC of nothing (Mann and Whitney 1947), and of its difference from a control's
    error = math.sqrt(2 * (found.rows + 1) / (12 * yes * max(found.rows - yes, 1)))

    def within(k: int) -> bool:
        half = intervals.t_half_width(k, gate.confidence, "upper")
        return half is not None and 2 * half * error <= gate.threshold

    if within(seeds):
        return None
    takes = next(filter(within, range(seeds + 1, MOST_FORESEEN * seeds + 1)), None)
    return replace(found, takes=takes)


def set_aside(
    found: Sequence[Candidate], beyond: Sequence[Candidate], gate: Gate
) -> tuple[list[Candidate], list[Unanswered]]:
    """What a verdict weighs, and the questions that it leaves unanswered.

    Args:
        found: all that was measured; where it is questions alone that are not settled, they are
            weighed all the same, for nothing else answers the gate.
        beyond: those that fail.
        gate: what was asked.
    """
    failing = {id(c) for c in beyond}
    each = [
        None if id(c) in failing else find_unanswered(c.point, c.n, c.not_validated, gate)
        for c in found
    ]
    kept = [c for c, why in zip(found, each, strict=True) if why is None]
    return (kept, [why for why in each if why]) if kept else (list(found), [])


def explain_unanswered(left: Sequence[Unanswered]) -> list[Reason]:
    """What a PASS leaves unanswered, each reason once."""
    few = [u for u in left if u.not_validated is None]
    return [
        *([_explain_few(few)] if few else []),
        *dict.fromkeys(
            Reason.warning(
                Warn.QUESTION_NOT_VALIDATED,
                f"{u.attack} for values {format_question(u.question)} ({u.not_validated.text})",
            )
            for u in left
            if u.not_validated is not None
        ),
    ]


def _explain_few(few: Sequence[Unanswered]) -> Reason:
    takes = [u.takes for u in few]
    enough = "" if None in takes else f"seeds ({max(k for k in takes if k)}) or "
    text = (
        f"{few[0].seeds} seeds of {min(u.rows for u in few)} rows for values {_listed(few)}; "
        f"add {enough}rows"
    )
    return Reason.warning(Warn.QUESTION_UNDERPOWERED, text)


def _listed(few: Iterable[Unanswered]) -> str:
    by: dict[str, dict[str, None]] = {}
    for u in few:
        by.setdefault(u.attack, {})[format_question(u.question)] = None
    said: dict[tuple[str, ...], list[str]] = {}
    for attack, what in by.items():
        said.setdefault(tuple(what), []).append(attack)
    return ", or ".join(f"{' or '.join(w)} ({' and '.join(names)})" for w, names in said.items())
