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

Silence is no evidence where the guesser finds nothing anywhere. It is alive if it finds something
of the same defense on the same data under the same algorithm, at whatever strength, or of the same
canaries without the defense.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vflsec.audit.gate import FAIL, INCONCLUSIVE, PASS, Gate, Verdict
from vflsec.audit.leakage import rows_of
from vflsec.audit.rounding import both
from vflsec.audit.special_functions import binomial_tail
from vflsec.epsilon import one_run_bound

__all__ = ["METRIC", "contradictions", "pairs"]

METRIC = "epsilon_lower"
"""Metric of results that are lower bounds of epsilon, one for each seed."""

_CLAIM = "claimed epsilon"
_POINT = ("dataset", "algorithm", "defense", "strength")
_WHO = ("attack", "adversary", "phase", "split")


def contradictions(
    frame: pd.DataFrame, claims: Iterable[Mapping[str, Any]], confidence: float = 0.95,
    looks: int = 1,
) -> list[Verdict]:  # fmt: skip
    """One verdict for every claim that was measured.

    Args:
        frame: of :func:`vflsec.audit.leakage.results_frame`, with rows of :data:`METRIC`; a column
            ``claimant`` says whose claim a row measures, where a point has several, and
            ``undefended`` what is measured without the defense, where that was looked at; ``looks``
            what was guessed (:data:`vflsec.epsilon.one_run_bound.Looks`), and ``sure`` the
            confidence of the bound, where they are told.
        claims: {dataset, algorithm, defense, strength, epsilon, delta}, one for each point and, by
            `by`, claimant; `idle` names a defense whose hook was never called, which fails.
            `confidence`, if it is there, is
            that of the bounds, where they hold with more than `confidence`; `chance` is that of
            :class:`vflsec.core.policy.Guarantee`.
        confidence: at which each measured lower bound holds.
        looks: how often the claims are judged while seeds are added; they share the error.
    """
    claims = list(claims)
    measured = frame[(frame["metric"] == METRIC) & (frame["status"] == "ok")]
    rows = [r for r in rows_of(measured) if r["value"] == r["value"]]
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows:
        found[tuple(r.get(k, "") for k in (*_POINT, *_WHO, "claimant"))].append(r)
    awake = {_place(r) for r in rows if r["value"] > 0 or (r.get("undefended") or 0) > 0}
    judged = [
        (key, of, claim)
        for key, of in found.items()
        for claim in claims
        if claim["epsilon"] is not None and all(claim[k] == of[0][k] for k in _POINT)
        if key[-1] in ("", claim.get("by") or key[-1])
    ]
    alpha = (1 - confidence) / (looks * max(len(judged), 1))
    beside = Counter(tuple(c[k] for k in _POINT) for c in claims if c["epsilon"] is not None)
    found_idle = [_idle(c) for c in claims if c.get("idle")]
    return found_idle + [
        _judged(
            key[:-1], of, c, alpha, c.get("confidence", confidence), awake,
            f" of {c['by']}" if beside[tuple(c[k] for k in _POINT)] > 1 else "",
        )
        for key, of, c in judged
    ]  # fmt: skip


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where a guesser that finds something is alive."""
    return row["dataset"], row["algorithm"], row["attack"], row.get("claimant", "")


def pairs(verdicts: Iterable[Verdict]) -> dict[tuple[str, float | None], tuple[float, float]]:
    """(claimed, measured at least) by (defense, strength), of the verdicts on claims.

    Where one point has several claims, the smallest, and the largest bound measured of it.
    """
    out: dict[tuple[str, float | None], tuple[float, float]] = {}
    for v in verdicts:
        if v.gate.metric == METRIC and v.gate.name.startswith(_CLAIM) and v.value is not None:
            claimed, low = out.get((v.defense, v.strength), (float("inf"), 0.0))
            if v.threshold < claimed:
                out[v.defense, v.strength] = v.threshold, v.value
            elif v.threshold == claimed:
                out[v.defense, v.strength] = claimed, max(low, v.value)
    return out


def _idle(claim: Mapping[str, Any]) -> Verdict:
    name = claim["idle"]
    gate = Gate(metric=METRIC, max=0.0, name=f"{name} does what it claims")
    reason = f"{name} is there to protect, and its hook was never called: it protects nothing here."
    where = {k: claim[k] for k in _POINT}
    return Verdict(gate, FAIL, None, None, None, 0.0, 0, reason, **where)


def _judged(
    key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]], claim: Mapping[str, Any],
    alpha: float, confidence: float, awake: set[tuple[Any, ...]], whose: str,
) -> Verdict:  # fmt: skip
    claimed, delta = float(claim["epsilon"]), float(claim.get("delta") or 0.0)
    values = [float(r["value"]) for r in rows]
    beyond = sum(v > claimed for v in values)
    told = [r["sure"] for r in rows if r.get("sure") == r.get("sure") is not None]
    sure = min(told, default=confidence) if len(told) == len(rows) else confidence
    p = {"seeds": float(binomial_tail(beyond, len(values), 1 - sure))}
    joint, often, chance = 0.0, 0.0, claim.get("chance") or 1.0
    looks = [r["looks"] for r in rows if isinstance(r.get("looks"), list | tuple)]
    if len(looks) == len(rows) > 1:
        joint = one_run_bound.together(looks, delta, sure)
        p["together"] = one_run_bound.refuted(looks, claimed, delta)
    if len(looks) == len(rows) and chance < 1:
        p["often"], often = one_run_bound.too_often(looks, chance, sure)
    surely = {test for test, value in p.items() if value * len(p) < alpha}
    where = dict(zip((*_POINT, *_WHO), key, strict=True))
    top = max(*values, joint)
    who = where["attack"] or "a canary audit"
    measured, known = both(top, claimed, ".3g", ".4g")
    bare = max(
        (float(r["undefended"]) for r in rows if (r.get("undefended") or 0) > 0), default=0.0
    )
    without = f" ({bare:.3g} without the defense)" if bare and not top else ""
    said = f"{who} measures epsilon of at least {measured}{without}, {known} is claimed"
    more: int | None = None
    right = f"{100 * often:.3g} % of coins are surely guessed, its noise lets {100 * chance:.3g} %"
    if beyond and "seeds" in surely:
        verdict = FAIL
        reason = f"{said}; {beyond} of {len(values)} seeds contradict the claim."
    elif "together" in surely:
        verdict = FAIL
        reason = f"{said}; the {len(values)} seeds together contradict the claim."
    elif "often" in surely:
        verdict = FAIL
        reason = f"{said}, and there is less noise than that takes: {right}."
    elif beyond or joint > claimed or often > chance:
        verdict = INCONCLUSIVE
        which = f"{beyond} of {len(values)} seeds" if beyond else f"{len(values)} seeds together"
        which = which if beyond or joint > claimed else right
        reason = f"{said}; {which}, which chance may do. Run more seeds."
        more = len(values)
    elif _place(rows[0]) not in awake and not joint:
        verdict = INCONCLUSIVE
        looked = any(r.get("undefended") == 0 for r in rows)
        reason = f"Not shown to be alive: {who} measures nothing above 0 here" + (
            ", nor without the defense." if looked else "."
        )
    else:
        verdict = PASS
        reason = f"{said}: no contradiction over {len(values)} seeds, which proves no claim."
    name = f"{_CLAIM} {claimed:.4g}{whose} is not contradicted"
    gate = Gate(metric=METRIC, max=claimed, name=name)
    return Verdict(
        gate, verdict, top, min(values), None, claimed, len(values), reason, more_seeds=more,
        **where,
    )  # fmt: skip
