"""Verdicts of gates from the points of an audit.

PASS when the upper bound is within the threshold, FAIL when the lower bound is beyond it,
INCONCLUSIVE between; :mod:`vflsec.audit.gate_rules` holds the whole policy. Questions about a
quantity that so few rows and seeds cannot answer may fail a gate, but do not keep it open
(:mod:`vflsec.audit.underpowered`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vflsec.audit import intervals, verdict_text
from vflsec.audit.controls import Leakage
from vflsec.audit.dosing import Doses
from vflsec.audit.gate import EPSILON, PASS, TASK, Gate, Reason, Rule, Verdict, format_warnings
from vflsec.audit.gate_candidate import Candidate, as_leakage, find_reversed
from vflsec.audit.gate_rules import Weighed, decide
from vflsec.audit.gate_selection import answer, left_out, named, selected
from vflsec.audit.leakage import TRAINING, rows_of
from vflsec.audit.metrics import reach
from vflsec.audit.point import Point
from vflsec.audit.reversed_ranking import ranking
from vflsec.audit.room import DECIDES, Figures, choose_figure
from vflsec.audit.underpowered import Unanswered, explain_unanswered, set_aside
from vflsec.audit.validated import NO_EVIDENCE, Validated, place_of
from vflsec.specs import QUESTIONS

__all__ = ["judge"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Audit:
    """What a point is judged by, beside its own rows.

    Attributes:
        rows: all points.
        validated, doses: of :func:`judge`.
        primary, exposed, rankings: by answer, its point in the primary metric, the one in exposed
            people, and the one by which it is looked at with its labels flipped.
        guessing: what guessing reaches in the main task, by data set and algorithm.
    """

    rows: Sequence[Row]
    validated: Validated
    doses: Doses
    primary: Mapping[Any, Row]
    exposed: Mapping[Any, Row]
    rankings: Mapping[Any, Row]
    guessing: Mapping[tuple[str, str], verdict_text.Guessing]

    @classmethod
    def of(cls, rows: Sequence[Row], validated: Validated, doses: Doses) -> _Audit:
        attacks = [r for r in rows if r["attack"]]
        primary = {answer(r): r for r in attacks if r["metric"] == r["primary"]}
        rankings = {answer(r): r for r in attacks if ranking(r)}
        exposed = {answer(r): r for r in attacks if r["metric"] == DECIDES}
        guessing = verdict_text.Guessing.by_training(rows)
        return cls(rows, validated, doses, primary, exposed, rankings, guessing)

    def figures(self, row: Row) -> Figures:
        """Points of the same answer in other metrics."""
        return Figures(self.primary.get(answer(row)), self.exposed.get(answer(row)))


def judge(
    summary: Sequence[Point],
    gates: Iterable[Gate],
    validated: Validated,
    doses: Doses | None = None,
) -> list[Verdict]:
    """The verdict of every gate at every point it selects (data, algorithm, defense, strength).

    An attack's advantage is a statement about all controls, see
    :class:`vflsec.audit.controls.Leakage`. Several attacks under one gate are one claim about their
    maximum, and harmless ones fail together in at most alpha of audits. An attack that passes by
    itself (upper bound within the threshold) cannot be what is beyond it: it is set aside, and the
    others are tested by Holm at alpha times the confidence, which pays for having looked
    (:func:`vflsec.audit.intervals.conditional_holm`). The rule is the same for one attack and for
    many. The lower bound of the maximum is taken at the level of that test. The upper bound needs
    no correction: the claim "all are within" passes only if every one passes at level alpha
    (intersection-union, Berger 1982).

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`.
        gates: what to judge; a gate that selects nothing is INCONCLUSIVE.
        validated: what is shown to work where, of :func:`vflsec.audit.validated.find_validated`.
        doses: the least planted leaks that were found, of
            :func:`vflsec.audit.dosing.least_found`.
    """
    audit = _Audit.of(rows_of(summary), validated, doses or {})
    return [verdict for gate in gates for verdict in _judge_gate(gate, audit)]


def _judge_gate(gate: Gate, audit: _Audit) -> list[Verdict]:
    points: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for r in audit.rows:
        if selected(r, gate):
            strength = None if r["strength"] != r["strength"] else r["strength"]
            points[r["dataset"], r["algorithm"], r["defense"], strength].append(r)
    if not points:
        reason = f"Nothing that was measured answers the gate '{gate.label}'."
        return [Verdict.of_nothing(gate, Rule.NOTHING_SELECTED, reason)]
    unasked = left_out((r for r in audit.rows if r["attack"]), gate)
    return [
        _judge_point(point, rows, gate, audit, unasked.get(point, ()))
        for point, rows in points.items()
    ]


def _judge_point(
    point: tuple[Any, ...], rows: Sequence[Row], gate: Gate, audit: _Audit, unasked: Sequence[str]
) -> Verdict:
    pairs = [(r, _choose_candidate(r, gate, audit)) for r in rows]
    missing = [r for r, c in pairs if c is None]
    where: dict[str, Any] = dict(zip(TRAINING, point, strict=True))
    every = [c for _, c in pairs if c is not None]
    if not every:
        reason = verdict_text.format_nothing(missing, gate)
        return Verdict.of_nothing(gate, Rule.NOTHING_MEASURED, reason, **where)
    failed = [r for r in rows if r["failed"]]
    weighed, left, low = _weigh(every, missing, failed, gate, audit.doses)
    ruling = decide(weighed)
    lead, more, reason, warnings = ruling.lead, ruling.more, ruling.reason, list(ruling.warnings)
    if ruling.verdict == PASS:
        found = _find_warnings(weighed, left, unasked, audit)
        reason += format_warnings(found)[1]
        warnings += found
        more = max([more or 0, *(u.takes - u.seeds for u in left if u.takes)]) or None
    low, high = _turn(low, weighed.high, gate, lead)
    where |= {k: lead.row[k] for k in ("attack", "adversary", "phase", "split")}
    return Verdict(
        gate, ruling.verdict, lead.sign * lead.value, low, high, gate.threshold, lead.n, reason,
        ruling.rule, ruling.detail, lead.judged_by, **where, more_seeds=more,
        attacks=tuple(dict.fromkeys(c.name for c in weighed.found if c.row["attack"])),
        detectable=weighed.detectable, dosed=weighed.dosed, warning=format_warnings(warnings)[0],
        warnings=tuple(w.code for w in warnings), not_validated=ruling.not_validated,
        stuck=ruling.stuck,
    )  # fmt: skip


def _choose_candidate(row: Row, gate: Gate, audit: _Audit) -> Candidate | None:
    """What a point is judged by: its figure, or one that has room for the limit."""
    found = _candidate(row, gate, audit)
    if found is None:
        return None
    return choose_figure(found, gate, audit.figures(row), lambda r: _candidate(r, gate, audit))


def _candidate(row: Row, gate: Gate, audit: _Audit) -> Candidate | None:
    """A point as a gate weighs it; None where it has no figure."""
    column = gate.metric if gate.metric in ("advantage", *TASK) else "value"
    if row["status"] != "ok" or not int(row[f"{column}_seeds"]):
        return None
    leak = Leakage.of(row) if column == "advantage" else as_leakage(row, column)
    if leak is None:
        return None
    reversed_, metric, unproven = None, "", None
    if gate.needs_validated:
        reversed_, metric = _reversed(row, column, audit)
        found = audit.validated.get(place_of(row), NO_EVIDENCE)
        unproven = None if found.validated else found.as_reason()
    return Candidate(
        row=row,
        leak=leak,
        sign=1 if gate.max is not None else -1,
        limit=gate.threshold,
        not_validated=unproven,
        shortfall=_find_shortfall(row, leak, gate),
        reversed=reversed_,
        reversed_metric=metric,
    )


def _find_shortfall(row: Row, leak: Leakage, gate: Gate) -> Reason | None:
    if gate.needs_validated:
        return verdict_text.find_shortfall(row, leak)
    if gate.metric in (*TASK, EPSILON):
        return verdict_text.find_missing_seeds(gate.metric, row, leak)
    return None


def _reversed(row: Row, column: str, audit: _Audit) -> tuple[Any, str]:
    """The figure with its labels flipped; where it has none, that of its ranking, and in what."""
    if int(row.get("turned_seeds") or 0) > 0:
        return find_reversed(row, column), ""
    ranks = audit.rankings.get(answer(row)) if row["attack"] else None
    return (None, "") if ranks is None else (find_reversed(ranks, "advantage"), ranks["metric"])


def _weigh(
    every: Sequence[Candidate], missing: Sequence[Row], failed: Sequence[Row], gate: Gate,
    doses: Doses,
) -> tuple[Weighed, list[Unanswered], float | None]:  # fmt: skip
    """What the rules look at, the questions left open, and the lower bound of the maximum."""
    alpha = 1 - gate.confidence
    beyond, level = _find_beyond(every, alpha)
    found, left = set_aside(every, beyond, gate)
    lows = [x for c in found if (x := c.bound("lower", level)) is not None]
    judged = {c.row["attack"] for c in found}
    leaks = gate.needs_validated
    weighed = Weighed(
        gate, alpha, level, found, beyond, [c.bound("upper", alpha) for c in found], missing,
        failed, [r for r in missing if _blocks(r, gate, judged)],
        verdict_text.find_detectable(found, alpha * gate.confidence) if leaks else {},
        verdict_text.find_dosed(found, doses) if leaks else {},
    )  # fmt: skip
    return weighed, left, max(lows, default=None)


def _find_beyond(found: Sequence[Candidate], alpha: float) -> tuple[list[Candidate], float]:
    """The attacks that fail, and the level at which the one most surely beyond is tested."""
    p = [c.p_beyond() for c in found]
    adjusted, kept = intervals.conditional_holm(p, 1 - alpha)
    beyond = [c for c, x in zip(found, adjusted, strict=True) if x < alpha]
    return beyond, alpha * (1 - alpha) / max(kept, 1)


def _find_warnings(
    weighed: Weighed, left: Sequence[Unanswered], unasked: Sequence[str], audit: _Audit
) -> list[Reason]:
    """Why a PASS says little."""
    gate, row = weighed.gate, weighed.found[0].row
    guessing = audit.guessing.get((row["dataset"], row["algorithm"]))
    found = [
        *explain_unanswered(left),
        verdict_text.find_worthless(row, gate, guessing),
        verdict_text.find_other_metric(unasked, gate),
        verdict_text.find_limits_no_leak(gate),
    ]
    return [w for w in found if w is not None]


def _turn(
    low: float | None, high: float | None, gate: Gate, lead: Candidate
) -> tuple[float | None, float | None]:
    """The bounds as the gate asks for them, where its metric can be."""
    if lead.sign < 0:
        low, high = (None if x is None else -x for x in (high, low))
    ends = reach(gate.metric, lead.judged_by or gate.of or lead.row["primary"])
    return intervals.within(low, ends), intervals.within(high, ends)


def _blocks(row: Row, gate: Gate, judged: set[str]) -> bool:
    """Whether an attack without a figure stands in the way of PASS.

    What failed or gave no figure does. What cannot be done here (not observable, not applicable)
    does only if the gate names it and it was judged nowhere else; a question about a quantity is
    not named by the name of its attack, of which something else was judged.
    """
    if row["status"] in ("ok", "error"):
        return True
    if row.get("of_label") in QUESTIONS:
        return gate.attack != "*" and not any(named(name, gate.attack) for name in judged)
    return gate.attack != "*" and row["attack"] not in judged
