"""Thresholds on what leaks and what it costs, and verdicts that rest on intervals.

PASS when the upper bound is within the threshold, FAIL when the lower bound is beyond it,
INCONCLUSIVE between. An attack that is not shown to be alive at that place cannot pass a system: it
may be broken. It can fail one, for a leak that was measured needs no other proof. Nor does a system
pass where an attack ranks in reverse and turned round might be beyond the threshold, be it in its
surest rows alone (of a figure that was not measured turned round: where its AUC surely is in
reverse), or where the evidence is thin: :data:`MIN_SEEDS`, :data:`MIN_ROWS`, every planned seed,
and figures that differ.
A PASS whose audit would only have found a leak above the limit says so; a gate with `detect` does
not pass then. Questions about a quantity that so few rows and seeds cannot answer may fail a gate,
but do not keep it open (:mod:`vflsec.audit.underpowered`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vflsec.audit import intervals, verdict_text
from vflsec.audit.controls import Leakage
from vflsec.audit.dosing import Doses
from vflsec.audit.gate_candidate import Candidate, mirror, single
from vflsec.audit.gate_selection import answer, left_out, limits, named, selected
from vflsec.audit.leakage import rows_of
from vflsec.audit.metrics import METRICS, reach
from vflsec.audit.point import Point
from vflsec.audit.reversed_ranking import ranking
from vflsec.audit.rounding import exact
from vflsec.audit.underpowered import in_words as open_questions
from vflsec.audit.underpowered import settled
from vflsec.audit.validated import Alive, Place, place_of
from vflsec.audit.verdict_text import TASK
from vflsec.core import check
from vflsec.core.attack import TARGETS
from vflsec.specs import QUESTIONS

__all__ = ["LEAST_CONFIDENCE", "MIN_ROWS", "MIN_SEEDS", "Gate", "Verdict", "exit_code", "judge"]

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
REPORTED = ("cap", "dcs")
MIN_SEEDS, MIN_ROWS = 3, 20
"""The least evidence that a PASS on an attack's figure rests on."""
LEAST_CONFIDENCE = 0.8
USUAL = 0.95
_PLACE = ("dataset", "algorithm", "defense", "strength")


@dataclass(frozen=True)
class Gate:
    """One threshold. Give exactly one of `max` and `min`.

    Attributes:
        metric: ``advantage`` (over all controls, in the primary metric), an attack metric
            such as ``auc`` or ``accuracy``, ``utility``, or ``utility_drop`` (undefended minus
            defended).
        max: the mean over seeds must not exceed it.
        min: the mean over seeds must not fall below it.
        attack, adversary, dataset, algorithm, phase, split: exact name, or ``*`` for all; `attack`
            is a label or the bare name.
        target: what attacks guess, as ``label`` or ``feature``; ``*`` for all.
        defense: label or bare name, of a stack all names in order (``iso + noise``); ``*`` all,
            ``none`` the undefended run, ``defended`` all but the undefended.
        strength: one strength, None for all.
        of: metric whose advantage is meant; empty takes the primary one.
        confidence: of each one-sided bound, at least :data:`LEAST_CONFIDENCE`.
        detect: what an audit must have been able to find to pass (a maximum of the advantage only):
            the least leak that it would have found, by planted leaks where there are any, must not
            exceed it. None: a PASS stands, with a warning where that leak exceeds `max`.
        name: for reports.

    Raises:
        ConfigError: a gate that makes no sense, or that cannot fail because its limit is beyond
            what the metric can reach.
    """

    metric: str = "advantage"
    max: float | None = None
    min: float | None = None
    attack: str = "*"
    adversary: str = "*"
    dataset: str = "*"
    algorithm: str = "*"
    phase: str = "*"
    split: str = "*"
    target: str = "*"
    defense: str = "*"
    strength: float | None = None
    of: str = ""
    confidence: float = USUAL
    detect: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.metric in REPORTED:
            raise check.fail(
                "gate: metric", "one that does not depend on the grid", self.metric,
                "CAP and DCS are reported, never gated; gate the advantage and the utility.",
            )  # fmt: skip
        check.one_of("gate: metric", self.metric, ("advantage", *TASK, *METRICS, "epsilon_lower"))
        if (self.max is None) == (self.min is None):
            raise check.fail("gate: max, min", "given one and not both", (self.max, self.min))
        check.finite("gate: threshold", self.threshold)
        check.in_unit("gate: confidence", self.confidence, high_open=True)
        if self.confidence < LEAST_CONFIDENCE:
            raise check.fail(
                "gate: confidence", f"at least {LEAST_CONFIDENCE:g}", self.confidence,
                "Bounds that are wrong more often than that decide nothing.",
            )  # fmt: skip
        if self.of:
            check.one_of("gate: of", self.of, METRICS)
        check.one_of("gate: target", self.target, ("*", *TARGETS))
        low, high = reach(self.metric, self.of)
        if (self.max is not None and self.max >= high) or (
            self.min is not None and self.min <= low
        ):
            what = self.metric + (f" of {self.of}" if self.of else "")
            rule = f"below {high:g}" if self.max is not None else f"above {low:g}"
            raise check.fail(
                f"gate: {'min' if self.max is None else 'max'}",
                f"{rule}, which is as far as {what} can reach", self.threshold,
                "Beyond that the gate cannot fail: no result could fail it.",
            )  # fmt: skip
        if self.detect is not None:
            if not self.limits_leaks:
                raise check.fail(
                    "gate: detect", 'given only beside a max of metric = "advantage"', self.detect
                )
            check.positive("gate: detect", self.detect)

    @property
    def threshold(self) -> float:
        """The number given as `max` or `min`."""
        return self.max if self.max is not None else self.min  # type: ignore[return-value]

    @property
    def label(self) -> str:
        """The name, or all that is asked but where: ``advantage of direction <= 0.05``."""
        if self.name:
            return self.name
        sign = "<=" if self.max is not None else ">="
        kind = "attack" if self.target == "*" else f"{self.target} attack"
        who = f" in {self.of}" if self.of else ""
        if self.metric not in (*TASK, "epsilon_lower"):
            who += f" of {f'any {kind}' if self.attack == '*' else self.attack}"
        who += "".join(
            said.format(asked)
            for said, asked in ((" by {}", self.adversary), (" on {} rows", self.split),
                                (" after {}", self.phase))
            if asked != "*"
        )  # fmt: skip
        sure = "" if self.confidence == USUAL else f" at {100 * self.confidence:g}%"
        found = "" if self.detect is None else f", having found {exact(self.detect)}"
        return f"{self.metric}{who} {sign} {exact(self.threshold)}{sure}{found}"

    @property
    def must_find(self) -> float:
        """The leak that an audit should be able to find before it passes."""
        return self.threshold if self.detect is None else self.detect

    @property
    def limits_leaks(self) -> bool:
        """Whether it bounds the advantage from above, in the units of what would be found."""
        return self.metric == "advantage" and self.max is not None

    @property
    def needs_alive(self) -> bool:
        """Whether passing takes an attack that is known to work.

        It does where the gate limits what an attack reaches.
        """
        return limits(self)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one gate at one deployed point (defense and strength).

    Attributes:
        gate: what was asked.
        verdict: ``PASS``, ``FAIL`` or ``INCONCLUSIVE``.
        value: mean over seeds of the attack that decides (the largest, for a maximum).
        low, high: one-sided bounds at the gate's confidence, of the extreme over all attacks.
        threshold: of the gate.
        n: seeds behind `value`.
        reason: one sentence.
        dataset, algorithm, defense, strength: the point; empty where nothing could be judged.
        attack, adversary, split, phase: the one that decides.
        more_seeds: how many more seeds would decide an open verdict, or let a PASS find a leak of
            the limit and answer every question; None if seeds are not what is missing, or too many
            are.
        detectable: by attack, the least leakage that would have been shown to be above 0 with a
            chance of 0.8, from the spread over seeds; empty where the gate asks about no attack.
        dosed: the same by planted leaks laid over what the attack saw; None where none was found,
            without the attacks that were not dosed.
        dead: places of attacks that keep it open because nothing shows that they work, as
            :class:`vflsec.audit.validated.Place`.
        stuck: whether it is open and no number of seeds would decide it.
        warning: of a PASS, why it says little: this audit would only have found a leak above the
            limit, the system (or for its cost the undefended one) is not shown to beat guessing,
            the figure is a lower bound, or an error that was given a maximum, it cannot rise by the
            limit, or attacks have none.
    """

    gate: Gate
    verdict: str
    value: float | None
    low: float | None
    high: float | None
    threshold: float
    n: int
    reason: str
    dataset: str = ""
    algorithm: str = ""
    defense: str = ""
    strength: float | None = None
    attack: str = ""
    adversary: str = ""
    phase: str = ""
    split: str = ""
    more_seeds: int | None = None
    detectable: Mapping[str, float] = field(default_factory=dict)
    dosed: Mapping[str, float | None] = field(default_factory=dict)
    warning: str = ""
    dead: Sequence[Mapping[str, Any]] = ()
    stuck: bool = False


def judge(
    summary: Sequence[Point], gates: Iterable[Gate], alive: Alive, doses: Doses | None = None
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
        alive: what is shown to work where, of :func:`vflsec.audit.validated.alive`.
        doses: the least planted leaks that were found, of
            :func:`vflsec.audit.dosing.least_found`.
    """
    rows = rows_of(summary)
    return [v for gate in gates for v in _judge(rows, gate, alive, doses or {})]


def _judge(
    rows: Sequence[Mapping[str, Any]], gate: Gate, alive: Alive, doses: Doses
) -> list[Verdict]:
    points: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    guessing = verdict_text.Guessing.by_training(rows)
    attacks = [r for r in rows if r["attack"]]
    mains = {answer(r): r for r in attacks if r["metric"] == r["primary"]}
    rankings = {answer(r): r for r in attacks if ranking(r)}
    for r in rows:
        if selected(r, gate):
            strength = None if r["strength"] != r["strength"] else r["strength"]
            points[r["dataset"], r["algorithm"], r["defense"], strength].append(r)
    if not points:
        reason = f"Nothing that was measured answers the gate '{gate.label}'."
        return [Verdict(gate, INCONCLUSIVE, None, None, None, gate.threshold, 0, reason)]
    unasked = left_out(attacks, gate)
    return [
        _point(
            key, of, gate, alive, doses, (mains, rankings), guessing.get(key[:2]),
            unasked.get(key, ()),
        )
        for key, of in points.items()
    ]  # fmt: skip


def _candidate(
    row: Mapping[str, Any], gate: Gate, alive: Alive, rankings: Mapping[Any, Mapping[str, Any]]
) -> Candidate | None:
    column = gate.metric if gate.metric in ("advantage", *TASK) else "value"
    if row["status"] != "ok" or not int(row[f"{column}_seeds"]):
        return None
    sign = 1 if gate.max is not None else -1
    leak = Leakage.of(row) if column == "advantage" else single(row, column)
    if leak is None:
        return None
    missing: Place = place_of(row)
    shown, why = alive.get(missing, (False, "no evidence was given"))
    asked = gate.needs_alive
    own = int(row.get("turned_seeds") or 0) > 0
    ranks = None if own or not row["attack"] else rankings.get(answer(row))
    turned = (row, column) if own else (ranks, "advantage") if ranks is not None else None
    return Candidate(
        row=row,
        leak=leak,
        sign=sign,
        limit=gate.threshold,
        dead="" if shown or not asked else why or "no evidence was given",
        thin=verdict_text.thin(row, leak, MIN_SEEDS, MIN_ROWS)
        if asked
        else verdict_text.gaps(gate.metric, row, leak)
        if gate.metric in (*TASK, "epsilon_lower")
        else "",
        mirror=mirror(*turned) if asked and turned is not None else None,
        ranking="" if ranks is None else ranks["metric"],
    )


def _point(
    key: tuple[Any, ...],
    rows: Sequence[Mapping[str, Any]],
    gate: Gate,
    alive: Alive,
    doses: Doses,
    beside: tuple[Mapping[Any, Mapping[str, Any]], Mapping[Any, Mapping[str, Any]]],
    guessing: verdict_text.Guessing | None = None,
    unasked: Sequence[str] = (),
) -> Verdict:
    mains, rankings = beside
    pairs = [(r, _candidate(r, gate, alive, rankings)) for r in rows]
    found = [c for _, c in pairs if c is not None]
    missing = [r for r, c in pairs if c is None]
    where: dict[str, Any] = dict(zip(_PLACE, key, strict=True))
    alpha = 1 - gate.confidence
    failed = [r for r in rows if r["failed"]]
    if not found:
        reason = verdict_text.nothing(missing, gate)
        return Verdict(gate, INCONCLUSIVE, None, None, None, gate.threshold, 0, reason, **where)
    beyond, level = _beyond(found, alpha)
    found, left = settled(found, beyond, gate)
    lows = [c.bound("lower", level) for c in found]
    highs = [c.bound("upper", alpha) for c in found]
    known = [x for x in lows if x is not None]
    low = max(known) if known else None
    high = None if any(x is None for x in highs) else max(x for x in highs if x is not None)
    judged = {c.row["attack"] for c in found}
    blocked = [r for r in missing if _blocks(r, gate, judged)]
    within = [c for c, x in zip(found, highs, strict=True) if x is not None and x <= c.most]
    turned = [c for c in within if c.turned(alpha)]
    detectable = verdict_text.detectable(found, alpha * gate.confidence) if gate.needs_alive else {}
    laid = verdict_text.dosed(found, doses) if gate.needs_alive else {}
    blind = None
    more: int | None = None
    dead, stuck = [], False
    if beyond:
        lead = max(beyond, key=lambda c: c.value)
        verdict, reason = FAIL, verdict_text.fails(lead, beyond, gate)
    elif high is None:
        lead = min(found, key=lambda c: c.n)
        verdict, more = INCONCLUSIVE, 5 - lead.n
        reason = f"{lead.name} has {lead.n} seed; an interval takes at least 2, better 5."
    elif failed or blocked:
        lead = max(found, key=lambda c: c.value)
        verdict, reason = INCONCLUSIVE, verdict_text.broken(failed, blocked)
    elif sure := [c for c in turned if c.in_reverse(alpha)]:
        lead = max(sure, key=lambda c: c.mirrored)
        far = lead.ranking or lead.mirrored > lead.limit
        verdict, more = INCONCLUSIVE, None if far else verdict_text.seeds_to_add(sure, alpha, level)
        reason = verdict_text.reversed_(lead, more, gate)
    elif any(c.dead for c in found):
        lead = max((c for c in found if c.dead), key=lambda c: c.value)
        verdict = INCONCLUSIVE
        names = ", ".join(sorted({c.name for c in found if c.dead}))
        reason = f"Not shown to be alive, so silence proves nothing: {names} ({lead.dead})."
        dead = [place_of(c.row)._asdict() for c in found if c.dead]
    elif len(within) < len(found) or turned:
        verdict, open_ = INCONCLUSIVE, [c for c in found if c not in within]
        more = verdict_text.seeds_to_add([*open_, *turned], alpha, level)
        if open_:
            stuck = more is None
            lead = max(open_, key=lambda c: c.value)
            reason = verdict_text.between(
                lead, more, gate, level if lead.value > lead.most else alpha
            )
        else:
            lead = max(turned, key=lambda c: c.mirrored)
            reason = verdict_text.either_way(lead, more, gate)
    elif any(c.thin for c in found):
        lead = next(c for c in found if c.thin)
        verdict = INCONCLUSIVE
        reason = f"Too little to pass on: {lead.thin}."
        more = MIN_SEEDS - lead.n if lead.n < MIN_SEEDS else None
    else:
        blind = verdict_text.Blind.of(found, detectable, laid, gate)
        lead = found[int(np.argmax([x for x in highs if x is not None]))]
        verdict = PASS
        reason = verdict_text.passes(
            lead, high, found, missing, gate
        ) + verdict_text.would_have_found(detectable, laid, gate)
    warned: list[str] = []
    if blind is not None:
        more = blind.more
        if gate.detect is None:
            warned.append(blind.says)
            reason += blind.adds
        else:
            lead, verdict = blind.lead, INCONCLUSIVE
            reason = f"Too little to pass on: {blind.says}."
    if verdict == PASS:
        primary = ((c, mains.get(answer(c.row))) for c in found)
        idle = (
            open_questions(left),
            verdict_text.worthless(found[0].row, gate, guessing),
            verdict_text.cramped(primary, gate),
            verdict_text.unasked(unasked, gate),
            verdict_text.inverted(gate),
        )
        warned += filter(None, idle)
        more = max([more or 0, *(u.takes - u.seeds for u in left if u.takes)]) or None
        reason += "".join(f" {said[0].upper()}{said[1:]}." for said in idle if said)
    sign = 1 if gate.max is not None else -1
    if sign == -1:
        low, high = _minus(high), _minus(low)
    who: dict[str, Any] = {k: lead.row[k] for k in ("attack", "adversary", "phase", "split")}
    where |= {**who, "more_seeds": more, "detectable": detectable, "dosed": laid}
    where |= {"dead": dead, "stuck": stuck}
    where["warning"] = "; and ".join(warned) if verdict == PASS else ""
    value = sign * lead.value
    ends = reach(gate.metric, gate.of or lead.row["primary"])
    low, high = intervals.within(low, ends), intervals.within(high, ends)
    return Verdict(gate, verdict, value, low, high, gate.threshold, lead.n, reason, **where)


def _beyond(found: Sequence[Candidate], alpha: float) -> tuple[list[Candidate], float]:
    """The attacks that fail, and the level at which the one most surely beyond is tested."""
    p = [c.p_beyond() for c in found]
    adjusted, kept = intervals.conditional_holm(p, 1 - alpha)
    beyond = [c for c, x in zip(found, adjusted, strict=True) if x < alpha]
    return beyond, alpha * (1 - alpha) / max(kept, 1)


def _blocks(row: Mapping[str, Any], gate: Gate, judged: set[str]) -> bool:
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


def _minus(x: float | None) -> float | None:
    return None if x is None else -x


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """0 if all gates passed, 1 if one failed, 3 if one is inconclusive and none failed."""
    found = {v.verdict for v in verdicts}
    return 1 if FAIL in found else 3 if INCONCLUSIVE in found else 0
