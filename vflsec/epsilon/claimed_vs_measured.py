"""A claimed epsilon against a measured one: an audit that finds more than was promised has found a
broken promise.

Every measured value is a lower bound that holds with some confidence in one seed; where the claim
is true, a seed exceeds it with probability alpha at most. So k of n seeds beyond the claim are
judged by the binomial tail P(X >= k), X ~ Bin(n, alpha). A seed has few canaries, and its bound is
far below what is true; so the guesses of all seeds are judged together as well
(:func:`vflsec.epsilon.one_run_bound.refuted`). At the delta of noise that is Gaussian, epsilon
lies where few guesses reach; where every row has noise of its own, they may be right no more often
than that noise lets them (:func:`vflsec.epsilon.one_run_bound.too_often`). The smallest p-value
counts, times their number, and all are corrected for the number of claims.

Silence is no evidence where the guesser finds nothing anywhere. It is validated if it finds
something of the same defense on the same data under the same algorithm, at whatever strength, or of
the same canaries without the defense.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from vflsec.audit.gate import EPSILON, FAIL, INCONCLUSIVE, PASS, Gate, Origin, Rule, Verdict
from vflsec.audit.leakage import TRAINING, rows_of
from vflsec.audit.rounding import both
from vflsec.audit.special_functions import binomial_tail
from vflsec.audit.validated import Evidence
from vflsec.epsilon import one_run_bound as coins

_WHO = ("attack", "adversary", "phase", "split")

Row = Mapping[str, Any]


def contradictions(
    frame: pd.DataFrame, claims: Iterable[Row], confidence: float = 0.95, looks: int = 1,
) -> list[Verdict]:  # fmt: skip
    """One verdict for every claim that was measured.

    Args:
        frame: of :func:`vflsec.audit.leakage.results_frame`, with rows of the metric
            ``epsilon_lower``; a column ``claimant`` says whose claim a row measures, where a point
            has several, and ``undefended`` what is measured without the defense, where that was
            looked at; ``looks`` what was guessed (:data:`vflsec.epsilon.one_run_bound.Looks`), and
            ``sure`` the confidence of the bound, where they are told.
        claims: {dataset, algorithm, defense, strength, epsilon, delta}, one for each point and, by
            `by`, claimant; `idle` names a defense whose hook was never called, which fails.
            `confidence`, if it is there, is
            that of the bounds, where they hold with more than `confidence`; `chance` is that of
            :class:`vflsec.core.policy.Guarantee`.
        confidence: at which each measured lower bound holds.
        looks: how often the claims are judged while seeds are added; they share the error.
    """
    claims = list(claims)
    made = [c for c in claims if c["epsilon"] is not None]
    found = _by_place(frame)
    awake = {_place(r) for of in found.values() for r in of if _finds_something(r)}
    tested = [(key, of, c) for key, of in found.items() for c in made if _is_about(c, key, of[0])]
    alpha = (1 - confidence) / (looks * max(len(tested), 1))
    beside = Counter(tuple(c[k] for k in TRAINING) for c in made)
    out = [_idle(c) for c in claims if c.get("idle")]
    for key, of, c in tested:
        whose = f" of {c['by']}" if beside[tuple(c[k] for k in TRAINING)] > 1 else ""
        weighed = _weigh(of, c, alpha, c.get("confidence", confidence), _place(of[0]) in awake)
        out.append(_verdict(weighed, dict(zip((*TRAINING, *_WHO), key[:-1], strict=True)), whose))
    return out


def _by_place(frame: pd.DataFrame) -> dict[tuple[Any, ...], list[Row]]:
    """What was measured, by point, attack and claimant."""
    measured = frame[(frame["metric"] == EPSILON) & (frame["status"] == "ok")]
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for r in rows_of(measured):
        if r["value"] == r["value"]:
            found[tuple(r.get(k, "") for k in (*TRAINING, *_WHO, "claimant"))].append(r)
    return found


def _finds_something(row: Row) -> bool:
    return bool(row["value"] > 0 or (row.get("undefended") or 0) > 0)


def _is_about(claim: Row, key: tuple[Any, ...], row: Row) -> bool:
    """Whether what was measured tests a claim: that of its point, and of its claimant if named."""
    here = all(claim[k] == row[k] for k in TRAINING)
    return here and key[-1] in ("", claim.get("by") or key[-1])


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where a guesser that finds something is validated."""
    return row["dataset"], row["algorithm"], row["attack"], row.get("claimant", "")


def pairs(verdicts: Iterable[Verdict]) -> dict[tuple[str, float | None], tuple[float, float]]:
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


def _idle(claim: Row) -> Verdict:
    name = claim["idle"]
    gate = Gate(metric=EPSILON, max=0.0, name=f"{name} does what it claims")
    reason = f"{name} is there to protect, and its hook was never called: it protects nothing here."
    where = {k: claim[k] for k in TRAINING}
    return Verdict.of_nothing(gate, Rule.DEFENSE_IDLE, reason, FAIL, origin=Origin.CLAIM, **where)


@dataclass(frozen=True)
class _Weighed:
    """What the rules look at: one claim and what was measured of it.

    Attributes:
        claimed: epsilon.
        values: lower bounds, one for each seed.
        beyond: how many of them exceed the claim.
        together: the lower bound of all seeds together; 0 where that cannot be had.
        share, allowed: of coins, what is significantly guessed rightly, and what the noise lets.
        significant: tests that contradict the claim: ``seeds``, ``together``, ``often``.
        awake: whether the guesser finds something anywhere.
        looked: whether it found nothing without the defense.
        without: the largest bound without the defense.
        who: guesses.
    """

    claimed: float
    values: Sequence[float]
    beyond: int
    together: float
    share: float
    allowed: float
    significant: frozenset[str]
    awake: bool
    looked: bool
    without: float
    who: str

    @property
    def top(self) -> float:
        """The largest lower bound."""
        return max(*self.values, self.together)

    @property
    def said(self) -> str:
        """What is measured beside what is claimed."""
        measured, known = both(self.top, self.claimed, ".3g", ".4g")
        shown = self.without and not self.top
        without = f" ({self.without:.3g} without the defense)" if shown else ""
        return f"{self.who} measures epsilon of at least {measured}{without}, {known} is claimed"

    @property
    def coins(self) -> str:
        """How many coins are guessed, beside how many the noise lets be guessed."""
        return (
            f"{100 * self.share:.3g} % of coins are surely guessed, its noise lets "
            f"{100 * self.allowed:.3g} %"
        )


def _confidence(rows: Sequence[Row], usual: float) -> float:
    """That of the bounds: the least that is told, if it is told of all."""
    told = [r["sure"] for r in rows if r.get("sure") == r.get("sure") is not None]
    return min(told, default=usual) if len(told) == len(rows) else usual


def _weigh(
    rows: Sequence[Row], claim: Row, alpha: float, confidence: float, awake: bool
) -> _Weighed:
    """The tests of a claim, each at `alpha` over their number."""
    claimed, delta = float(claim["epsilon"]), float(claim.get("delta") or 0.0)
    values = [float(r["value"]) for r in rows]
    beyond = sum(v > claimed for v in values)
    sure = _confidence(rows, confidence)
    p = {"seeds": float(binomial_tail(beyond, len(values), 1 - sure))}
    together, share, allowed = 0.0, 0.0, claim.get("chance") or 1.0
    looks = [r["looks"] for r in rows if isinstance(r.get("looks"), list | tuple)]
    if len(looks) == len(rows) > 1:
        together = coins.together(looks, delta, sure)
        p["together"] = coins.refuted(looks, claimed, delta)
    if len(looks) == len(rows) and allowed < 1:
        p["often"], share = coins.too_often(looks, allowed, sure)
    undefended = [float(x) for r in rows if (x := r.get("undefended")) is not None]
    return _Weighed(
        claimed, values, beyond, together, share, allowed,
        frozenset(test for test, value in p.items() if value * len(p) < alpha), awake,
        0.0 in undefended, max((x for x in undefended if x > 0), default=0.0),
        rows[0]["attack"] or "a canary audit",
    )  # fmt: skip


_Ruling = tuple[str, Rule, str]


def _contradicted_by_seeds(w: _Weighed) -> _Ruling | None:
    if not w.beyond or "seeds" not in w.significant:
        return None
    reason = f"{w.said}; {w.beyond} of {len(w.values)} seeds contradict the claim."
    return FAIL, Rule.CLAIM_CONTRADICTED, reason


def _contradicted_together(w: _Weighed) -> _Ruling | None:
    if "together" not in w.significant:
        return None
    reason = f"{w.said}; the {len(w.values)} seeds together contradict the claim."
    return FAIL, Rule.CLAIM_CONTRADICTED, reason


def _too_little_noise(w: _Weighed) -> _Ruling | None:
    if "often" not in w.significant:
        return None
    reason = f"{w.said}, and there is less noise than that takes: {w.coins}."
    return FAIL, Rule.TOO_LITTLE_NOISE, reason


def _undecided(w: _Weighed) -> _Ruling | None:
    if w.beyond:
        which = f"{w.beyond} of {len(w.values)} seeds"
    elif w.together > w.claimed:
        which = f"{len(w.values)} seeds together"
    elif w.share > w.allowed:
        which = w.coins
    else:
        return None
    reason = f"{w.said}; {which}, which chance may do. Run more seeds."
    return INCONCLUSIVE, Rule.UNDECIDED, reason


def _not_validated(w: _Weighed) -> _Ruling | None:
    if w.awake or w.together:
        return None
    nor = ", nor without the defense." if w.looked else "."
    reason = f"Not shown to be alive: {w.who} measures nothing above 0 here{nor}"
    return INCONCLUSIVE, Rule.NOT_VALIDATED, reason


def _within(w: _Weighed) -> _Ruling:
    reason = f"{w.said}: no contradiction over {len(w.values)} seeds, which proves no claim."
    return PASS, Rule.WITHIN, reason


_RULES: tuple[Callable[[_Weighed], _Ruling | None], ...] = (
    _contradicted_by_seeds, _contradicted_together, _too_little_noise, _undecided, _not_validated,
    _within,
)  # fmt: skip
"""The first that speaks decides; the last always does."""


def _verdict(w: _Weighed, where: Mapping[str, Any], whose: str) -> Verdict:
    verdict, rule, reason = next(said for of in _RULES if (said := of(w)) is not None)
    name = f"claimed epsilon {w.claimed:.4g}{whose} is not contradicted"
    detail = Evidence.UNDEFENDED if w.looked else Evidence.NEVER_UNDEFENDED
    return Verdict(
        Gate(metric=EPSILON, max=w.claimed, name=name), verdict, w.top, min(w.values), None,
        w.claimed, len(w.values), reason, rule, detail if rule == Rule.NOT_VALIDATED else "",
        Origin.CLAIM, more_seeds=len(w.values) if rule == Rule.UNDECIDED else None, **where,
    )  # fmt: skip
