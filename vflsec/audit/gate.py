"""Thresholds on what leaks and what it costs, and verdicts that rest on intervals.

PASS when the upper bound is within the threshold, FAIL when the lower bound is beyond it,
INCONCLUSIVE between. An attack that is not shown to be alive cannot pass a system: it may be
broken. It can fail one, for a leak that was measured needs no other proof.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from vflsec import check
from vflsec.audit import intervals, wording
from vflsec.audit.leakage import UNDEFENDED, is_undefended, rows_of
from vflsec.audit.metrics import METRICS
from vflsec.audit.wording import TASK, Candidate

__all__ = ["Gate", "Verdict", "alive", "exit_code", "judge", "selected"]

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
REPORTED = ("cap", "dcs")
PLANNED = "planned"
_PLACE = ("dataset", "algorithm", "defense", "strength")


@dataclass(frozen=True)
class Gate:
    """One threshold. Give exactly one of `max` and `min`.

    Attributes:
        metric: ``advantage`` (over the strongest control, in the primary metric), an attack metric
            such as ``auc`` or ``accuracy``, ``utility``, or ``utility_drop`` (undefended minus
            defended).
        max: the mean over seeds must not exceed it.
        min: the mean over seeds must not fall below it.
        attack, adversary, dataset, algorithm, phase, split: exact name, or ``*`` for all; `attack`
            is a label or the bare name.
        defense: label or bare name; ``*`` all, ``none`` the undefended run, ``defended`` all but
            the undefended.
        strength: one strength, None for all.
        of: metric whose advantage is meant; empty takes the primary one.
        confidence: of each one-sided bound.
        name: for reports.
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
    defense: str = "*"
    strength: float | None = None
    of: str = ""
    confidence: float = 0.95
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
        check.in_unit("gate: confidence", self.confidence, low_open=True, high_open=True)
        if self.of:
            check.one_of("gate: of", self.of, METRICS)

    @property
    def threshold(self) -> float:
        """The number given as `max` or `min`."""
        return self.max if self.max is not None else self.min  # type: ignore[return-value]

    @property
    def label(self) -> str:
        """The name, or what is asked: ``advantage of direction <= 0.05``."""
        if self.name:
            return self.name
        sign = "<=" if self.max is not None else ">="
        who = (
            ""
            if self.metric in TASK
            else f" of {'any attack' if self.attack == '*' else self.attack}"
        )
        return f"{self.metric}{who} {sign} {self.threshold:g}"

    @property
    def needs_alive(self) -> bool:
        """Whether passing takes an attack that is known to work."""
        return self.metric not in (*TASK, "epsilon_lower") and self.max is not None


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
        more_seeds: how many more seeds would decide an open verdict; None if seeds are not what is
            missing, or too many are.
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


def _named(label: str, wanted: str) -> bool:
    return wanted in ("*", label, label.split("(")[0])


def selected(row: Mapping[str, Any], gate: Gate) -> bool:
    """Whether a gate asks about a row of results.

    One that is not ``ok`` needs no figure of the gate's metric; one that is only planned may name
    neither phase nor split.
    """
    bare = is_undefended(row)
    if gate.defense == "defended" and bare:
        return False
    if gate.defense == UNDEFENDED and not bare:
        return False
    if gate.defense not in ("defended", UNDEFENDED) and not _named(row["defense"], gate.defense):
        return False
    if gate.strength is not None and row["strength"] != gate.strength:
        return False
    if any(getattr(gate, k) not in ("*", row[k]) for k in ("dataset", "algorithm")):
        return False
    planned = row["status"] == PLANNED
    if planned and gate.metric in (*TASK, "epsilon_lower"):
        return True
    if gate.metric == "epsilon_lower":
        return bool(row["metric"] == gate.metric)
    if gate.metric in TASK:
        return not row["attack"] and row["metric"] == row["utility_metric"]
    if not row["attack"] or not _named(row["attack"], gate.attack):
        return False
    for key in ("adversary", "phase", "split"):
        if getattr(gate, key) not in ("*", row[key]) and not (planned and not row[key]):
            return False
    if row["status"] != "ok":
        return True
    wanted = gate.metric if gate.metric != "advantage" else gate.of or row["primary"]
    return bool(row["metric"] == wanted)


def judge(
    summary: pd.DataFrame,
    gates: Iterable[Gate],
    alive: Mapping[str, tuple[bool, str]],
) -> list[Verdict]:
    """The verdict of every gate at every point it selects (data, algorithm, defense, strength).

    Several attacks under one gate are one claim about their maximum, and harmless ones fail
    together in at most alpha of audits. An attack that passes by itself (upper bound within the
    threshold) cannot be what is beyond it: it is set aside, and the others are tested by Holm at
    alpha times the confidence, which pays for having looked
    (:func:`vflsec.audit.intervals.conditional_holm`). The rule is the same for one attack and for
    many. The lower bound of the maximum is taken at the level of that test. The upper bound needs
    no correction: the claim "all are within" passes only if every one passes at level alpha
    (intersection-union, Berger 1982).

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`.
        gates: what to judge; a gate that selects nothing is INCONCLUSIVE.
        alive: {attack label: (whether it is shown to work, evidence)}, of :func:`alive`.
    """
    rows = rows_of(summary)
    return [v for gate in gates for v in _judge(rows, gate, alive)]


def _judge(
    rows: Sequence[Mapping[str, Any]], gate: Gate, alive: Mapping[str, tuple[bool, str]]
) -> list[Verdict]:
    points: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows:
        if selected(r, gate):
            strength = None if r["strength"] != r["strength"] else r["strength"]
            points[r["dataset"], r["algorithm"], r["defense"], strength].append(r)
    if not points:
        reason = f"Nothing that was measured answers the gate '{gate.label}'."
        return [Verdict(gate, INCONCLUSIVE, None, None, None, gate.threshold, 0, reason)]
    return [_point(key, of, gate, alive) for key, of in points.items()]


def _candidate(
    row: Mapping[str, Any], gate: Gate, alive: Mapping[str, tuple[bool, str]]
) -> Candidate | None:
    column = gate.metric if gate.metric in ("advantage", *TASK) else "value"
    n = int(row[f"{column}_seeds"])
    if row["status"] != "ok" or n == 0:
        return None
    sign = 1 if gate.max is not None else -1
    sd = row[f"{column}_sd"]
    shown, why = alive.get(row["attack"], (False, "no evidence was given"))
    dead = "" if shown or not gate.needs_alive else why or "no evidence was given"
    return Candidate(
        row, sign * row[column], None if sd != sd else sd, n, sign * gate.threshold, dead
    )


def _point(
    key: tuple[Any, ...],
    rows: Sequence[Mapping[str, Any]],
    gate: Gate,
    alive: Mapping[str, tuple[bool, str]],
) -> Verdict:
    pairs = [(r, _candidate(r, gate, alive)) for r in rows]
    found = [c for _, c in pairs if c is not None]
    missing = [r for r, c in pairs if c is None]
    where: dict[str, Any] = dict(zip(_PLACE, key, strict=True))
    alpha = 1 - gate.confidence
    failed = [r for r in rows if r["failed"]]
    if not found:
        reason = wording.nothing(missing, gate)
        return Verdict(gate, INCONCLUSIVE, None, None, None, gate.threshold, 0, reason, **where)
    beyond, level = _beyond(found, alpha)
    lows = [c.bound("lower", level) for c in found]
    highs = [c.bound("upper", alpha) for c in found]
    known = [x for x in lows if x is not None]
    low = max(known) if known else None
    high = None if any(x is None for x in highs) else max(x for x in highs if x is not None)
    judged = {c.row["attack"] for c in found}
    blocked = [r for r in missing if _blocks(r, gate, judged)]
    more: int | None = None
    if beyond:
        lead = max(beyond, key=lambda c: c.value)
        verdict, reason = FAIL, wording.fails(lead, beyond, gate)
    elif high is None:
        lead = min(found, key=lambda c: c.n)
        verdict, more = INCONCLUSIVE, 5 - lead.n
        reason = f"{lead.name} has {lead.n} seed; an interval takes at least 2, better 5."
    elif failed or blocked:
        lead = max(found, key=lambda c: c.value)
        verdict, reason = INCONCLUSIVE, wording.broken(failed, blocked)
    elif any(c.dead for c in found):
        lead = max((c for c in found if c.dead), key=lambda c: c.value)
        verdict = INCONCLUSIVE
        names = ", ".join(sorted({c.name for c in found if c.dead}))
        reason = f"Not shown to be alive, so silence proves nothing: {names} ({lead.dead})."
    elif high <= found[0].limit:
        lead = found[int(np.argmax([x for x in highs if x is not None]))]
        verdict, reason = PASS, wording.passes(lead, high, found, missing, gate)
    else:
        verdict = INCONCLUSIVE
        open_ = [c for c, x in zip(found, highs, strict=True) if x is None or x > c.limit]
        lead = max(open_, key=lambda c: c.value)
        more = wording.seeds_to_add(open_, alpha, level)
        reason = wording.between(lead, more, gate, level if lead.value > lead.limit else alpha)
    sign = 1 if gate.max is not None else -1
    if sign == -1:
        low, high = _minus(high), _minus(low)
    who: dict[str, Any] = {k: lead.row[k] for k in ("attack", "adversary", "phase", "split")}
    value = sign * lead.value
    where |= {**who, "more_seeds": more}
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
    does only if the gate names it and it was judged nowhere else.
    """
    if row["status"] in ("ok", "error"):
        return True
    return gate.attack != "*" and row["attack"] not in judged


def _minus(x: float | None) -> float | None:
    return None if x is None else -x


def alive(
    own: pd.DataFrame, control: pd.DataFrame | None = None, confidence: float = 0.95
) -> dict[str, tuple[bool, str]]:
    """Which attacks are shown to work: {label: (yes, evidence)}.

    An attack is alive if the lower bound of its advantage in the primary metric is above 0 on the
    undefended run of the user's own data, or of the positive control (the same attack against a
    planted leak). The bound is corrected for every run, split, phase and adversary looked at
    (Bonferroni). Where one label stands for several budgets of known rows, each must be shown.

    Args:
        own: summary of the audit.
        control: summary of the positive-control run, if there was one.
        confidence: of the lower bound.
    """
    kinds: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for r in rows_of(own):
        if r["attack"]:
            kinds[r["attack"]].add(_budget(r))
    if control is not None:
        confidence = 1 - (1 - confidence) / 2
    shown = _evidence(own, "on the undefended run", confidence)
    planted = {} if control is None else _evidence(control, "in the positive control", confidence)
    out = {}
    for label, budgets in kinds.items():
        found = [_best(shown.get((label, b)), _control(planted, label, b)) for b in budgets]
        worst = min(found, key=lambda e: (e[0], e[1]))
        out[label] = (worst[0] > 0, worst[1])
    return out


def _budget(row: Mapping[str, Any]) -> tuple[Any, ...]:
    known = row["known_rows"]
    return ("",) if known != known or known is None else (known,)


Evidence = tuple[float, str]


def _control(planted: Mapping[Any, Evidence], label: str, budget: tuple[Any, ...]) -> Any:
    """Evidence with the same budget; one that names no budget stands for any."""
    return planted.get((label, budget)) or planted.get((label, ("",)))


def _best(*found: Evidence | None) -> Evidence:
    seen = [e for e in found if e is not None]
    if not seen:
        return -math.inf, "it was never measured without a defense on two seeds or more"
    return max(seen)


def _evidence(summary: pd.DataFrame, where: str, confidence: float) -> dict[Any, Evidence]:
    rows: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows_of(summary):
        if r["attack"] and is_undefended(r) and r["metric"] == r["primary"] and r["status"] == "ok":
            rows[r["attack"], _budget(r)].append(r)
    out = {}
    for key, of in rows.items():
        seen = [r for r in of if r["advantage_seeds"] >= 2]
        bounds = []
        for point in seen:
            alpha = (1 - confidence) / len(seen)
            n = int(point["advantage_seeds"])
            factor = intervals.t_half_width(n, 1 - alpha, "lower") or 0.0
            bounds.append(point["advantage"] - factor * point["advantage_sd"])
        if seen:
            best = int(np.argmax(bounds))
            low, mean = bounds[best], seen[best]["advantage"]
            out[key] = (low, f"advantage {mean:+.3f} {where}, lower bound {low:+.3f}")
    return out


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """0 if all gates passed, 1 if one failed, 3 if one is inconclusive and none failed."""
    found = {v.verdict for v in verdicts}
    return 1 if FAIL in found else 3 if INCONCLUSIVE in found else 0
