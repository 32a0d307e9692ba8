"""What an audit found, as values: what kind of finding, where, of whom, with its figures.

What is said is decided by the intervals in the summary; without an interval it says so. Findings
speak of the primary metric, and of test rows where there are some, but of those on which an attack
leaks alone; the largest leaks come first, with their size in people.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from vflsec.audit.controls import CHANCE, FALLBACK, LEAST, leaks
from vflsec.audit.gate import Verdict
from vflsec.audit.metrics import METRICS
from vflsec.audit.point import Estimate, Identity, Point
from vflsec.audit.reversed_ranking import ranking
from vflsec.audit.rounding import show
from vflsec.specs import QUESTIONS, asked


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
class Location:
    """Where something was found; empty where a finding speaks of more than one such place."""

    dataset: str = ""
    algorithm: str = ""
    defense: str = ""
    strength: float | None = None
    phase: str = ""
    split: str = ""

    @classmethod
    def of(cls, at: Identity) -> Location:
        """Where a point is."""
        return cls(at.dataset, at.algorithm, at.defense, at.strength, at.phase, at.split)


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: what it says.
        text: the same as a sentence.
        place: where.
        attacker, target, attack, metric: who guesses what, by which attack, scored by what.
        values: figures by the name of their column in the points (``value``, ``control_value``,
            ``advantage``, ``utility``, ``utility_drop``); of a verdict ``value`` and ``threshold``.
        interval: of the advantage; of a verdict its two bounds; None where there is none.
    """

    kind: FindingKind = FindingKind.VERDICT
    text: str = ""
    place: Location = Location()
    attacker: str = ""
    target: str = ""
    attack: str = ""
    metric: str = ""
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
            kind, text, Location.of(p), p.adversary, p.target, p.attack, p.metric,
            {k: v for k, v in figures.items() if v is not None}, None if None in ends else ends,
        )  # fmt: skip


_NAMES = {
    "auc": "AUC", "leak_auc": "leak AUC", "f1": "F1", "r2": "R²", "accuracy": "accuracy",
    "r2_column": "R² of the column revealed best",
    "balanced_accuracy": "balanced accuracy", "tpr_at_1pct_fpr": "hits at 1 % false alarms",
    "tpr_at_01pct_fpr": "hits at 0.1 % false alarms",
    "macro_auc": "macro AUC", "macro_accuracy": "macro accuracy", "log_loss": "log loss",
    "share_error": "error of the share",
}  # fmt: skip
COUNTED = "tpr_at_1pct_fpr"
"""Hits at one false alarm among a hundred, which tell the size of a leak in people."""
_HITS = {COUNTED: "1 %", "tpr_at_01pct_fpr": "0.1 %"}
_SPLITS = ("test", "validation", "train")


def metric_name(metric: str) -> str:
    """A metric's name in a sentence."""
    return _NAMES.get(metric, metric)


class _Style(NamedTuple):
    """What every sentence of one audit says, or leaves out.

    Attributes:
        trainings, phases: whether there are several, so that a sentence names its own.
        level: printed with the intervals.
        is_only_here: whether the rows of a sentence are the only ones on which the attack leaks.
        hits: points in the metrics that count hits, by metric and answer.
        ranked: points by which answers are looked at with their labels flipped, by answer.
    """

    trainings: bool
    phases: bool
    level: float
    hits: Mapping[tuple[str, Identity], Point]
    ranked: Mapping[Identity, Point]
    is_only_here: bool = False


def build_findings(
    summary: Sequence[Point], verdicts: Iterable[Verdict], level: float = 0.95
) -> list[Finding]:
    """What was found: leaks, defenses and their cost, gates, gaps.

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`, at confidence `level`.
        verdicts: of :func:`vflsec.audit.judge.judge`.
        level: printed with the intervals.
    """
    attacks = [p for p in summary if p.attack]
    gaps = [_gap(p) for p in attacks if p.status != "ok" or p.failed]
    groups: dict[Identity, list[Point]] = defaultdict(list)
    for p in attacks:
        if p.is_main:
            groups[p.without("defense", "strength", "split", "metric")].append(p)
    style = _Style(
        len({at.algorithm for at in groups}) > 1, len({at.phase for at in groups}) > 1, level,
        {(p.metric, p.answer): p for p in attacks if p.metric in _HITS},
        {p.answer: p for p in attacks if ranking(p)},
    )  # fmt: skip
    found: list[Finding] = []
    for of, only in sorted(map(_select_rows, groups.values()), key=lambda pair: _size(pair[0])):
        found += _about(of, style._replace(is_only_here=only))
        found += _membership(of, style._replace(is_only_here=only))
    return [*found, *map(_of_verdict, verdicts), *{gap.text: gap for gap in gaps}.values()]


def _of_verdict(v: Verdict) -> Finding:
    where = Location(v.dataset, v.algorithm, v.defense, v.strength, v.phase, v.split)
    values = {"threshold": v.threshold} | ({} if v.value is None else {"value": v.value})
    return Finding(
        FindingKind.VERDICT, format_verdict(v), where, v.adversary,
        "" if v.gate.target == "*" else v.gate.target, v.attack, v.gate.metric,
        values, (v.low, v.high),
    )  # fmt: skip


def _select_rows(points: Sequence[Point]) -> tuple[list[Point], bool]:
    """The rows of data that a sentence speaks of: test rows where there are some. Where nothing
    leaks on those and something does on others, the largest leak, and that it is there alone.
    """
    by: dict[str, list[Point]] = {s: [] for s in _SPLITS}
    for r in points:
        by.setdefault(r.split, []).append(r)
    usual, *others = [of for of in by.values() if of]
    leaking = [of for of in others if any(map(_leaks, of))]
    if not leaking or any(map(_leaks, usual)):
        return usual, False
    return min(leaking, key=_size), True


def _size(rows: Sequence[Point]) -> tuple[bool, float]:
    """Leaks first, the largest first; of an attack its undefended run counts where there is one."""
    bare = [r for r in rows if r.is_undefended] or rows
    gain = max((g for r in bare if (g := r.advantage.mean) is not None), default=-math.inf)
    return not any(_leaks(r) for r in bare), -gain


def _about(rows: Sequence[Point], style: _Style) -> list[Finding]:
    bare = next((r for r in rows if r.is_undefended), None)
    by_defense: dict[str, list[Point]] = defaultdict(list)
    for r in rows:
        if not r.is_undefended:
            by_defense[r.defense].append(r)
    out = [] if bare is None else [_undefended(bare, style)]
    stops = bare is None or _leaks(bare)
    defended = (_defended(d, of, stops, style) for d, of in by_defense.items())
    return [*out, *(found for found in defended if found is not None)]


def _leaks(r: Point) -> bool:
    return leaks(r.advantage.mean, r.advantage.low)


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
    return leaks(flipped.mean, flipped.low)


def _format_reversed(r: Point, style: _Style) -> str:
    r = style.ranked.get(r.answer, r)
    return (
        f"{_who(r)} ranks in reverse ({metric_name(r.metric)} {_plain(r.value.mean)}): with "
        f"labels flipped it is {_plain(1 - (r.value.mean or 0.0))} against "
        f"{_plain(r.control_value.mean)} {_control(r)}, "
        "so whoever knows which way round it is has the labels."
    )


def in_people(r: Point, hits: Point | None) -> str:
    """The size of a leak as a count of rows out of a hundred, beside what the control counts.

    Args:
        r: the attack's :class:`~vflsec.audit.point.Point` in the metric that verdicts rest on.
        hits: its point in :data:`COUNTED`, if there is one.

    Returns:
        a sentence with a blank before it, or ''.
    """
    found = r if hits is None else hits
    own, value = found.control_value.mean, found.value.mean
    if own is None or value is None:
        return ""
    mine, its = round(100 * value), round(100 * own)
    who = r.adversary or "the adversary"
    if r.target == "membership":
        return ""
    if found.metric == COUNTED:
        question = r.of_label
        which = asked(question) if question in QUESTIONS else "of class 1"
        which = "with a yes" if r.asked else which
        return (
            f" Of 100 rows {which} {who} could name {mine}, against {its} without the "
            "federation, at one false alarm among 100 others."
        )
    if r.target in ("label", "attribute") and found.metric in ("accuracy",):
        return (
            f" Of 100 rows {who} could label {mine} rightly, against {its} without the federation."
        )
    return ""


def _membership(rows: Sequence[Point], style: _Style) -> list[Finding]:
    """How many rows that were trained on are named at few false alarms; nothing for others.

    Told where the mean over rows leaks nothing, too, for that hides the few that are certain.
    """
    if rows[0].target != "membership":
        return []
    parts, guessed = [], ""
    for r in rows:
        there = [(rate, style.hits.get((m, r.answer))) for m, rate in _HITS.items()]
        of = [(rate, h, v) for rate, h in there if h and (v := h.value.mean) is not None]
        said = [f"{100 * v:.1f} % at {rate} false alarms" for rate, _, v in of]
        if said:
            guessed = guessed or " and ".join(f"{100 * (h.chance or 0):.1f} %" for _, h, _ in of)
            under = "" if r.is_undefended else f"under {r.defense}{_grid([r])}: "
            parts.append(under + " and ".join(said))
    if not parts:
        return []
    text = (
        f"{_place(rows[0], style)}, of the rows that were trained on {_who(rows[0])} names "
        f"{'; '.join(parts)}; guessing would name {guessed}."
    )
    return [Finding.of(FindingKind.MEMBERSHIP, rows[0], text)]


def _who(r: Point) -> str:
    return f"{r.attack} by {r.adversary}" if r.adversary else str(r.attack)


def _interval(of: Estimate, level: float) -> str:
    low, high = (show(x or 0.0, 0.0, ".2f") for x in (of.low, of.high))
    return f"{level * 100:g} % interval {low} to {high}"


def _plain(x: float | None, sign: bool = False) -> str:
    if x is None:
        return "-"
    return f"{x:+z.2f}" if sign else f"{x:z.2f}"


def _control(r: Point) -> str:
    if r.control in (CHANCE, FALLBACK):
        return "by guessing"
    return f"for its baseline ({r.control})"


def _place(r: Point, style: _Style) -> str:
    """The data set, and the training and its phase where there are several."""
    start = f"On {r.dataset}" + (f" trained by {r.algorithm}" if style.trainings else "")
    start += f" after {r.phase}" if style.phases and r.phase else ""
    return start + (f", on {r.split} rows alone" if style.is_only_here else "")


_Says = Callable[[Point, _Style], str]
_UNDEFENDED: tuple[tuple[FindingKind, Callable[[Point, _Style], bool], _Says], ...] = (
    (FindingKind.NOT_SCORED, lambda r, style: r.value.mean is None,
     lambda r, style: f"{_who(r)} has no {metric_name(r.metric)}, so nothing is concluded; rows "
     "that are all of one class give none."),
    (FindingKind.NO_BASELINE, lambda r, style: r.advantage.mean is None,
     lambda r, style: f"{_who(r)} reaches {metric_name(r.metric)} {_plain(r.value.mean)}; there "
     "is no control to compare with."),
    (FindingKind.SINGLE_SEED, lambda r, style: r.advantage.low is None,
     lambda r, style: f"{_who(r)} reaches {_against(r)} ({_plain(r.advantage.mean, sign=True)}); "
     "one seed gives no interval, so nothing is concluded."),
    (FindingKind.LEAK, lambda r, style: _leaks(r),
     lambda r, style: f"the federation leaks to {r.adversary or 'the adversary'}: {r.attack} "
     f"reaches {_against(r)} ({_gained(r, style)})."),
    (FindingKind.REVERSED_RANKING, lambda r, style: _is_reversed(r, style),
     lambda r, style: _format_reversed(r, style)),
    (FindingKind.BASELINE_PREDICTS,
     lambda r, style: _is_ahead(r, r.control_value) and r.control not in (CHANCE, FALLBACK),
     lambda r, style: _format_baseline(r, style)),
    (FindingKind.AT_CHANCE, lambda r, style: not _is_ahead(r, r.value),
     lambda r, style: f"{_who(r)} is not significantly better than guessing "
     f"({metric_name(r.metric)} {_plain(r.value.mean)}, chance "
     f"{'unknown' if r.chance is None else _plain(r.chance)}; advantage {_gained(r, style)})."),
    (FindingKind.NO_LEAK_SHOWN, lambda r, style: True,
     lambda r, style: f"{_who(r)} reaches {_against(r)} ({_gained(r, style)})."),
)  # fmt: skip
"""What is said of an attack without a defense: the first that holds, in a sentence."""


def _undefended(r: Point, style: _Style) -> Finding:
    kind, says = next((kind, says) for kind, holds, says in _UNDEFENDED if holds(r, style))
    told = f" Told best, as auxiliary rows say: {r.asked}." if r.asked else ""
    text = f"{_place(r, style)}, {says(r, style)}{told}"
    if kind == FindingKind.LEAK:
        text += in_people(r, style.hits.get((COUNTED, r.answer)))
    return Finding.of(kind, r, text)


def _against(r: Point) -> str:
    """``AUC 0.99 against 0.55 for its baseline (own columns)``."""
    own = f"{_plain(r.control_value.mean)} {_control(r)}"
    return f"{metric_name(r.metric)} {_plain(r.value.mean)} against {own}"


def _gained(r: Point, style: _Style) -> str:
    return f"{_plain(r.advantage.mean, sign=True)}, {_interval(r.advantage, style.level)}"


def _format_baseline(r: Point, style: _Style) -> str:
    worse = r.advantage.high is not None and r.advantage.high <= -LEAST
    below = "does worse than that" if worse else "is not shown to add to that"
    return (
        f"what {r.adversary or 'the adversary'} has already predicts the "
        f"{r.target or 'label'} ({r.control}: {metric_name(r.metric)} "
        f"{_plain(r.control_value.mean)}); {r.attack} {below} ({_gained(r, style)})."
    )


def _grid(rows: Sequence[Point]) -> str:
    s = [r.strength for r in rows if r.strength is not None]
    if not s:
        return ""
    listed = ", ".join(f"{x:g}" for x in s)
    return f" at strength{'s' if len(s) > 1 else ''} {listed}"


def _defended(defense: str, rows: Sequence[Point], open_: bool, style: _Style) -> Finding | None:
    """What a defense does to an attack; None where there was nothing to stop (`open_`)."""
    rows = sorted(rows, key=lambda r: (r.strength is None, r.strength or 0.0))
    lead = f"{_place(rows[0], style)}, "
    sure = [r for r in rows if r.advantage.low is not None]
    if not sure:
        figure = any(r.value.mean is not None for r in rows)
        why = "one seed gives no interval" if figure else "there is no figure"
        text = f"{lead}{defense} against {_who(rows[0])}: {why}."
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
        text = (
            f"{lead}{defense}{_grid(sure)} does not stop {_who(last)} ({_against(last)}"
            f"{_strongest(sure)}). {_cost(last, style.level)}"
        )
        return Finding.of(FindingKind.NOT_STOPPED, last, text)
    first = _first_that_stops(sure)
    return Finding.of(
        FindingKind.STOPPED, first, f"{lead}{_stopped(defense, first, through, style)}"
    )


def _first_that_stops(rows: Sequence[Point]) -> Point:
    """The smallest strength from which on nothing leaks; where there is none, the first that stops.

    Args:
        rows: by strength, of which one at least does not leak.
    """
    tail = rows[1 + max((i for i, r in enumerate(rows) if _leaks(r)), default=-1) :]
    return (tail or [r for r in rows if not _leaks(r)])[0]


def _stopped(defense: str, first: Point, through: Sequence[Point], style: _Style) -> str:
    gain = _gained(first, style)
    kept = f"no advantage that {first.seeds} seeds can show ({gain})"
    cost = _cost(first, style.level)
    if not through:
        return f"{defense}{_grid([first])} leaves {_who(first)} {kept}. {cost}"
    weak = through[0]
    at = f" at {weak.strength:g}" if len(through) > 1 else ""
    return (
        f"{defense}{_grid(through)} does not stop {_who(weak)} ({_against(weak)}{at});"
        f"{_grid([first])} it leaves {kept}. {cost}"
    )


def _strongest(rows: Sequence[Point]) -> str:
    return f" at {rows[-1].strength:g}" if len(rows) > 1 and rows[-1].strength is not None else ""


def _cost(r: Point, level: float) -> str:
    lost = r.failed_trainings
    if not lost:
        return _paid(r, level)
    seeds = f"{lost} seed{'s' if lost > 1 else ''}"
    return f"{_paid(r, level)} That is without {seeds} on which the training failed."


def _paid(r: Point, level: float) -> str:
    at = f"At strength {r.strength:g} it" if r.strength is not None else "It"
    name = metric_name(r.utility_metric)
    if r.utility.mean is None:
        return f"{at} has an unknown cost: utility was not measured."
    if r.utility_drop.mean is None:
        kept = f"{_plain(r.utility.mean)} ({name})"
        return f"{at} leaves a utility of {kept}; its cost was not measured."
    of, drop = r.utility_drop, _plain(r.utility_drop.mean)
    if of.low is None or of.high is None:
        return f"{at} costs {drop} of utility ({name}; one seed, no interval)."
    sure = f"{name}, {_interval(of, level)}"
    if of.low > 0:
        return f"{at} costs {drop} of utility ({sure})."
    if of.high < 0:
        return f"{at} gains {_plain(-r.utility_drop.mean)} of utility (drop in {sure})."
    return f"{at} has no cost in utility that the seeds can show ({drop}; {sure})."


def format_verdict(v: Verdict) -> str:
    """A verdict as a sentence."""
    strength = f" at strength {v.strength:g}" if v.strength else ""
    at = f" on {v.dataset} with defense {v.defense}{strength}" if v.defense else ""
    return f"{v.verdict}: {v.label}{at}. {v.reason}"


def _gap(r: Point) -> Finding:
    why = f": {r.reason.rstrip('.')}" if r.reason else ""
    where = f"{_who(r)} on {r.dataset} with defense {r.defense}"
    if r.failed:
        seeds = f"{r.failed} seed{'s' if r.failed > 1 else ''}"
        return Finding.of(FindingKind.FAILED, r, f"{where} failed on {seeds}{why}.")
    text = f"{where} was not measured ({r.status}{why})."
    return Finding.of(FindingKind.NOT_MEASURED, r, text)
