"""A claimed epsilon against a measured one: an audit that finds more than was promised has found a
broken promise.

Every measured value is a lower bound that holds with some confidence in one seed; where the claim
is true, a seed exceeds it with probability alpha at most. So k of n seeds beyond the claim are
judged by the binomial tail P(X >= k), X ~ Bin(n, alpha). A seed has few canaries, and its bound is
far below what is true; so the guesses of all seeds are judged together as well
(:func:`vflsec.epsilon.one_run_bound.compute_p_value`), and so are labels that were released. At
the delta of Gaussian noise epsilon lies where few guesses reach; so noise that a mechanism names is
tested itself (:mod:`vflsec.epsilon.named_noise`). The smallest p-value counts, times their number,
and all are corrected for the number of claims.

Silence is no evidence where the guesser finds nothing anywhere. Tests of named noise and of
released labels say themselves what they would have found; another guesser is validated if it finds
something of the same defense on the same data under the same algorithm, at whatever strength. What
could not have found half the noise is left open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vflsec.audit.gate import EPSILON, Gate, Origin, Rule, Ruling, Verdict
from vflsec.audit.intervals import binomial_tail
from vflsec.audit.point import Identity, Training
from vflsec.audit.result_row import ResultRow
from vflsec.audit.rounding import show_both
from vflsec.audit.validated import Evidence
from vflsec.audit.verdict_text import format_not_validated
from vflsec.epsilon import one_run_bound as coins
from vflsec.epsilon.one_run_bound import Fault, Heard, combine, find_least_noise
from vflsec.epsilon.released_labels import Released, weigh_released

STRICT = 5
"""Noise and released labels are tested at a fifth of the error: of intact mechanisms one in 100 at
most is accused.
"""
HALF = 0.5
"""The share of the noise that an audit must be able to find too little, or it says nothing."""
_UNSAID = ("attack_key", "of_label", "known_rows", "target", "victim", "metric")


@dataclass(frozen=True, slots=True)
class Claimed(Training):
    """What a defense claims at one training.

    Attributes:
        epsilon, delta: the largest over seeds; no epsilon where nothing is claimed.
        by: the claimant, where there are several; '' for any.
        idle: a defense whose hook was never called, which fails.
        confidence: of the measured bounds, where it is not that of the audit.
    """

    epsilon: float | None = None
    delta: float = 0.0
    by: str = ""
    idle: str = ""
    confidence: float | None = None


def judge_claims(
    rows: Iterable[ResultRow], claims: Iterable[Claimed], confidence: float = 0.95,
    share: float = 1.0,
) -> list[Verdict]:  # fmt: skip
    """One verdict for every claim that was measured.

    Args:
        rows: of :func:`vflsec.audit.leakage.complete_rows`, those of the metric ``epsilon_lower``
            among them; the notes of these say whose claim it measures (``defense``), where a point
            has several, and how (:mod:`vflsec.epsilon.measured_claims`).
        claims: one for each training and claimant.
        confidence: at which each measured lower bound holds.
        share: of the error that they may make, see :class:`vflsec.audit.looks.Looks`.
    """
    claims = list(claims)
    made = [c for c in claims if c.epsilon is not None]
    found = _by_place(rows)
    awake = {_place(r) for of in found.values() for r in of if (r.value or 0.0) > 0}
    tested = [
        (at, of, c) for (at, whose), of in found.items() for c in made
        if c.training == at.training and whose in ("", c.by or whose)
    ]  # fmt: skip
    alpha = (1 - confidence) * share / max(len(tested), 1)
    beside = Counter(c.training for c in made)
    out = [_idle(c) for c in claims if c.idle]
    for at, of, c in tested:
        whose = f" of {c.by}" if beside[c.training] > 1 else ""
        weighed = _weigh(of, c, alpha, c.confidence or confidence, _place(of[0]) in awake)
        out.append(_verdict(weighed, at, whose))
    return out


def _by_place(rows: Iterable[ResultRow]) -> dict[tuple[Identity, str], list[ResultRow]]:
    """What was measured, by point, attack and claimant."""
    found: dict[tuple[Identity, str], list[ResultRow]] = defaultdict(list)
    for r in rows:
        if r.metric == EPSILON and r.status == "ok" and r.value is not None:
            found[r.without(*_UNSAID), _claimant(r)].append(r)
    return found


def _claimant(row: ResultRow) -> str:
    return str(row.notes.get("defense", ""))


def _place(row: ResultRow) -> tuple[str, ...]:
    """Where a guesser that finds something is validated."""
    return row.dataset, row.algorithm, row.attack, _claimant(row)


def pair_claims(verdicts: Iterable[Verdict]) -> dict[tuple[str, float | None], tuple[float, float]]:
    """(claimed, measured at least) by (defense, strength), of the verdicts on claims.

    Where one point has several claims, the smallest, and the largest bound measured of it.
    """
    out: dict[tuple[str, float | None], tuple[float, float]] = {}
    for v in verdicts:
        if v.origin == Origin.CLAIM and v.value is not None:
            claimed, low = out.get((v.defense, v.strength), (float("inf"), 0.0))
            if v.threshold < claimed:
                out[v.defense, v.strength] = v.threshold, v.value
            elif v.threshold == claimed:
                out[v.defense, v.strength] = claimed, max(low, v.value)
    return out


def _idle(claim: Claimed) -> Verdict:
    name = claim.idle
    gate = Gate(metric=EPSILON, max=0.0, name=f"{name} does what it claims")
    reason = f"{name} protects nothing here: its hook was never called."
    ruling = Ruling(Rule.DEFENSE_IDLE, reason)
    return Verdict.about(claim.training, gate, ruling, origin=Origin.CLAIM)


@dataclass(frozen=True)
class _Weighed:
    """What the rules look at: one claim and what was measured of it.

    Attributes:
        claimed: epsilon.
        values: lower bounds, one for each seed.
        beyond: how many of them exceed the claim.
        together: the lower bound of all seeds together; 0 where that cannot be had.
        significant: tests that contradict the claim: ``seeds``, ``together``, ``released``,
            ``noise``.
        awake: whether the guesser finds something anywhere.
        who: guesses.
        fault: of the noise, the likeliest.
        power: the largest share of the claimed noise, or of what makes the claimed epsilon, that
            would have been found too little with a chance of 0.8; None where guesses are not told.
        remembered: whether released labels are the same whenever they are asked for.
    """

    claimed: float
    values: Sequence[float]
    beyond: int
    together: float
    significant: frozenset[str]
    awake: bool
    who: str
    fault: Fault | None
    power: float | None
    remembered: bool

    @property
    def top(self) -> float:
        """The largest lower bound."""
        return max(*self.values, self.together)

    @property
    def said(self) -> str:
        """What is measured beside what is claimed."""
        measured, known = show_both(self.top, self.claimed, ".3g", ".4g")
        return f"{self.who} measures epsilon >= {measured}, claimed {known}"


def _confidence(rows: Sequence[ResultRow], usual: float) -> float:
    """That of the bounds: the least that is told, if it is told of all."""
    told = [float(sure) for r in rows if (sure := r.notes.get("confidence")) is not None]
    return min(told, default=usual) if len(told) == len(rows) else usual


def _weigh(
    rows: Sequence[ResultRow], claim: Claimed, alpha: float, confidence: float, awake: bool
) -> _Weighed:
    """The tests of a claim, each at `alpha` over their number."""
    claimed = claim.epsilon or 0.0
    sure = _confidence(rows, confidence)
    values = [float(r.value or 0.0) for r in rows]
    beyond = sum(v > claimed for v in values)
    p, together, guesses, tries = _test_guesses(rows, claimed, claim.delta, sure)
    p["seeds"] = float(binomial_tail(beyond, len(values), 1 - sure))
    heard = [Heard.read(of) for of in _read_notes(rows, "noise")]
    faults = combine(heard)
    fault = min(faults, key=lambda f: faults[f], default=None)
    if fault is not None:
        p["noise"] = STRICT * len(faults) * faults[fault]
    each, power = alpha / len(p), None
    if heard:
        power = find_least_noise(sum(h.numbers for h in heard), each / (STRICT * len(faults)))
    elif guesses:
        power = coins.find_least(guesses, claimed, claim.delta, each / tries)
    return _Weighed(
        claimed, values, beyond, together,
        frozenset(test for test, value in p.items() if value < each),
        awake or bool(heard) or "released" in p,
        rows[0].attack or "The canary audit", fault, power,
        any(of["remembered"] for of in _read_notes(rows, "released")),
    )  # fmt: skip


def _read_notes(rows: Iterable[ResultRow], name: str) -> list[Any]:
    """One note of the rows that have it."""
    return [found for r in rows if (found := r.notes.get(name)) is not None]


def _test_guesses(
    rows: Sequence[ResultRow], claimed: float, delta: float, sure: float
) -> tuple[dict[str, float], float, int, int]:
    """p-values by all guesses together, the bound of these, how many at most there are, and how
    many tests share the error of one.
    """
    p: dict[str, float] = {}
    together = 0.0
    looks = _read_notes(rows, "looks")
    if len(looks) == len(rows) > 1:
        together = coins.bound_together(looks, delta, sure)
        p["together"] = coins.compute_p_value(looks, claimed, delta)
    guesses, tries = sum(of[0][0] for of in looks), len(coins.SHARES)
    released = [Released.read(of) for of in _read_notes(rows, "released")]
    if any(of.guesses for of in released):
        tested = weigh_released(released, claimed, delta)
        p["released"], guesses, tries = STRICT * tested.p, tested.guesses, STRICT * tested.tries
    return p, together, guesses, tries


def _decide(w: _Weighed) -> Ruling:
    """What the first rule that holds says; their order is the policy."""
    seeds = f"{len(w.values)} seeds"
    if w.beyond and "seeds" in w.significant:
        reason = f"{w.said}; {w.beyond} of {seeds} contradict the claim."
        return Ruling(Rule.CLAIM_CONTRADICTED, reason)
    for test, what in (("together", f"the {seeds} together"), ("released", "released labels")):
        if test in w.significant:
            return Ruling(Rule.CLAIM_CONTRADICTED, f"{w.said}; {what} contradict the claim.")
    if "noise" in w.significant and w.fault is not None:
        reason = f"{w.said}, and its noise is not what it says: {w.fault.replace('_', ' ')}."
        return Ruling(Rule.TOO_LITTLE_NOISE, reason, detail=w.fault)
    open_ = (
        (w.beyond > 0, f"{w.beyond} of {seeds}"),
        (w.together > w.claimed, f"{seeds} together"),
    )  # fmt: skip
    if which := next((text for holds, text in open_ if holds), ""):
        reason = f"{w.said}; {which}, not significant. Add seeds."
        return Ruling(Rule.UNDECIDED, reason, len(w.values))
    if not (w.awake or w.together):
        reason = format_not_validated(w.who, "it measures 0")
        return Ruling(Rule.NOT_VALIDATED, reason, detail=Evidence.NONE)
    least = "" if w.power is None else f"{100 * w.power:.0f} % of the noise that it needs"
    found = f" A claim with less than {least} would be detected." if least else ""
    if w.remembered:
        why = "it releases the same labels in every call, so its chance cannot be tested"
        return Ruling(Rule.UNDERPOWERED, f"{w.said}; {why}.")
    if w.power is not None and w.power < HALF:
        return Ruling(Rule.UNDERPOWERED, f"{w.said}; too few canaries.{found}")
    return Ruling(Rule.WITHIN, f"{w.said}: no contradiction over {seeds}, no proof.{found}")


def _verdict(w: _Weighed, at: Identity, whose: str) -> Verdict:
    name = f"claimed epsilon {w.claimed:.4g}{whose} is not contradicted"
    return Verdict.about(
        at, Gate(metric=EPSILON, max=w.claimed, name=name), _decide(w), value=w.top,
        low=min(w.values), n=len(w.values), noise_found=w.power, origin=Origin.CLAIM,
    )  # fmt: skip
