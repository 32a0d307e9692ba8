"""Did leakage rise against an earlier audit? A gate on the mean advantage of every attack.

FAIL: beyond what is tolerated (:mod:`vflsec.audit.baseline`), and above 0 for sure over all
controls (:mod:`vflsec.audit.compare`, Holm over all points). INCONCLUSIVE: beyond that but not for
sure, or the attack is gone, failed, is no longer shown to work, now ranks in reverse, or the
evidence is thin as under a gate. PASS: within; it warns where the baseline is of other data. An
attack that was not shown to work then or now gets no verdict unless it rose, or evidence is missing
that would show it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vflsec.audit import intervals, result_row, verdict_text
from vflsec.audit.baseline import (
    LEAST,
    Baseline,
    Key,
    compute_advantages,
    compute_tolerance,
    group_rows,
    list_audited,
    match_points,
)
from vflsec.audit.compare import Change, compute_change, find_least
from vflsec.audit.gate import (
    MIN_ROWS,
    MIN_SEEDS,
    Gate,
    Origin,
    Reason,
    Rule,
    Ruling,
    Shortfall,
    Verdict,
    format_warnings,
)
from vflsec.audit.gate_candidate import COUNTED, DECIDES
from vflsec.audit.gate_selection import is_selected
from vflsec.audit.metrics import (
    ERROR_REMOVED,
    find_best,
    find_reach,
    find_scale,
    format_size,
    format_unit,
)
from vflsec.audit.point import Identity, Point, Training
from vflsec.audit.result_row import ResultRow
from vflsec.audit.rounding import show_both
from vflsec.audit.validated import NO_EVIDENCE, Validated, Validation
from vflsec.errors import format_count
from vflsec.runtime.grouping import group_by

if TYPE_CHECKING:
    pass

_RENEW = "If that is meant: --update-baseline."


def judge_regressions(
    results: Iterable[ResultRow],
    before: Baseline,
    validated: Validated,
    confidence: float = 0.95,
    points: Sequence[Point] = (),
    data: Mapping[str, str] | None = None,
    gates: Sequence[Gate] = (),
) -> list[Verdict]:
    """One verdict for every point of the baseline that ever worked, or may hide a rise.

    Args:
        results: as they are now, of :func:`vflsec.audit.leakage.complete_rows`, with
            :func:`add_grants`.
        before: of :func:`read_baseline`.
        validated: of :func:`vflsec.audit.validated.find_validated`.
        confidence: of the one-sided bounds.
        points: summary of `results`; with it a PASS warns where the system learned nothing.
        data: hashes by data set now; where the baseline's are others, a PASS warns.
        gates: judged beside it. What has no room to rise passes where one limits exposed rows.
    """
    every = list_audited(results)
    rows = group_rows(every)
    now = compute_advantages(rows, result_row.find_declined(every))
    planned = Counter(at for at, _ in {(r.training, r.seed) for r in every})
    lost, worth, reverse = _lost(every), _worth(points), _rankings(every)
    others, limited = before.others(data or {}), _find_limited(points, gates)
    same, names = match_points(now, before), _names(before)
    changes = {k: compute_change(now[other], before[k]) for k, other in same.items()}
    p = intervals.holm([c.p_above_zero() for c in changes.values()])
    alpha = 1 - confidence
    out = []
    for (k, c), x in zip(changes.items(), p, strict=True):
        of = rows[same[k]]
        one, allowed = of[0], compute_tolerance(before[k])
        short = _find_shortfall(
            of,
            len(now[same[k]][find_least(now[same[k]])]),
            planned[one.training] - result_row.count_unscored(of),
            len(before[k][find_least(before[k])]),
        )
        warned = worth.get(one.training), others.get(one.dataset)
        shown = validated.get(one.place, NO_EVIDENCE)
        idle = k in before.silent and not shown.validated
        spare = _find_spare(is_limited=one.answer in limited, idle=idle)
        weighed = _Weighed(
            c, allowed, x < alpha, alpha, reverse.get(one.answer, -math.inf),
            one.attack, one.metric, shown,
            short or lost.get(one.run)
            or _find_any_rise_tolerated(of, c, allowed, spare),
            tuple(w for w in warned if w is not None),
        )  # fmt: skip
        ruling = _decide(weighed)
        if not (idle and ruling.rule is Rule.NOT_VALIDATED and weighed.shortfall is None):
            out.append(_verdict(k, one.identity, weighed, ruling, names[k]))
    gone: list[tuple[Training, Gate, Ruling]] = [
        (k, _ask(k, LEAST, names[k]), Ruling(Rule.NO_LONGER_MEASURED, _gone(k, now)))
        for k in before if k not in same
    ]  # fmt: skip
    if not out and not gone:
        none = Ruling(Rule.NOTHING_SELECTED, "The earlier audit holds no validated attack.")
        gone = [(Training(), _gate(LEAST), none)]
    return out + [Verdict.about(*of, origin=Origin.BASELINE) for of in gone]


def _rankings(rows: Iterable[ResultRow]) -> dict[Identity, float]:
    """Mean advantage of the answers with their labels flipped, by answer."""
    pairs = (
        (r.answer, (r.control_value if r.chance is None else 1 - r.control_value) - r.value)
        for r in rows
        if r.attack and r.is_ranking and r.status == "ok"
        if r.value is not None and r.control_value is not None
    )  # fmt: skip
    found = group_by(pairs, lambda pair: pair[0])
    return {at: float(np.mean([gain for _, gain in of])) for at, of in found.items()}


def _lost(rows: Iterable[ResultRow]) -> dict[Identity, Reason]:
    """By attack, that it or its training failed on some seeds."""
    failed = group_by((r for r in rows if r.attack and r.status == "error"), lambda r: r.run)
    found = {}
    for run, of in failed.items():
        seeds = format_count(len({r.seed for r in of}), "seed")
        found[run] = Reason(Shortfall.FAILED_SEEDS, f"it failed on {seeds}: {of[0].reason}")
    return found


def _worth(points: Sequence[Point]) -> dict[Training, Reason | None]:
    """By training, why what passes there tells nothing of a system that works; None if it does."""
    guessing = verdict_text.Guessing.by_algorithm(points)
    return {
        p.training: verdict_text.find_worthless(p, _gate(LEAST), guessing.get(p.system))
        for p in points
        if p.attack
    }


def _find_limited(points: Iterable[Point], gates: Iterable[Gate]) -> set[Identity]:
    """Answers of attacks that a gate limits by what stands in where an advantage has no room."""
    deciding = [g for g in gates if g.limits_leaks and g.of in (DECIDES, ERROR_REMOVED)]
    return {p.answer for p in points for g in deciding if p.status == "ok" and is_selected(p, g)}


def _find_spare(*, is_limited: bool, idle: bool) -> float:
    """The most room beside which a figure passes that no rise could be seen of: any where a gate
    limits exposed rows instead, next to none if the attack never worked.
    """
    if is_limited:
        return math.inf
    return LEAST if idle else -math.inf


def _find_any_rise_tolerated(
    rows: Sequence[ResultRow], c: Change, allowed: float, spare: float
) -> Reason | None:
    """That no rise could be beyond what is tolerated; None if one could be.

    Beyond what the baseline's spread tolerates, or what the control leaves above the advantage that
    there was. An advantage that was itself beyond what is tolerated is a known leak, and is passed
    where it rises no more, and so is one with no more room than `spare`.
    """
    metric = rows[0].metric
    far, cure = find_reach("advantage", metric)[1], "is possible. Add seeds to the earlier audit"
    if c.before <= allowed < far:
        gained, own = result_row.read_advantages(rows)
        reached = intervals.mean_of(list(own[find_least(gained)].values()))
        room = abs(find_best(metric) - reached) - c.before
        if room <= allowed:
            if room <= spare:
                return None
            decider = DECIDES if rows[0].target in COUNTED else ERROR_REMOVED
            cure = f'is left above its baseline. Add a gate with of = "{decider}"'
            far = max(room, 0.0)
    scale = find_scale(metric)
    least, most = show_both(scale * allowed, scale * far, ".3g", ".3g")
    most += format_unit(metric)
    text = f"no rise could be seen: {least} is tolerated, and at most {most} {cure}"
    return None if allowed < far else Reason(Shortfall.ANY_RISE_TOLERATED, text)


def _find_shortfall(
    rows: Sequence[ResultRow], seeds: int, planned: int, before: int
) -> Reason | None:
    """What is missing from the least evidence for a PASS; None if nothing is.

    A baseline of two seeds tolerates whatever their spread happens to be.
    """
    fewest = result_row.count_fewest(rows)
    return verdict_text.find_lack(
        (Shortfall.MISSING_SEEDS, "it", seeds, planned),
        (Shortfall.FEW_SEEDS, "it", seeds, MIN_SEEDS),
        (Shortfall.BASELINE_FEW_SEEDS, "the earlier audit", before, MIN_SEEDS),
        (Shortfall.FEW_ROWS, "it", fewest, MIN_ROWS),
    )


@dataclass(frozen=True)
class _Weighed:
    """What the rules look at: how one point changed against the baseline.

    Attributes:
        change: of its advantage.
        allowed: what is tolerated.
        significant: whether it rose above 0 significantly, corrected for all points.
        alpha: level of the bounds.
        reversed: its advantage with labels flipped; minus infinity where there is none.
        attack, metric: their names.
        validation: whether that is shown to work.
        shortfall: what is missing from the least evidence for a PASS.
        warnings: of a PASS.
    """

    change: Change
    allowed: float
    significant: bool
    alpha: float
    reversed: float
    attack: str
    metric: str
    validation: Validation
    shortfall: Reason | None
    warnings: tuple[Reason, ...]

    @property
    def shown(self) -> tuple[str, str]:
        """The change and what is tolerated, with digits that keep their order."""
        scale = find_scale(self.metric)
        return show_both(scale * self.change.mean, scale * self.allowed, "+.3f")

    @property
    def said(self) -> str:
        """By how much it changed."""
        return (
            f"The advantage of {self.attack} changed by {self.shown[0]}{format_unit(self.metric)} "
            f"over {self.change.seeds} seeds"
        )


def _decide(w: _Weighed) -> Ruling:
    """What the first rule that holds says; their order is the policy."""
    rose, most = w.change.mean > w.allowed, w.shown[1]
    if rose and w.significant:
        return Ruling(Rule.REGRESSION, f"{w.said}; {most} is tolerated.")
    if rose:
        more = w.change.more_seeds(w.alpha)
        cure = verdict_text.format_seeds(more)
        beyond = f"beyond the tolerated {most}, not significant"
        return Ruling(Rule.UNDECIDED, f"{w.said}, {beyond}; {cure}.", more)
    if w.reversed > max(w.change.before, 0.0) + w.allowed:
        flipped = f"but with labels flipped {format_size(w.reversed, w.metric)}"
        return Ruling(Rule.REVERSED_RANKING, f"{w.said}, {flipped}.")
    why = w.validation
    if not why.validated:
        reason = verdict_text.format_not_validated(w.attack, why.text)
        return Ruling(Rule.NOT_VALIDATED, reason, detail=why.code)
    if w.shortfall is not None:
        reason = f"{w.said}, but {w.shortfall.text}."
        return Ruling(Rule.UNDERPOWERED, reason, detail=w.shortfall.code)
    reason = f"{w.said}, within the tolerated {most}.{format_warnings(w.warnings)}"
    return Ruling(Rule.WITHIN, reason, warnings=w.warnings)


def _verdict(key: Key, at: Identity, w: _Weighed, ruling: Ruling, who: str) -> Verdict:
    """The verdict on a point of the baseline, which `at` is called now."""
    return Verdict.about(
        at, _ask(key, w.allowed, who), ruling, value=w.change.mean,
        low=w.change.lower(w.alpha), high=w.change.upper(w.alpha), threshold=w.allowed,
        n=w.change.seeds, origin=Origin.BASELINE,
    )  # fmt: skip


def _gone(key: Key, now: Iterable[Key]) -> str:
    like = (
        k.grants
        for k in now
        if replace(k, attack_key="", grants="") == replace(key, attack_key="", grants="")
    )
    if other := [grants for grants in like if grants != key.grants]:
        here, there = other[0] or "nothing", key.grants or "nothing"
        return f"{key.attack} was granted {there} in the earlier audit and {here} now. {_RENEW}"
    return f"{key.attack} has a figure in the earlier audit and none here. {_RENEW}"


def _gate(allowed: float, who: str = "") -> Gate:
    """What a verdict asks."""
    return Gate(max=min(allowed, 0.99), name=f"no rise since the earlier audit{who}")


def _names(before: Iterable[Key]) -> dict[Key, str]:
    """What each point is of, in words: unlike for all points of one training."""
    trainings = group_by(dict.fromkeys((k.training, k.phase) for k in before), lambda of: of[0])
    out = {}
    for key in before:
        who = f": {key.attack} by {key.adversary}"
        who += f" on {key.split} rows" if key.split else ""
        who += f" after {key.phase}" if len(trainings[key.training]) > 1 else ""
        who += f", {key.known_rows:g} labelled rows" if key.known_rows else ""
        out[key] = who + (f", {key.grants}" if key.grants else "")
    return out


def _ask(key: Key, allowed: float, who: str) -> Gate:
    """The gate that a point of the baseline is: of which attack by whom, on which rows and when."""
    at = {k: x for k in ("attack", "adversary", "phase", "split") if (x := getattr(key, k))}
    return replace(_gate(allowed, who), **at)
