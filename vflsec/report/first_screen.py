"""What a reader wants first: does it leak, how much, to whom; do the limits hold; what next.

The terminal, the HTML and Markdown reports, the page to sign and notebooks print these sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.findings import COUNTED, in_people
from vflsec.audit.gate import TASK
from vflsec.audit.gate_selection import bare
from vflsec.audit.leakage import is_undefended
from vflsec.audit.point import Identity
from vflsec.audit.rounding import beside
from vflsec.report.coverage import families
from vflsec.report.numbers import number
from vflsec.report.sanitize import clean
from vflsec.report.ungated_leaks import deployed, parts, unstopped
from vflsec.report.verdicts import headline, place, weighed
from vflsec.specs import QUESTIONS
from vflsec.specs import asked as asked_of

__all__ = [
    "BOUNDS", "CORRECTED", "EACH", "answers", "attacker", "attacks_of", "bounds", "cheapest",
    "each", "price", "reverses", "scope", "spots", "work",
]  # fmt: skip

BOUNDS = (
    "[a, b] is the {level:g} % interval of a mean over seeds (two-sided t; of an advantage, over "
    "all controls; never outside of what the figure can be). A gate asks a one-sided question: it "
    "passes on the upper and fails on the lower bound, each at {level:g} %, which stand beside it."
)
"""What every pair of bounds means, said once in each report."""
_OTHER_LEVEL = (
    " A line that names another level is judged at that: it is the gate's own, or the looks of "
    "--until-decided share the error."
)

CORRECTED = (
    "Whether it leaks, how much and to whom is corrected for the number of tries: attacks, rows "
    "and stages (Holm)."
)
EACH = (
    "Each finding speaks of one attack at one place, at {level:g} % by itself: of many some come "
    "up by chance. " + CORRECTED
)
"""What findings are corrected for, said where they stand."""

_NAMES = {
    "auc": "AUC", "leak_auc": "leak AUC", "r2": "R²", "r2_column": "R² of the column told best",
}  # fmt: skip


def attacker(summary: Mapping[str, Any]) -> str:
    """Which attacker it was: settings as written, or searched on drawn worlds, and what joined."""
    found = summary.get("attacker") or {"name": "default"}
    if found["name"] == "default":
        return "Attacker: default. Every attack ran with the settings that are written."
    rows = found.get("choices", [])
    if not rows:
        return f"Attacker: {found['name']}. No attack had other settings that could be tried."
    searched = ", ".join(clean(name) for name in dict.fromkeys(r["attack"] for r in rows))
    joined = dict.fromkeys(clean(r["chosen"]) for r in rows if r["joins"])
    more = f"what did better there ran too: {', '.join(joined)}" if joined else (
        "none did better there than what is written"
    )  # fmt: skip
    return (
        f"Attacker: {found['name']}. Settings of {searched} were tried on "
        f"{len(found['seeds'])} drawn worlds of the same shape, without the audited labels and "
        f"seeds; {more}."
    )


def bounds(summary: Mapping[str, Any]) -> str:
    """:data:`BOUNDS` at the confidence of this audit, and that gates have another."""
    level = float(summary.get("confidence", 0.95))
    asked = {v["gate"].get("confidence", level) for v in summary.get("gates", ()) if v.get("gate")}
    return BOUNDS.format(level=100 * level) + _OTHER_LEVEL * bool(asked - {level})


def each(summary: Mapping[str, Any]) -> str:
    """:data:`EACH` at the confidence of this audit."""
    return EACH.format(level=100 * float(summary.get("confidence", 0.95)))


def reverses(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What leaks to whom only once an answer is turned round, see :func:`matrix.reverses`."""
    level = float(summary.get("confidence", 0.95))
    sure = {_to_whom(r) for r in _found(summary) if leaks(r["advantage"], r["low"])}
    return [
        r for r in strongest_attack.reverses(summary["points"], level) if _to_whom(r) not in sure
    ]


def _found(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    level, found = float(summary.get("confidence", 0.95)), summary.get("leaks")
    return strongest_attack.leaks(summary["points"], level) if found is None else found


def _to_whom(r: Mapping[str, Any]) -> tuple[Any, ...]:
    return r["dataset"], r["adversary"], r.get("victim"), r["target"]


def answers(summary: Mapping[str, Any]) -> list[str]:
    """Does it leak, how much, to whom: a sentence for each data set and each who and whose."""
    found, turned = _found(summary), reverses(summary)
    out = []
    attacked = [p for p in summary["points"] if p["attack"]]
    for dataset in dict.fromkeys(p["dataset"] for p in summary["points"]):
        here = [r for r in found if r["dataset"] == dataset]
        sure = sorted(
            (r for r in here if leaks(r["advantage"], r["low"])), key=lambda r: -r["advantage"]
        )
        if not here:
            out.append(f"{clean(dataset)}: no attack gave a figure, so nothing is known.")
        for r in sure:
            of = f", the strongest of {_attacks(r)}" if _attacks(r) > 1 else ""
            out.append(
                f"{_under(r, attacked)}, leaks: the {clean(strongest_attack.secret(r))} to "
                f"{clean(r['adversary'])}, {_gain(r)} above its own means ({_named(r)}{of})."
                f"{_in_people(r, attacked)}"
            )
        for r in (r for r in turned if r["dataset"] == dataset):
            out.append(
                f"{_under(r, attacked)}: {_named(r)} ranks the {clean(strongest_attack.secret(r))} "
                f"in reverse; turned round it gains {_gain(r)}, so {clean(r['adversary'])} has "
                "them once it knows which way round that is."
            )
        told = [*sure, *(r for r in here if _to_whom(r) in map(_to_whom, turned))]
        rest = [r for r in here if r not in told and r["advantage"] is not None]
        if rest:
            most = max(rest, key=lambda r: r["advantage"])
            tried, attacks = sum(r["tried"] for r in rest), sum(map(_attacks, rest))
            alone = any(_alone(r, summary) for r in rest)
            what = f"outlasts the correction for {tried} tries" if alone else "is shown"
            which = (
                "no other leak"
                if told
                else f"no leak of the {clean(strongest_attack.secret(most))}"
            )
            out.append(
                f"{_under(most)}: {which} {what}; the most that {_count(attacks, 'attack')} gained "
                f"is {_gain(most)} ({_named(most)} by {clean(most['adversary'])})."
            )
    return out


def _in_people(r: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    """A leak as a count of rows out of a hundred, where that was measured."""
    by = {Identity.of(p): p for p in points}
    point, hits = by.get(Identity.of(r)), by.get(replace(Identity.of(r), metric=COUNTED))
    return "" if point is None else clean(in_people(point, hits))


def _named(r: Mapping[str, Any]) -> str:
    return clean(strongest_attack.named(r))


def _attacks(r: Mapping[str, Any]) -> int:
    """How many were tried; in summaries of earlier versions one try was one attack."""
    return int(r.get("attacks") or r["tried"])


def _alone(r: Mapping[str, Any], summary: Mapping[str, Any]) -> bool:
    """Whether the attack would be called a leak had it been the only one."""
    return any(
        leaks(p["advantage"], p["advantage_low"])
        for p in summary["points"]
        if p["status"] == "ok" and Identity.of(p) == Identity.of(r)
    )


def _under(r: Mapping[str, Any], points: Iterable[Mapping[str, Any]] = ()) -> str:
    bare, where = is_undefended(r), _where(r["dataset"], r["algorithm"], points)
    return f"{where}, {'without a defense' if bare else f'with {place(r)}'}"


def _gain(r: Mapping[str, Any]) -> str:
    metric = _NAMES.get(r["metric"], clean(r["metric"]).replace("_", " "))
    if r["low"] is None or r["high"] is None:
        return f"{r['advantage']:+z.2f} of {metric} (one seed, no interval)"
    low, high = (beside(r[k], 0.0, "+.2f") for k in ("low", "high"))
    return f"{r['advantage']:+z.2f} of {metric} [{low}, {high}]"


def scope(summary: Mapping[str, Any]) -> str:
    """The verdict with what it holds for: attacks, families, points, and what would have been seen.

    ``PASS for 3 attacks of 2 of 11 families, at iso 25; would have found 0.093.``, or where that is
    above a gate's limit: ``PASS ...; but this audit would only have found a leak of 0.17 (norm),
    above the limit 0.1; about 9 more seeds would do.``
    """
    found, how = headline(summary)
    judged = [v for v in summary["gates"] if v["defense"]]
    if found in ("NO GATE", "UNFINISHED") or not judged:
        return f"{found}. {how}"
    other = (*TASK, "epsilon_lower")
    asked = [v for v in judged if v["attack"] or v["gate"]["metric"] not in other]
    names = {n for v in asked for n in attacks_of(v, summary)}
    limited = [v for v in judged if v["gate"]["metric"] != "epsilon_lower"]  # a claim is anywhere
    points = list(dict.fromkeys(place(v) for v in limited or judged))
    where = ", ".join(points[:4]) + (f" and {len(points) - 4} more" if len(points) > 4 else "")
    text = found
    if asked:
        every = families(summary)
        of = [f for f in every if any(bare(n) in f["members"] for n in names)]
        text += (
            f" for {_count(len(names), 'attack')} of {len(of)} of {len(every)} families, at {where}"
        )
    else:
        text += f" for the main task, at {where}"
    if found == "FAIL":
        text += _questions(judged, summary)
    also = deployed(summary) if found != "FAIL" else []
    text += f"; no gate limits {parts(also)} there" if also else ""
    least = [(x, v) for v in asked for x in (v.get("detectable") or {}).values()]
    warned = [v for v in asked if v.get("warning")]
    if warned and found == "PASS":
        text += f"; but {clean(warned[0]['warning'])}"
        text += f" (and so at {len(warned) - 1} more)" if len(warned) > 1 else ""
    elif least and found != "FAIL":
        most, v = max(least, key=lambda of: of[0])
        asked_for = v["gate"].get("detect") or v["threshold"]
        text += f"; would have found {beside(most, asked_for, '.2g')}"
        text += " at worst" if len({round(x, 3) for x, _ in least}) > 1 else ""
    return f"{text}. {how}"


def _questions(judged: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Which questions about a quantity fail a gate, in words, or ''."""
    of = {p["attack"]: p.get("of_label", "") for p in summary["points"]}
    failing = (of.get(v["attack"], "") for v in judged if v["verdict"] == "FAIL")
    told = [asked_of(q) for q in dict.fromkeys(failing) if q in QUESTIONS]
    return f"; it is told whether a value is {' and '.join(told)}" if told else ""


def attacks_of(v: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Labels of the attacks that a verdict speaks of."""
    known = list(v.get("detectable") or {})
    if known or not v["attack"]:
        return known
    return sorted({p["attack"] for p in weighed(v, summary["points"]) if p["status"] == "ok"})


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


def cheapest(summary: Mapping[str, Any]) -> list[str]:
    """For each training the least costly point of the grid that meets every gate, in a sentence."""
    out = []
    rows = summary.get("grid") or []
    for dataset, algorithm in dict.fromkeys((r["dataset"], r["algorithm"]) for r in rows):
        here = [r for r in rows if (r["dataset"], r["algorithm"]) == (dataset, algorithm)]
        where = _where(dataset, algorithm, rows)
        best = next((r for r in here if r["cheapest"]), None)
        several = f"all {here[0]['gates']} gates" if here[0]["gates"] > 1 else "the gate"
        if here[0]["gates"] == 2:
            several = "both gates"
        if best is None:
            good = [r for r in here if r["passed"] == r["gates"]]
            if not good and all(is_undefended(r) for r in here):
                fails = "do not all pass" if here[0]["gates"] > 1 else "does not pass"
                gates = "the gates" if here[0]["gates"] > 1 else "the gate"
                out.append(f"{where}: {gates} {fails}, and no defense was tried.")
            elif not good:
                out.append(f"{where}: no strength of the grid ({spots(here)}) passes {several}.")
            else:
                out.append(f"{where}: {spots(good)} passes {several}; the cost was not measured.")
        elif is_undefended(best):
            out.append(f"{where}: {several} pass{_es(several)} without a defense.")
        else:
            out.append(f"{where}: {place(best)} already passes {several}, costs {price(best)}.")
    return [*out, *unstopped(summary)]


def price(r: Mapping[str, Any]) -> str:
    """``0.002 [-0.007, 0.012] of utility``; a loss that may be none is said to be none shown."""
    low, high = r["utility_drop_low"], r["utility_drop_high"]
    text = number(r["utility_drop"])
    text += "" if low is None or high is None else f" [{number(low, limit=0.0)}, {number(high)}]"
    none = low is not None and low <= 0
    return f"no utility that is shown ({text})" if none else f"{text} of utility"


def _where(dataset: str, algorithm: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The data set, and what trains on it where several do."""
    several = len({r["algorithm"] for r in rows if r["dataset"] == dataset}) > 1
    return f"{clean(dataset)} trained by {clean(algorithm)}" if several else clean(dataset)


def _es(what: str) -> str:
    return "" if what.endswith("s") else "es"


def spots(rows: Iterable[Mapping[str, Any]]) -> str:
    """Points of the grid in words, such as ``iso 5, iso 25``."""
    return ", ".join(place(r) for r in rows)


def work(summary: Mapping[str, Any]) -> str:
    """Trainings, processor time and wall time, told apart."""
    cells, cost = summary["cells"], summary["cost"]
    if not summary["scenario"] and not summary["scenario_file"]:
        return f"{len(summary['data'])} recordings, of which nothing was trained"
    text = f"{cells['finished']} of {cells['planned']} trainings on {clean(summary['device'])}"
    cpu, wall = cost.get("cpu_seconds"), cost.get("run_seconds")
    if cpu is None:
        text += f", {cost['training_seconds']:.1f} s of work"
    else:
        text += f", {cpu:.1f} s of processor time"
    return text + ("" if wall is None else f"; the last run took {wall:.1f} s by the clock")
