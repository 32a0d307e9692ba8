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
from typing import Any, NamedTuple

from vflsec.audit.controls import CHANCE, FALLBACK, LEAST, leaks
from vflsec.audit.gate import Verdict
from vflsec.audit.leakage import is_undefended, rows_of
from vflsec.audit.metrics import METRICS
from vflsec.audit.point import Point
from vflsec.audit.reversed_ranking import ranking
from vflsec.audit.rounding import beside
from vflsec.specs import QUESTIONS, asked

__all__ = ["COUNTED", "Finding", "FindingKind", "Location", "build_findings", "format_verdict",
           "in_people", "metric_name"]  # fmt: skip

Row = Mapping[str, Any]


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
    def of(cls, row: Row) -> Location:
        """Where a point, a verdict's fields or another row is."""
        found = {k: row[k] for k in cls.__dataclass_fields__ if k in row}
        return cls(**found | {"strength": row["strength"] if _known(row["strength"]) else None})


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

    kind: FindingKind
    text: str
    place: Location = Location()
    attacker: str = ""
    target: str = ""
    attack: str = ""
    metric: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    interval: tuple[float | None, float | None] | None = None

    @classmethod
    def of(cls, kind: FindingKind, row: Row, text: str) -> Finding:
        """A finding about a point."""
        ends = row.get("advantage_low"), row.get("advantage_high")
        return cls(
            kind, text, Location.of(row), row["adversary"], row["target"], row["attack"],
            row["metric"], {k: float(row[k]) for k in _FIGURES if _known(row.get(k))},
            ends if all(map(_known, ends)) else None,
        )  # fmt: skip


_FIGURES = ("value", "control_value", "advantage", "utility", "utility_drop")
_NAMES = {
    "auc": "AUC", "leak_auc": "leak AUC", "f1": "F1", "r2": "R²", "accuracy": "accuracy",
    "r2_column": "R² of the column told best",
    "balanced_accuracy": "balanced accuracy", "tpr_at_1pct_fpr": "hits at 1 % false alarms",
    "tpr_at_01pct_fpr": "hits at 0.1 % false alarms",
    "macro_auc": "macro AUC", "macro_accuracy": "macro accuracy", "log_loss": "log loss",
    "share_error": "error of the share",
}  # fmt: skip
_UNSCORED = "has no {}, so nothing is concluded; rows that are all of one class give none"
COUNTED = "tpr_at_1pct_fpr"
"""Hits at one false alarm among a hundred, which tell the size of a leak in people."""
_HITS = {COUNTED: "1 %", "tpr_at_01pct_fpr": "0.1 %"}
_SPLITS = ("test", "validation", "train")
_ATTACK = ("dataset", "algorithm", "phase", "adversary", "attack", "attack_key", "target")


def metric_name(metric: str) -> str:
    """A metric's name in a sentence."""
    return _NAMES.get(metric, metric)


class _Style(NamedTuple):
    """What every sentence of one audit says, or leaves out.

    Attributes:
        trainings, phases: whether there are several, so that a sentence names its own.
        level: printed with the intervals.
        hits: points in the metrics that count hits, by metric and place.
    """

    trainings: bool
    phases: bool
    level: float
    hits: Mapping[tuple[str, tuple[Any, ...]], Row]


def build_findings(
    summary: Sequence[Point], verdicts: Iterable[Verdict], level: float = 0.95
) -> list[Finding]:
    """What was found: leaks, defenses and their cost, gates, gaps.

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`, at confidence `level`.
        verdicts: of :func:`vflsec.audit.judge.judge`.
        level: printed with the intervals.
    """
    rows = rows_of(summary)
    attacks = [r for r in rows if r["attack"]]
    gaps = [_gap(r) for r in attacks if r["status"] != "ok" or r["failed"]]
    groups = _by_attack(attacks)
    hits = {(r["metric"], _where(r)): r for r in rows if r["metric"] in _HITS}
    style = _Style(len({k[1] for k in groups}) > 1, len({k[2] for k in groups}) > 1, level, hits)
    found: list[Finding] = []
    for of in sorted(map(_told, groups.values()), key=_size):
        found += _about(of, style)
        found += _membership(of, style)
    return [*found, *map(_of_verdict, verdicts), *{gap.text: gap for gap in gaps}.values()]


def _by_attack(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """What was measured of each attack, with the point by which its answer is turned round."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    ranks = {_where(r): r for r in rows if ranking(r)}
    for r in rows:
        if r["status"] == "ok" and r["metric"] == r["primary"]:
            ranked = {**r, "ranked": ranks.get(_where(r), r)}
            groups[tuple(r[k] for k in _ATTACK)].append(ranked)
    return groups


def _of_verdict(v: Verdict) -> Finding:
    where = Location(v.dataset, v.algorithm, v.defense, v.strength, v.phase, v.split)
    values = {"threshold": v.threshold} | ({} if v.value is None else {"value": v.value})
    return Finding(
        FindingKind.VERDICT, format_verdict(vars(v) | {"label": v.gate.label}), where, v.adversary,
        "" if v.gate.target == "*" else v.gate.target, v.attack, v.gate.metric,
        values, (v.low, v.high),
    )  # fmt: skip


def _told(rows: Sequence[Row]) -> list[Row]:
    """The rows of data that a sentence speaks of: test rows where there are some. Where nothing
    leaks on those and something does on others, the largest leak, and ``alone`` says so.
    """
    by: dict[str, list[Row]] = {s: [] for s in _SPLITS}
    for r in rows:
        by.setdefault(r["split"], []).append(r)
    usual, *others = [of for of in by.values() if of]
    leaking = [of for of in others if any(map(_leaks, of))]
    if not leaking or any(map(_leaks, usual)):
        return usual
    return [{**r, "alone": True} for r in min(leaking, key=_size)]


def _size(rows: Sequence[Row]) -> tuple[bool, float]:
    """Leaks first, the largest first; of an attack its undefended run counts where there is one."""
    bare = [r for r in rows if is_undefended(r)] or rows
    gain = max((r["advantage"] for r in bare if _known(r["advantage"])), default=-math.inf)
    return not any(_leaks(r) for r in bare), -gain


def _where(r: Row) -> tuple[Any, ...]:
    known = r["strength"] if _known(r["strength"]) else None
    return (*(r[k] for k in _ATTACK), r["split"], r["defense"], known)


def _about(rows: Sequence[Row], style: _Style) -> list[Finding]:
    bare = next((r for r in rows if is_undefended(r)), None)
    by_defense: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        if not is_undefended(r):
            by_defense[r["defense"]].append(r)
    out = [] if bare is None else [_undefended(bare, style)]
    stops = bare is None or _leaks(bare)
    defended = (_defended(d, of, stops, style) for d, of in by_defense.items())
    return [*out, *(found for found in defended if found is not None)]


def _known(x: float | None) -> bool:
    return x is not None and x == x


def _leaks(r: Row) -> bool:
    return leaks(r["advantage"], r["advantage_low"])


def _is_ahead(r: Row, what: str) -> bool:
    """Whether `what` (``value``, ``control_value``) is surely better than guessing."""
    error = r["metric"] in METRICS and not METRICS[r["metric"]].larger_is_better
    bound, chance = r[f"{what}_high" if error else f"{what}_low"], r["chance"]
    if not _known(bound) or not _known(chance):
        return False
    return bool(bound < chance if error else bound > chance)


def _is_reversed(r: Row) -> bool:
    """Whether the answer turned round leaks, so that its silence stops nothing."""
    r = r["ranked"]
    return _known(r.get("mirrored_low")) and leaks(r["mirrored"], r["mirrored_low"])


def _turned(r: Row) -> str:
    r = r["ranked"]
    return (
        f"{_who(r)} ranks in reverse ({metric_name(r['metric'])} {_plain(r['value'])}): turned "
        f"round it is {_plain(1 - r['value'])} against {_plain(r['control_value'])} {_control(r)}, "
        "so whoever knows which way round it is has the labels."
    )


def _told_best(r: Row) -> str:
    """What the attack chose to be asked, with the number of seeds where these differ."""
    return f" Told best, as auxiliary rows say: {r['asked']}." if r.get("asked") else ""


def in_people(r: Any, hits: Any) -> str:
    """The size of a leak as a count of rows out of a hundred, beside what the control counts.

    Args:
        r: the attack's :class:`~vflsec.audit.point.Point` in the metric that verdicts rest on.
        hits: its point in :data:`COUNTED`, if there is one.

    Returns:
        a sentence with a blank before it, or ''.
    """
    found = r if hits is None else hits
    own, value = found["control_value"], found["value"]
    if not _known(own) or not _known(value):
        return ""
    mine, its = round(100 * value), round(100 * own)
    who = r["adversary"] or "the adversary"
    if r["target"] == "membership":
        return ""
    if found["metric"] == COUNTED:
        question = r.get("of_label", "")
        which = asked(question) if question in QUESTIONS else "of class 1"
        which = "with a yes" if r.get("asked") else which
        return (
            f" Of 100 rows {which} {who} could name {mine}, against {its} by itself, at one "
            "false alarm among 100 others."
        )
    if r["target"] in ("label", "attribute") and found["metric"] in ("accuracy",):
        return f" Of 100 rows {who} could label {mine} rightly, against {its} by itself."
    return ""


def _membership(rows: Sequence[Row], style: _Style) -> list[Finding]:
    """How many rows that were trained on are named at few false alarms; nothing for others.

    Told where the mean over rows leaks nothing, too, for that hides the few that are certain.
    """
    if rows[0]["target"] != "membership":
        return []
    parts, guessed = [], ""
    for r in rows:
        there = [(rate, style.hits.get((m, _where(r)))) for m, rate in _HITS.items()]
        of = [(rate, h) for rate, h in there if h is not None and _known(h["value"])]
        said = [f"{100 * h['value']:.1f} % at {rate} false alarms" for rate, h in of]
        if said:
            guessed = guessed or " and ".join(f"{100 * h['chance']:.1f} %" for _, h in of)
            under = "" if is_undefended(r) else f"under {r['defense']}{_grid([r])}: "
            parts.append(under + " and ".join(said))
    if not parts:
        return []
    text = (
        f"{_place(rows[0], style)}, of the rows that were trained on {_who(rows[0])} names "
        f"{'; '.join(parts)}; guessing would name {guessed}."
    )
    return [Finding.of(FindingKind.MEMBERSHIP, rows[0], text)]


def _who(r: Row) -> str:
    return f"{r['attack']} by {r['adversary']}" if r["adversary"] else str(r["attack"])


def _interval(r: Row, name: str, level: float) -> str:
    low, high = (beside(r[f"{name}_{end}"], 0.0, ".2f") for end in ("low", "high"))
    return f"{level * 100:g} % interval {low} to {high}"


def _plain(x: float, sign: bool = False) -> str:
    return f"{x:+z.2f}" if sign else f"{x:z.2f}"


def _control(r: Row) -> str:
    if r["control"] in (CHANCE, FALLBACK):
        return "by guessing"
    return f"for its own means ({r['control']})"


def _place(r: Row, style: _Style) -> str:
    """The data set, and the training and its phase where there are several."""
    start = f"On {r['dataset']}" + (f" trained by {r['algorithm']}" if style.trainings else "")
    start += f" after {r['phase']}" if style.phases and r["phase"] else ""
    return start + (f", on {r['split']} rows alone" if r.get("alone") else "")


_UNDEFENDED: tuple[tuple[FindingKind, Callable[[Row], bool]], ...] = (
    (FindingKind.NOT_SCORED, lambda r: not _known(r["value"])),
    (FindingKind.NO_BASELINE, lambda r: not _known(r["advantage"])),
    (FindingKind.SINGLE_SEED, lambda r: not _known(r["advantage_low"])),
    (FindingKind.LEAK, lambda r: _leaks(r)),
    (FindingKind.REVERSED_RANKING, lambda r: _is_reversed(r)),
    (FindingKind.BASELINE_PREDICTS, lambda r: (
        _is_ahead(r, "control_value") and r["control"] not in (CHANCE, FALLBACK)
    )),
    (FindingKind.AT_CHANCE, lambda r: not _is_ahead(r, "value")),
    (FindingKind.NO_LEAK_SHOWN, lambda r: True),
)  # fmt: skip
"""What is said of an attack without a defense: the first that holds."""


def _undefended(r: Row, style: _Style) -> Finding:
    kind = next(kind for kind, holds in _UNDEFENDED if holds(r))
    text = f"{_place(r, style)}, {_SAYS[kind](r, style)}{_told_best(r)}"
    if kind == FindingKind.LEAK:
        text += in_people(r, style.hits.get((COUNTED, _where(r))))
    return Finding.of(kind, r, text)


def _against(r: Row) -> str:
    """``AUC 0.99 against 0.55 for its own means (own columns)``."""
    own = f"{_plain(r['control_value'])} {_control(r)}"
    return f"{metric_name(r['metric'])} {_plain(r['value'])} against {own}"


def _gained(r: Row, style: _Style) -> str:
    return f"{_plain(r['advantage'], sign=True)}, {_interval(r, 'advantage', style.level)}"


def _not_scored(r: Row, style: _Style) -> str:
    return f"{_who(r)} {_UNSCORED.format(metric_name(r['metric']))}."


def _no_baseline(r: Row, style: _Style) -> str:
    shown = f"{metric_name(r['metric'])} {_plain(r['value'])}"
    return f"{_who(r)} reaches {shown}; there is no control to compare with."


def _single_seed(r: Row, style: _Style) -> str:
    gain = _plain(r["advantage"], sign=True)
    return (
        f"{_who(r)} reaches {_against(r)} ({gain}); one seed gives no interval, so nothing is "
        "concluded."
    )


def _leak(r: Row, style: _Style) -> str:
    return (
        f"the federation leaks to {r['adversary'] or 'the adversary'}: {r['attack']} reaches "
        f"{_against(r)} ({_gained(r, style)})."
    )


def _baseline_predicts(r: Row, style: _Style) -> str:
    worse = r["advantage_high"] <= -LEAST
    below = "does worse than that" if worse else "is not shown to add to that"
    return (
        f"what {r['adversary'] or 'the adversary'} has already predicts the "
        f"{r['target'] or 'label'} ({r['control']}: {metric_name(r['metric'])} "
        f"{_plain(r['control_value'])}); {r['attack']} {below} ({_gained(r, style)})."
    )


def _at_chance(r: Row, style: _Style) -> str:
    chance = _plain(r["chance"]) if _known(r["chance"]) else "unknown"
    return (
        f"{_who(r)} is not told from guessing ({metric_name(r['metric'])} {_plain(r['value'])}, "
        f"chance {chance}; advantage {_gained(r, style)})."
    )


def _no_leak_shown(r: Row, style: _Style) -> str:
    return f"{_who(r)} reaches {_against(r)} ({_gained(r, style)})."


_SAYS: Mapping[FindingKind, Callable[[Row, _Style], str]] = {
    FindingKind.NOT_SCORED: _not_scored,
    FindingKind.NO_BASELINE: _no_baseline,
    FindingKind.SINGLE_SEED: _single_seed,
    FindingKind.LEAK: _leak,
    FindingKind.REVERSED_RANKING: lambda r, style: _turned(r),
    FindingKind.BASELINE_PREDICTS: _baseline_predicts,
    FindingKind.AT_CHANCE: _at_chance,
    FindingKind.NO_LEAK_SHOWN: _no_leak_shown,
}


def _grid(rows: Sequence[Row]) -> str:
    s = [r["strength"] for r in rows if _known(r["strength"])]
    if not s:
        return ""
    listed = ", ".join(f"{x:g}" for x in s)
    return f" at strength{'s' if len(s) > 1 else ''} {listed}"


def _defended(defense: str, rows: Sequence[Row], open_: bool, style: _Style) -> Finding | None:
    """What a defense does to an attack; None where there was nothing to stop (`open_`)."""
    rows = sorted(rows, key=lambda r: (r["strength"] != r["strength"], r["strength"]))
    lead = f"{_place(rows[0], style)}, "
    sure = [r for r in rows if _known(r["advantage_low"])]
    if not sure:
        figure = any(_known(r["value"]) for r in rows)
        why = "one seed gives no interval" if figure else "there is no figure"
        text = f"{lead}{defense} against {_who(rows[0])}: {why}."
        return Finding.of(FindingKind.DEFENSE_UNDECIDED, rows[0], text)
    turned = [r for r in sure if _is_reversed(r)]
    if turned:
        text = f"{lead}under {defense}{_grid(turned)} {_turned(turned[-1])}"
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


def _first_that_stops(rows: Sequence[Row]) -> Row:
    """The smallest strength from which on nothing leaks; where there is none, the first that stops.

    Args:
        rows: by strength, of which one at least does not leak.
    """
    tail = rows[1 + max((i for i, r in enumerate(rows) if _leaks(r)), default=-1) :]
    return (tail or [r for r in rows if not _leaks(r)])[0]


def _stopped(defense: str, first: Row, through: Sequence[Row], style: _Style) -> str:
    gain = _gained(first, style)
    kept = f"no advantage that {first['seeds']} seeds can show ({gain})"
    cost = _cost(first, style.level)
    if not through:
        return f"{defense}{_grid([first])} leaves {_who(first)} {kept}. {cost}"
    weak = through[0]
    at = f" at {weak['strength']:g}" if len(through) > 1 else ""
    return (
        f"{defense}{_grid(through)} does not stop {_who(weak)} ({_against(weak)}{at});"
        f"{_grid([first])} it leaves {kept}. {cost}"
    )


def _strongest(rows: Sequence[Row]) -> str:
    return f" at {rows[-1]['strength']:g}" if len(rows) > 1 and _known(rows[-1]["strength"]) else ""


def _cost(r: Row, level: float) -> str:
    lost = int(r.get("failed_trainings") or 0)
    if not lost:
        return _paid(r, level)
    seeds = f"{lost} seed{'s' if lost > 1 else ''}"
    return f"{_paid(r, level)} That is without {seeds} on which the training failed."


def _paid(r: Row, level: float) -> str:
    at = f"At strength {r['strength']:g} it" if _known(r["strength"]) else "It"
    name = metric_name(r["utility_metric"])
    if not _known(r["utility"]):
        return f"{at} has an unknown cost: utility was not measured."
    if not _known(r["utility_drop"]):
        kept = f"{_plain(r['utility'])} ({name})"
        return f"{at} leaves a utility of {kept}; its cost was not measured."
    drop = _plain(r["utility_drop"])
    if not _known(r["utility_drop_low"]):
        return f"{at} costs {drop} of utility ({name}; one seed, no interval)."
    sure = f"{name}, {_interval(r, 'utility_drop', level)}"
    if r["utility_drop_low"] > 0:
        return f"{at} costs {drop} of utility ({sure})."
    if r["utility_drop_high"] < 0:
        return f"{at} gains {_plain(-r['utility_drop'])} of utility (drop in {sure})."
    return f"{at} has no cost in utility that the seeds can show ({drop}; {sure})."


def format_verdict(v: Row) -> str:
    """A verdict as a sentence, from its fields and the label of its gate."""
    strength = f" at strength {v['strength']:g}" if v["strength"] else ""
    at = f" on {v['dataset']} with defense {v['defense']}{strength}" if v["defense"] else ""
    return f"{v['verdict']}: {v['label']}{at}. {v['reason']}"


def _gap(r: Row) -> Finding:
    why = f": {str(r['reason']).rstrip('.')}" if r["reason"] else ""
    where = f"{_who(r)} on {r['dataset']} with defense {r['defense']}"
    if r["failed"]:
        seeds = f"{r['failed']} seed{'s' if r['failed'] > 1 else ''}"
        return Finding.of(FindingKind.FAILED, r, f"{where} failed on {seeds}{why}.")
    text = f"{where} was not measured ({r['status']}{why})."
    return Finding.of(FindingKind.NOT_MEASURED, r, text)
