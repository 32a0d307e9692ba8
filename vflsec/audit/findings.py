"""One plain sentence for each finding, for the console and the reports.

What a sentence says is decided by the intervals in the summary; without an interval it says so.
Sentences speak of the primary metric, and of test rows where there are some, but of those on which
an attack leaks alone; the largest leaks come first, with their size in people.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vflsec.audit.beside import beside
from vflsec.audit.controls import CHANCE, FALLBACK, LEAST, leaks
from vflsec.audit.gate import Verdict
from vflsec.audit.leakage import is_undefended, rows_of
from vflsec.audit.metrics import METRICS
from vflsec.audit.point import Point
from vflsec.audit.reverse import ranking
from vflsec.cell import QUESTIONS, asked

__all__ = ["COUNTED", "in_people", "metric_name", "sentences"]

Row = Mapping[str, Any]

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


def sentences(
    summary: Sequence[Point], verdicts: Iterable[Verdict], level: float = 0.95
) -> list[str]:
    """What was found, one sentence each: leaks, defenses and their cost, gates, gaps.

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`, at confidence `level`.
        verdicts: of :func:`vflsec.audit.gate.judge`.
        level: printed with the intervals.
    """
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    gaps: dict[str, None] = {}
    ranks = {_where(r): r for r in rows_of(summary) if r["attack"] and ranking(r)}
    for r in rows_of(summary):
        if not r["attack"]:
            continue
        if r["status"] != "ok" or r["failed"]:
            gaps[_gap(r)] = None
        if r["status"] == "ok" and r["metric"] == r["primary"]:
            ranked = {"ranked": ranks.get(_where(r), r)}
            groups[tuple(r[k] for k in _ATTACK)].append(r | ranked)
    hits = {(r["metric"], _where(r)): r for r in rows_of(summary) if r["metric"] in _HITS}
    counted = {where: r for (metric, where), r in hits.items() if metric == COUNTED}
    found: list[str] = []
    many = len({k[1] for k in groups}) > 1, len({k[2] for k in groups}) > 1
    for of in sorted(map(_told, groups.values()), key=_size):
        found += _about(of, many, level, counted)
        found += _membership(of, many, hits)
    found += [f"{v.verdict}: {v.gate.label}{_at(v)}. {v.reason}" for v in verdicts]
    return [*found, *gaps]


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


def _about(
    rows: Sequence[Row],
    many: tuple[bool, bool],
    level: float,
    counted: Mapping[tuple[Any, ...], Row],
) -> list[str]:
    bare = [r for r in rows if is_undefended(r)]
    reference = bare[0] if bare else None
    out = []
    if reference:
        hits = counted.get(_where(reference))
        people = in_people(reference, hits) if _leaks(reference) else ""
        out.append(_undefended(reference, many, level) + _told_best(reference) + people)
    by_defense: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        if not is_undefended(r):
            by_defense[r["defense"]].append(r)
    stops = reference is None or _leaks(reference)
    out += [_defended(d, of, stops, many, level) for d, of in by_defense.items()]
    return [sentence for sentence in out if sentence]


def _known(x: float | None) -> bool:
    return x is not None and x == x


def _leaks(r: Row) -> bool:
    return leaks(r["advantage"], r["advantage_low"])


def _ahead(r: Row, what: str) -> bool:
    """Whether `what` (``value``, ``control_value``) is surely better than guessing."""
    error = r["metric"] in METRICS and not METRICS[r["metric"]].larger_is_better
    bound, chance = r[f"{what}_high" if error else f"{what}_low"], r["chance"]
    if not _known(bound) or not _known(chance):
        return False
    return bool(bound < chance if error else bound > chance)


def _reversed(r: Row) -> bool:
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


def in_people(r: Row, hits: Row | None) -> str:
    """The size of a leak as a count of rows out of a hundred, beside what the control counts.

    Args:
        r: the attack's point in the metric that verdicts rest on.
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


def _membership(
    rows: Sequence[Row], many: tuple[bool, bool], hits: Mapping[tuple[str, tuple[Any, ...]], Row]
) -> list[str]:
    """How many rows that were trained on are named at few false alarms; nothing for others.

    Told where the mean over rows leaks nothing, too, for that hides the few that are certain.
    """
    if rows[0]["target"] != "membership":
        return []
    parts, guessed = [], ""
    for r in rows:
        there = [(rate, hits.get((m, _where(r)))) for m, rate in _HITS.items()]
        of = [(rate, h) for rate, h in there if h is not None and _known(h["value"])]
        said = [f"{100 * h['value']:.1f} % at {rate} false alarms" for rate, h in of]
        if said:
            guessed = guessed or " and ".join(f"{100 * h['chance']:.1f} %" for _, h in of)
            under = "" if is_undefended(r) else f"under {r['defense']}{_grid([r])}: "
            parts.append(under + " and ".join(said))
    if not parts:
        return []
    return [
        f"{_place(rows[0], many)}, of the rows that were trained on {_who(rows[0])} names "
        f"{'; '.join(parts)}; guessing would name {guessed}."
    ]


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


def _place(r: Row, many: tuple[bool, bool]) -> str:
    """The data set, and the training and its phase where there are several."""
    start = f"On {r['dataset']}" + (f" trained by {r['algorithm']}" if many[0] else "")
    start += f" after {r['phase']}" if many[1] and r["phase"] else ""
    return start + (f", on {r['split']} rows alone" if r.get("alone") else "")


def _undefended(r: Row, many: tuple[bool, bool], level: float) -> str:
    start = _place(r, many)
    name, value = metric_name(r["metric"]), _plain(r["value"])
    if not _known(r["value"]):
        return f"{start}, {_who(r)} {_UNSCORED.format(name)}."
    if not _known(r["advantage"]):
        return f"{start}, {_who(r)} reaches {name} {value}; there is no control to compare with."
    own, gain = _plain(r["control_value"]), _plain(r["advantage"], sign=True)
    if not _known(r["advantage_low"]):
        return (
            f"{start}, {_who(r)} reaches {name} {value} against {own} {_control(r)} "
            f"({gain}); one seed gives no interval, so nothing is concluded."
        )
    sure = f"{gain}, {_interval(r, 'advantage', level)}"
    if _leaks(r):
        return (
            f"{start}, the federation leaks to {r['adversary'] or 'the adversary'}: {r['attack']} "
            f"reaches {name} {value} against {own} {_control(r)} ({sure})."
        )
    if _reversed(r):
        return f"{start}, {_turned(r)}"
    below = (
        "does worse than that" if r["advantage_high"] <= -LEAST else "is not shown to add to that"
    )
    chance = r["chance"]
    if _ahead(r, "control_value") and r["control"] not in (CHANCE, FALLBACK):
        return (
            f"{start}, what {r['adversary'] or 'the adversary'} has already predicts the "
            f"{r['target'] or 'label'} ({r['control']}: {name} {own}); {r['attack']} {below} "
            f"({sure})."
        )
    if not _ahead(r, "value"):
        return (
            f"{start}, {_who(r)} is not told from guessing ({name} {value}, chance "
            f"{_plain(chance) if _known(chance) else 'unknown'}; advantage {sure})."
        )
    return f"{start}, {_who(r)} reaches {name} {value} against {own} {_control(r)} ({sure})."


def _grid(rows: Sequence[Row]) -> str:
    s = [r["strength"] for r in rows if _known(r["strength"])]
    if not s:
        return ""
    listed = ", ".join(f"{x:g}" for x in s)
    return f" at strength{'s' if len(s) > 1 else ''} {listed}"


def _defended(
    defense: str, rows: Sequence[Row], open_: bool, many: tuple[bool, bool], level: float
) -> str:
    rows = sorted(rows, key=lambda r: (r["strength"] != r["strength"], r["strength"]))
    lead = f"{_place(rows[0], many)}, "
    sure = [r for r in rows if _known(r["advantage_low"])]
    if not sure:
        figure = any(_known(r["value"]) for r in rows)
        why = "one seed gives no interval" if figure else "there is no figure"
        return f"{lead}{defense} against {_who(rows[0])}: {why}."
    turned = [r for r in sure if _reversed(r)]
    if turned:
        return f"{lead}under {defense}{_grid(turned)} {_turned(turned[-1])}"
    if not open_ and not any(_leaks(r) for r in sure):
        return ""  # nothing to stop: the undefended sentence has said so
    stopped = [r for r in sure if not _leaks(r)]
    last = sure[-1]
    if not stopped:
        figures = f"{_plain(last['value'])} against {_plain(last['control_value'])}"
        return (
            f"{lead}{defense}{_grid(sure)} does not stop {_who(last)} "
            f"({metric_name(last['metric'])} {figures} {_control(last)}{_strongest(sure)}). "
            f"{_cost(last, level)}"
        )
    # The smallest strength from which on nothing leaks; where there is none, the first that stops.
    tail = sure[1 + max((i for i, r in enumerate(sure) if _leaks(r)), default=-1) :]
    first = (tail or stopped)[0]
    through = [r for r in sure if _leaks(r)]
    kept = (
        f"no advantage that {first['seeds']} seeds can show "
        f"({_plain(first['advantage'], sign=True)}, {_interval(first, 'advantage', level)})"
    )
    if not through:
        return f"{lead}{defense}{_grid([first])} leaves {_who(first)} {kept}. {_cost(first, level)}"
    weak = through[0]
    figures = f"{_plain(weak['value'])} against {_plain(weak['control_value'])} {_control(weak)}"
    at = f" at {weak['strength']:g}" if len(through) > 1 else ""
    return (
        f"{lead}{defense}{_grid(through)} does not stop {_who(weak)} "
        f"({metric_name(weak['metric'])} {figures}{at});{_grid([first])} it leaves {kept}. "
        f"{_cost(first, level)}"
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


def _at(v: Verdict) -> str:
    if not v.defense:
        return ""
    strength = f" at strength {v.strength:g}" if v.strength else ""
    return f" on {v.dataset} with defense {v.defense}{strength}"


def _gap(r: Row) -> str:
    why = f": {str(r['reason']).rstrip('.')}" if r["reason"] else ""
    where = f"{_who(r)} on {r['dataset']} with defense {r['defense']}"
    if r["failed"]:
        seeds = f"{r['failed']} seed{'s' if r['failed'] > 1 else ''}"
        return f"{where} failed on {seeds}{why}."
    return f"{where} was not measured ({r['status']}{why})."
