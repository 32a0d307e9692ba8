"""Verdicts of gates from the points of an audit.

PASS when the upper bound is within the threshold, FAIL when the lower bound is beyond it,
INCONCLUSIVE between; :mod:`vflsec.audit.gate_rules` holds the whole policy. Questions about a
quantity that so few rows and seeds cannot answer may fail a gate, but do not keep it open
(:mod:`vflsec.audit.underpowered`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vflsec.audit import intervals, verdict_text
from vflsec.audit.controls import Against, Leakage
from vflsec.audit.dosing import Doses
from vflsec.audit.gate import (
    EPSILON,
    PASS,
    TASK,
    Gate,
    Reason,
    Rule,
    Ruling,
    Shortfall,
    Verdict,
    format_warnings,
)
from vflsec.audit.gate_candidate import (
    STANDING_IN,
    Candidate,
    as_against,
    as_leakage,
    choose_figure,
)
from vflsec.audit.gate_rules import Weighed, decide
from vflsec.audit.gate_selection import is_named, is_selected, left_out
from vflsec.audit.metrics import ERROR_REMOVED, find_reach
from vflsec.audit.point import Estimate, Identity, Point, Training
from vflsec.audit.underpowered import Unanswered, explain_unanswered, set_aside
from vflsec.audit.validated import NO_EVIDENCE, Validated
from vflsec.runtime.grouping import group_by
from vflsec.specs import DECLINED, QUESTIONS


@dataclass(frozen=True)
class _Audit:
    """What a point is judged by, beside its own attacks.

    Attributes:
        points: all of them.
        validated, doses: of :func:`judge`.
        primary, rankings: by answer, its point in the primary metric, and the one by which it is
            looked at with its labels flipped.
        standing_in: by answer, its points in metrics that stand in for others, in their order.
        guessing: what guessing reaches in the main task, by data set and algorithm.
    """

    points: Sequence[Point]
    validated: Validated
    doses: Doses
    primary: Mapping[Identity, Point]
    standing_in: Mapping[Identity, Sequence[Point]]
    rankings: Mapping[Identity, Point]
    guessing: Mapping[Training, verdict_text.Guessing]

    @classmethod
    def of(cls, points: Sequence[Point], validated: Validated, doses: Doses) -> _Audit:
        attacks = [p for p in points if p.attack]
        primary = {p.answer: p for p in attacks if p.metric == p.primary}
        rankings = {p.answer: p for p in attacks if p.is_ranking}
        standing_in = group_by((p for p in attacks if p.metric in STANDING_IN), lambda p: p.answer)
        guessing = verdict_text.Guessing.by_algorithm(points)
        return cls(points, validated, doses, primary, standing_in, rankings, guessing)

    def figures(self, point: Point) -> list[Point]:
        """The primary point of the same answer, and those that may stand in for it."""
        main = self.primary.get(point.answer)
        return [*([] if main is None else [main]), *self.standing_in.get(point.answer, ())]


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
            :func:`vflsec.audit.dosing.find_least_dose`.
    """
    audit = _Audit.of(summary, validated, doses or {})
    return [verdict for gate in gates for verdict in _judge_gate(gate, audit)]


def weigh(summary: Sequence[Point], gate: Gate, validated: Validated) -> dict[Training, Weighed]:
    """What a gate weighs at every training it selects, without those where it finds no figure.

    Args:
        summary, validated: as for :func:`judge`.
        gate: one that is asked.
    """
    audit = _Audit.of(summary, validated, {})
    found = {at: _weigh_point(of, gate, audit) for at, of in _select(gate, audit).items()}
    return {at: of[0] for at, of in found.items() if of is not None}


def _select(gate: Gate, audit: _Audit) -> dict[Training, list[Point]]:
    return group_by((p for p in audit.points if is_selected(p, gate)), lambda p: p.training)


def _judge_gate(gate: Gate, audit: _Audit) -> list[Verdict]:
    points = _select(gate, audit)
    if not points:
        reason = f"Nothing measured answers '{gate.label}'."
        return [Verdict.about(Training(), gate, Ruling(Rule.NOTHING_SELECTED, reason))]
    unasked = left_out((p for p in audit.points if p.attack), gate)
    return [_judge_point(at, of, gate, audit, unasked.get(at, ())) for at, of in points.items()]


def _judge_point(
    at: Training, points: Sequence[Point], gate: Gate, audit: _Audit, unasked: Sequence[str]
) -> Verdict:
    found = _weigh_point(points, gate, audit)
    if found is None:
        reason = verdict_text.format_nothing(points, gate)
        return Verdict.about(at, gate, Ruling(Rule.NOTHING_MEASURED, reason))
    weighed, left, low = found
    lead, ruling = decide(weighed)
    more, warned = ruling.more_seeds, verdict_text.find_seed_apart(lead)
    if ruling.rule.verdict == PASS:
        warned = [*_find_warnings(weighed, left, unasked, audit), *warned]
        more = max([more or 0, *(u.takes - u.seeds for u in left if u.takes)]) or None
    ruling = replace(
        ruling, reason=ruling.reason + format_warnings(warned), more_seeds=more,
        warnings=(*ruling.warnings, *warned),
    )  # fmt: skip
    low, high = _turn(low, weighed.high, gate, lead)
    return Verdict.about(
        lead.point, gate, ruling, value=lead.sign * lead.value, low=low, high=high, n=lead.n,
        judged_by=lead.judged_by,
        attacks=tuple(dict.fromkeys(c.name for c in weighed.found if c.point.attack)),
        detectable=weighed.detectable, dosed=weighed.dosed, units=weighed.units,
    )  # fmt: skip


def _candidate(point: Point, gate: Gate, audit: _Audit) -> Candidate | None:
    """A point as a gate weighs it; None where it has no figure."""
    figure = _figure(point, gate)
    leak = point.leakage if gate.metric == "advantage" else as_leakage(figure)
    if point.status != "ok" or not figure.seeds or leak is None:
        return None
    reversed_, metric, unproven = None, "", None
    if gate.needs_validated:
        reversed_, metric = _reversed(point, gate, audit)
        found = audit.validated.get(point.place, NO_EVIDENCE)
        unproven = None if found.validated else Reason(found.code, found.text or NO_EVIDENCE.text)
    return Candidate(
        point=point,
        leak=leak,
        sign=1 if gate.max is not None else -1,
        limit=gate.threshold,
        not_validated=unproven,
        shortfall=_find_shortfall(point, leak, gate, audit),
        reversed=reversed_,
        reversed_metric=metric,
    )


def _find_shortfall(point: Point, leak: Leakage, gate: Gate, audit: _Audit) -> Reason | None:
    if gate.needs_validated:
        main = audit.primary.get(point.answer)
        if point.metric == ERROR_REMOVED and main is not None and main.leakage is not None:
            return verdict_text.find_shortfall(main, main.leakage)  # equal figures, ties
        return verdict_text.find_shortfall(point, leak)
    n, planned = leak.least.n, point.planned
    if n >= planned or gate.metric not in (*TASK, EPSILON):
        return None
    text = f"{gate.metric} has {n} of {planned} seeds"
    return Reason(Shortfall.MISSING_SEEDS, text)


def _figure(point: Point, gate: Gate) -> Estimate:
    """The figure of a point that a gate asks about."""
    if gate.metric in ("advantage", *TASK):
        found: Estimate = getattr(point, gate.metric)
        return found
    return point.value


def _reversed(point: Point, gate: Gate, audit: _Audit) -> tuple[Against | None, str]:
    """The figure with its labels flipped; where it has none, that of its ranking, and in what."""
    flipped = point.mirrored if gate.metric == "advantage" else point.turned
    if flipped.seeds:
        return as_against(flipped), ""
    ranks = audit.rankings.get(point.answer) if point.attack else None
    return (None, "") if ranks is None else (as_against(ranks.mirrored), ranks.metric)


def _weigh_point(
    points: Sequence[Point], gate: Gate, audit: _Audit
) -> tuple[Weighed, list[Unanswered], float | None] | None:
    """What the rules look at, the questions left open, and the lower bound of the maximum; None
    where there is no figure.
    """

    def ask(p: Point) -> Candidate | None:
        return _candidate(p, gate, audit)

    pairs = [(p, ask(p)) for p in points]
    every = [choose_figure(c, gate, audit.figures(p), ask) for p, c in pairs if c is not None]
    missing = _leave_out_counted([p for p, c in pairs if c is None], every)
    if not every:
        return None
    failed = [p for p in points if p.failed]
    alpha = 1 - gate.confidence
    beyond, level = _find_beyond(every, alpha)
    found, left = set_aside(every, beyond, gate)
    lows = [x for c in found if (x := c.bound("lower", level)) is not None]
    judged = {c.point.attack for c in found}
    leaks = gate.needs_validated
    weighed = Weighed(
        gate, alpha, level, found, beyond, [c.bound("upper", alpha) for c in found], missing,
        failed, [p for p in missing if _blocks(p, gate, judged)],
        verdict_text.find_detectable(found, alpha * gate.confidence) if leaks else {},
        verdict_text.find_dosed(found, audit.doses) if leaks else {},
        {c.name: c.point.metric for c in found} if leaks else {},
    )  # fmt: skip
    return weighed, left, max(lows, default=None)


def _leave_out_counted(missing: Sequence[Point], found: Sequence[Candidate]) -> list[Point]:
    """Points without a figure, but for attacks that declined on some seeds: the others count it."""
    if not any(p.status == DECLINED for p in missing):
        return [*missing]
    counted = {c.point.run for c in found}
    return [p for p in missing if p.status != DECLINED or p.run not in counted]


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
    gate, point = weighed.gate, weighed.found[0].point
    guessing = audit.guessing.get(point.system)
    found = [
        *explain_unanswered(left),
        verdict_text.find_worthless(point, gate, guessing),
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
    ends = find_reach(gate.metric, lead.judged_by or gate.of or lead.point.primary)
    return intervals.clip_bound(low, ends), intervals.clip_bound(high, ends)


def _blocks(point: Point, gate: Gate, judged: set[str]) -> bool:
    """Whether an attack without a figure stands in the way of PASS.

    What failed or gave no figure does. What cannot be done here (not observable, not applicable)
    does only if the gate names it and it was judged nowhere else; a question about a quantity is
    not named by the name of its attack, of which something else was judged.
    """
    if point.status in ("ok", "error"):
        return True
    if point.of_label in QUESTIONS:
        return gate.attack != "*" and not any(is_named(name, gate.attack) for name in judged)
    return gate.attack != "*" and point.attack not in judged
