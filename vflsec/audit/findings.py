"""What an audit found, as values: what kind of finding, where, of whom, with its figures.

What is said is decided by the one interval of each claim (:mod:`vflsec.audit.leakage_claims`);
without an interval it says so. Findings speak of the primary metric, and of test rows where there
are some, but of those on which an attack leaks alone; the largest leaks come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from vflsec.audit.attack_names import find_attack, tell_apart
from vflsec.audit.controls import CHANCE, FALLBACK, LEAST, is_leak
from vflsec.audit.gate import Verdict
from vflsec.audit.intervals import holds_zero
from vflsec.audit.leakage_claims import correct, sort_usual
from vflsec.audit.metrics import METRICS, find_sign, metric_name
from vflsec.audit.point import Estimate, Grants, Identity, Point
from vflsec.audit.rounding import show
from vflsec.errors import format_count
from vflsec.runtime.grouping import group_by


class FindingKind(StrEnum):
    """What a finding says; printers choose by it, never by the sentence."""

    LEAK = "leak"
    REVERSED_RANKING = "reversed_ranking"
    BASELINE_PREDICTS = "baseline_predicts"
    AT_CHANCE = "at_chance"
    NO_LEAK_SHOWN = "no_leak_shown"
    SINGLE_SEED = "single_seed"
    NO_BASELINE = "no_baseline"
    NOT_SCORED = "not_scored"
    STOPPED = "stopped"
    NOT_STOPPED = "not_stopped"
    DEFENSE_UNDECIDED = "defense_undecided"
    DEFENSE_IDLE = "defense_idle"
    MEMBERSHIP = "membership"
    SEVERAL_LABELS = "several_labels"
    VERDICT = "verdict"
    FAILED = "failed"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: what it says.
        text: the same as a sentence.
        place: the figure that it is about; what it says of several is empty there.
        values: figures by the name of their column in the points (``value``, ``control_value``,
            ``advantage``, ``utility``, ``utility_drop``); of a verdict ``value`` and ``threshold``.
        interval: of the advantage; of a verdict its two bounds; None where there is none.
    """

    kind: FindingKind = FindingKind.VERDICT
    text: str = ""
    place: Identity = field(default_factory=Identity)
    values: Mapping[str, float] = field(default_factory=dict)
    interval: tuple[float | None, float | None] | None = None

    @classmethod
    def of(cls, kind: FindingKind, p: Point, text: str) -> Finding:
        """A finding about a point."""
        figures = {
            "value": p.value.mean, "control_value": p.control_value.mean,
            "advantage": p.advantage.mean, "utility": p.utility.mean,
            "utility_drop": p.utility_drop.mean,
        }  # fmt: skip
        ends = p.advantage.low, p.advantage.high
        return cls(
            kind, text, p.identity, {k: v for k, v in figures.items() if v is not None},
            None if None in ends else ends,
        )  # fmt: skip


ONE_SEED, NO_FIGURE = "one seed gives no interval", "no attack gave a figure"
_HITS = {"tpr_at_1pct_fpr": "1 %", "tpr_at_01pct_fpr": "0.1 %"}


def format_gain(metric: str, gain: float | None, low: float | None, high: float | None) -> str:
    """``+0.37 of AUC [+0.30, +0.44]``: an advantage as every sentence says it; of a metric of which
    less is better, ``0.09 less error of the share``.
    """
    sign, of = ("+", "of") if find_sign(metric) > 0 else ("", "less")
    text = f"{_plain(gain, sign=bool(sign))} {of} {metric_name(metric)}"
    if low is None or high is None:
        return f"{text} ({ONE_SEED})"
    return f"{text} [{show(low, 0.0, f'{sign}.2f')}, {show(high, 0.0, f'{sign}.2f')}]"


class _Style(NamedTuple):
    """What every sentence of one audit says, or leaves out.

    Attributes:
        trainings, phases: whether there are several, so that a sentence names its own.
        apart: what tells attacks of one label apart.
        has_other_rows: whether an attack has figures on other rows: then a sentence names its own.
        hits: points in the metrics that count hits, by metric and answer.
        ranked: points by which answers are looked at with their labels flipped, by answer.
    """

    trainings: bool
    phases: bool
    hits: Mapping[tuple[str, Identity], Point]
    ranked: Mapping[Identity, Point]
    apart: Mapping[Identity, str]
    has_other_rows: bool = False


def build_findings(
    summary: Sequence[Point], verdicts: Iterable[Verdict], level: float = 0.95,
    grants: Mapping[str, Grants] | None = None,
) -> list[Finding]:  # fmt: skip
    """What was found: leaks, defenses and their cost, gates, gaps.

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`, at confidence `level`.
        verdicts: of :func:`vflsec.audit.judge.judge`.
        level: confidence of the intervals.
        grants: what is not usual of attacks, by their keys.
    """
    verdicts = list(verdicts)
    attacks = [p for p in correct(summary, verdicts, level) if p.attack]
    unlike = ("defense", "strength", "split", "metric")
    groups = group_by((p for p in attacks if p.is_main), lambda p: p.without(*unlike))
    style = _Style(
        len({at.algorithm for at in groups}) > 1, len({at.phase for at in groups}) > 1,
        {(p.metric, p.answer): p for p in attacks if p.metric in _HITS},
        {p.answer: p for p in attacks if p.is_ranking},
        tell_apart(attacks, grants),
    )  # fmt: skip
    gaps = [_gap(p, style) for p in attacks if p.status != "ok" or p.failed]
    found: list[Finding] = []
    for of, several in sorted(map(_select_rows, groups.values()), key=lambda pair: _size(pair[0])):
        found += _about(of, style._replace(has_other_rows=several))
        found += _membership(of, style._replace(has_other_rows=several))
    return [*found, *map(_of_verdict, verdicts), *{gap.text: gap for gap in gaps}.values()]


def _of_verdict(v: Verdict) -> Finding:
    values = {"threshold": v.threshold} | ({} if v.value is None else {"value": v.value})
    return Finding(FindingKind.VERDICT, format_verdict(v), v.identity, values, (v.low, v.high))


def _select_rows(points: Sequence[Point]) -> tuple[list[Point], bool]:
    """The rows of data that a sentence speaks of: test rows where there are some. Where these leak
    less often, first without a defense, the largest leak. And whether there are other rows.
    """
    usual, *others = group_by(sort_usual(points), lambda r: r.split).values()
    most = max(map(_shows, [usual, *others]))
    if _shows(usual) == most:
        return usual, bool(others)
    return min((of for of in others if _shows(of) == most), key=_size), True


def _shows(rows: Sequence[Point]) -> tuple[bool, bool]:
    """Whether something leaks without a defense, and at all."""
    bare = [r for r in rows if r.is_undefended] or rows
    return any(map(_leaks, bare)), any(map(_leaks, rows))


def _size(rows: Sequence[Point]) -> tuple[bool, float]:
    """Leaks first, the largest first; of an attack its undefended run counts where there is one."""
    bare = [r for r in rows if r.is_undefended] or rows
    gain = max((g for r in bare if (g := r.advantage.mean) is not None), default=-math.inf)
    return not any(_leaks(r) for r in bare), -gain


def _about(rows: Sequence[Point], style: _Style) -> list[Finding]:
    bare = next((r for r in rows if r.is_undefended), None)
    by_defense = group_by((r for r in rows if not r.is_undefended), lambda r: r.defense)
    out = [] if bare is None else [_undefended(bare, style)]
    stops = bare is None or _leaks(bare)
    defended = (_defended(d, of, stops, style) for d, of in by_defense.items())
    return [*out, *(found for found in defended if found is not None)]


def _leaks(r: Point) -> bool:
    return is_leak(r.advantage.mean, r.advantage.low)


def _is_ahead(r: Point, figure: Estimate) -> bool:
    """Whether a figure of the point is significantly better than guessing."""
    error = r.metric in METRICS and not METRICS[r.metric].larger_is_better
    bound = figure.high if error else figure.low
    if bound is None or r.chance is None:
        return False
    return bound < r.chance if error else bound > r.chance


def _is_reversed(r: Point, style: _Style) -> bool:
    """Whether the answer with its labels flipped leaks, so that its silence stops nothing."""
    flipped = style.ranked.get(r.answer, r).mirrored
    return is_leak(flipped.mean, flipped.low)


def _format_reversed(r: Point, style: _Style) -> str:
    r = style.ranked.get(r.answer, r)
    flipped = r.mirrored
    gain = format_gain(r.metric, flipped.mean, flipped.low, flipped.high)
    return f"{_who(r, style)} leaks with labels flipped: {gain}."


def _membership(rows: Sequence[Point], style: _Style) -> list[Finding]:
    """How many rows that were trained on are named at few false alarms; nothing for others.

    Also where the mean over rows leaks nothing, which hides the few that are certain.
    """
    if rows[0].target != "membership":
        return []
    parts, guessed = [], ""
    for r in rows:
        there = [(rate, style.hits.get((m, r.answer))) for m, rate in _HITS.items()]
        of = [(rate, h, v) for rate, h in there if h and (v := h.value.mean) is not None]
        said = [f"{100 * v:.1f} % at {rate} false alarms" for rate, _, v in of]
        if said:
            own = [h.control_value.mean if h.chance is None else h.chance for _, h, _ in of]
            guessed = guessed or " and ".join(f"{100 * (x or 0):.1f} %" for x in own)
            under = "" if r.is_undefended else f"under {r.defense}{_grid([r])}: "
            parts.append(under + " and ".join(said))
    if not parts:
        return []
    whose = rows[0].control if rows[0].chance is None else "guessing"
    text = (
        f"{_place(rows[0], style)}: {_who(rows[0], style)} names {'; '.join(parts)} of training "
        f"rows ({whose} {guessed})."
    )
    return [Finding.of(FindingKind.MEMBERSHIP, rows[0], text)]


def _who(r: Point, style: _Style) -> str:
    by = f"by {r.adversary}" if r.adversary else ""
    return " ".join(filter(None, (r.attack, by, style.apart[find_attack(r)])))


def _plain(x: float | None, sign: bool = False) -> str:
    if x is None:
        return "-"
    return f"{x:+z.2f}" if sign else f"{x:z.2f}"


def _place(r: Point, style: _Style) -> str:
    """The data set, and the training and its phase where there are several."""
    start = r.dataset + (f", {r.algorithm}" if style.trainings else "")
    start += f" after {r.phase}" if style.phases and r.phase else ""
    return start + (f", {r.split} rows" if style.has_other_rows else "")


_Says = Callable[[Point, _Style], str]
_UNDEFENDED: tuple[tuple[FindingKind, Callable[[Point, _Style], bool], _Says], ...] = (
    (FindingKind.NOT_SCORED, lambda r, style: r.value.mean is None,
     lambda r, style: f"{_who(r, style)} has no {metric_name(r.metric)}: one class."),
    (FindingKind.NO_BASELINE, lambda r, style: r.advantage.mean is None,
     lambda r, style: f"{_who(r, style)} reaches {metric_name(r.metric)} {_plain(r.value.mean)}, "
     "without a baseline."),
    (FindingKind.SINGLE_SEED, lambda r, style: r.advantage.low is None,
     lambda r, style: f"{_who(r, style)} reaches {_against(r)}: {_gained(r)}."),
    (FindingKind.LEAK, lambda r, style: _leaks(r),
     lambda r, style: f"{_who(r, style)} leaks: {_against(r)}, {_gained(r)}."),
    (FindingKind.REVERSED_RANKING, lambda r, style: _is_reversed(r, style),
     lambda r, style: _format_reversed(r, style)),
    (FindingKind.BASELINE_PREDICTS,
     lambda r, style: _is_ahead(r, r.control_value) and r.control not in (CHANCE, FALLBACK),
     lambda r, style: f"{_who(r, style)} reaches {_against(r)}: {_gained(r)}, {_beside(r)}."),
    (FindingKind.AT_CHANCE, lambda r, style: r.chance is not None and not _is_ahead(r, r.value),
     lambda r, style: f"{_who(r, style)} is at chance ({_plain(r.value.mean)}): {_gained(r)}."),
    (FindingKind.NO_LEAK_SHOWN, lambda r, style: True,
     lambda r, style: f"{_who(r, style)} reaches {_against(r)}: {_gained(r)}, not significant."),
)  # fmt: skip
"""What is said of an attack without a defense: the first that holds, in a sentence."""


def _undefended(r: Point, style: _Style) -> Finding:
    kind, says = next((kind, says) for kind, holds, says in _UNDEFENDED if holds(r, style))
    chosen = f" Asked about: {r.asked}." if r.asked else ""
    return Finding.of(kind, r, f"{_place(r, style)}: {says(r, style)}{chosen}")


def _against(r: Point) -> str:
    """``AUC 0.99, baseline 0.55 (own columns)``."""
    whose = "by guessing" if r.control in (CHANCE, FALLBACK) else f"({r.control})"
    own = f"{_plain(r.control_value.mean)} {whose}"
    return f"{metric_name(r.metric)} {_plain(r.value.mean)}, baseline {own}"


def _gained(r: Point) -> str:
    return format_gain(r.metric, r.advantage.mean, r.advantage.low, r.advantage.high)


def _beside(r: Point) -> str:
    high = r.advantage.high
    return "significantly worse" if high is not None and high <= -LEAST else "not significant"


def _grid(rows: Sequence[Point]) -> str:
    s = [r.strength for r in rows if r.strength is not None]
    if not s:
        return ""
    listed = ", ".join(f"{x:g}" for x in s)
    return f" at strength{'s' if len(s) > 1 else ''} {listed}"


def _defended(defense: str, rows: Sequence[Point], open_: bool, style: _Style) -> Finding | None:
    """What a defense does to an attack; None where there was nothing to stop (`open_`)."""
    rows = sorted(rows, key=lambda r: (r.strength is None, r.strength or 0.0))
    lead = f"{_place(rows[0], style)}: "
    sure = [r for r in rows if r.advantage.low is not None]
    if not sure:
        figure = any(r.value.mean is not None for r in rows)
        why = ONE_SEED if figure else NO_FIGURE
        text = f"{lead}{defense} against {_who(rows[0], style)}: {why}."
        return Finding.of(FindingKind.DEFENSE_UNDECIDED, rows[0], text)
    turned = [r for r in sure if _is_reversed(r, style)]
    if turned:
        text = f"{lead}under {defense}{_grid(turned)} {_format_reversed(turned[-1], style)}"
        return Finding.of(FindingKind.REVERSED_RANKING, turned[-1], text)
    through = [r for r in sure if _leaks(r)]
    if not open_ and not through:
        return None  # the undefended sentence has said so
    if len(through) == len(sure):
        last = sure[-1]
        at = f" at {last.strength:g}" if len(sure) > 1 and last.strength is not None else ""
        text = (
            f"{lead}{defense}{_grid(sure)} does not stop {_who(last, style)}: {_gained(last)}{at}. "
            f"{_cost(last)}"
        )
        return Finding.of(FindingKind.NOT_STOPPED, last, text)
    first = _first_that_stops(sure)
    but = f"; it is{_grid(through)}" if through else ""
    text = (
        f"{lead}with {defense}{_grid([first])} {_who(first, style)} is not significant: "
        f"{_gained(first)}{but}. {_cost(first)}"
    )
    return Finding.of(FindingKind.STOPPED, first, text)


def _first_that_stops(rows: Sequence[Point]) -> Point:
    """The smallest strength from which on nothing leaks; where there is none, the first that stops.

    Args:
        rows: by strength, of which one at least does not leak.
    """
    tail = rows[1 + max((i for i, r in enumerate(rows) if _leaks(r)), default=-1) :]
    return (tail or [r for r in rows if not _leaks(r)])[0]


def _cost(r: Point) -> str:
    """What the defense costs at a point, in a sentence."""
    of, name, lost = r.utility_drop, metric_name(r.utility_metric), r.failed_trainings
    if of.mean is None:
        kept = "" if r.utility.mean is None else f"; utility {_plain(r.utility.mean)} ({name})"
        text = f"Cost not measured{kept}"
    elif of.low is None or of.high is None:
        text = f"It costs {_plain(of.mean)} of utility ({name}; {ONE_SEED})"
    else:
        ends = f"[{show(of.low, 0.0, '.2f')}, {show(of.high, 0.0, '.2f')}]"
        sure = ", not significant" if holds_zero(of.low, of.high) else ""
        text = f"It costs {_plain(of.mean)} {ends} of utility ({name}){sure}"
    seeds = f", without {format_count(lost, 'seed')} that failed" if lost else ""
    return f"{text}{seeds}."


def format_verdict(v: Verdict) -> str:
    """A verdict as a sentence."""
    strength = f" at strength {v.strength:g}" if v.strength else ""
    at = f" on {v.dataset} with defense {v.defense}{strength}" if v.defense else ""
    return f"{v.verdict}: {v.label}{at}. {v.reason}"


def _gap(r: Point, style: _Style) -> Finding:
    why = f": {r.reason.rstrip('.')}" if r.reason else ""
    where = f"{_who(r, style)} on {r.dataset} with defense {r.defense}"
    if r.failed:
        text = f"{where} failed on {format_count(r.failed, 'seed')}{why}."
        return Finding.of(FindingKind.FAILED, r, text)
    text = f"{where} was not measured ({r.status}{why})."
    return Finding.of(FindingKind.NOT_MEASURED, r, text)
