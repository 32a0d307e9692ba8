"""What a reader wants first: does it leak, how much, to whom; do the limits hold; what next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vflsec.audit import strongest_attack
from vflsec.audit.controls import leaks
from vflsec.audit.findings import COUNTED, in_people
from vflsec.audit.gate import TASK, Verdict
from vflsec.audit.gate_selection import bare
from vflsec.audit.point import Point
from vflsec.audit.rounding import show
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.strongest_attack import Strongest, format_secret
from vflsec.report.coverage import families
from vflsec.report.doubts import find_doubts
from vflsec.report.exposed_people import find_exposed, format_exposed
from vflsec.report.numbers import number
from vflsec.report.summary import Summary
from vflsec.report.ungated_leaks import deployed, parts, unstopped
from vflsec.report.verdicts import headline, place, some, weighed
from vflsec.specs import QUESTIONS
from vflsec.specs import asked as asked_of

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
    "auc": "AUC", "leak_auc": "leak AUC", "r2": "R²", "r2_column": "R² of the column revealed best",
}  # fmt: skip


def attacker(summary: Summary) -> str:
    """Which attacker it was: settings as written, or searched on drawn worlds, and what joined."""
    found = summary.attacker
    if found.name == "default":
        return "Attacker: default. Every attack ran with the settings that are written."
    if not found.choices:
        return f"Attacker: {found.name}. No attack had other settings that could be tried."
    searched = ", ".join(dict.fromkeys(r.attack for r in found.choices))
    joined = ", ".join(dict.fromkeys(r.chosen for r in found.choices if r.joins))
    more = "none did better there than what is written"
    if joined:
        more = f"what did better there ran too: {joined}"
    return (
        f"Attacker: {found.name}. Settings of {searched} were tried on {len(found.seeds)} drawn "
        f"worlds of the same shape, without the audited labels and seeds; {more}."
    )


def each(summary: Summary) -> str:
    """:data:`EACH` at the confidence of this audit."""
    return EACH.format(level=100 * summary.confidence)


def reverses(summary: Summary) -> list[Strongest]:
    """What leaks to whom only once an answer is turned round."""
    sure = {_to_whom(r) for r in _found(summary) if leaks(r.advantage, r.low)}
    turned = strongest_attack.find_reversed_leaks(summary.points, summary.confidence)
    return [r for r in turned if _to_whom(r) not in sure]


def _found(summary: Summary) -> Sequence[Strongest]:
    if summary.leaks is not None:
        return summary.leaks
    return strongest_attack.find_leaks(summary.points, summary.confidence)


def _to_whom(r: Strongest) -> tuple[str | None, ...]:
    return r.dataset, r.adversary, r.victim, r.target


def answers(summary: Summary) -> list[str]:
    """Does it leak, how much, to whom, and who is exposed: a sentence for each data set and each
    who and whose.
    """
    found, turned, people = _found(summary), reverses(summary), find_exposed(summary)
    out = []
    for dataset in dict.fromkeys(p.dataset for p in summary.points):
        exposed = format_exposed(dataset, people)
        here, flipped = ([r for r in of if r.dataset == dataset] for of in (found, turned))
        out += find_doubts(dataset, summary)
        out += [*_answers_on(dataset, here, flipped, bool(exposed), summary), *exposed]
    return out


def _answers_on(
    dataset: str, here: Sequence[Strongest], turned: Sequence[Strongest], exposed: bool,
    summary: Summary,
) -> list[str]:  # fmt: skip
    """The sentences of one data set: what leaks, what does in reverse, and the rest in one, which
    is about the average where single people are `exposed`.
    """
    attacked = [p for p in summary.points if p.attack]
    if not here:
        return [f"{dataset}: no attack gave a figure, so nothing is known."]
    sure = sorted((r for r in here if leaks(r.advantage, r.low)), key=lambda r: -(r.advantage or 0))
    out = []
    for r in sure:
        of = f", the strongest of {_attacks(r)}" if _attacks(r) > 1 else ""
        out.append(
            f"{_under(r, attacked)}, leaks: the {format_secret(r)} to {r.adversary}, {_gain(r)} "
            f"over its baseline ({r.named}{of}).{_in_people(r, attacked)}"
        )
    out += [
        f"{_under(r, attacked)}: {r.named} ranks the {format_secret(r)} in reverse; with "
        f"labels flipped it gains {_gain(r)}, so {r.adversary} has them once it knows which way "
        f"round that is."
        for r in turned
    ]
    answered = {_to_whom(r) for r in (*sure, *turned)}
    rest = [r for r in here if _to_whom(r) not in answered and r.advantage is not None]
    mean = "on average over rows " if exposed else ""
    return [*out, _rest_of(rest, bool(answered), mean, summary)] if rest else out


def _rest_of(rest: Sequence[Strongest], answered: bool, mean: str, summary: Summary) -> str:
    """That nothing else leaks, and the most that was gained."""
    most = max(rest, key=lambda r: r.advantage or 0.0)
    tried, attacks = sum(r.tried for r in rest), sum(map(_attacks, rest))
    corrected = any(_is_corrected(r, summary) for r in rest)
    what = f"is significant after correction for {tried} tests" if corrected else "is shown"
    which = "no other leak" if answered else f"no leak of the {format_secret(most)}"
    return (
        f"{_under(most)}: {mean}{which} {what}; the most that {_count(attacks, 'attack')} gained "
        f"is {_gain(most)} ({most.named} by {most.adversary})."
    )


def _in_people(r: Strongest, points: Sequence[Point]) -> str:
    """A leak as a count of rows out of a hundred, where that was measured."""
    by = {p.identity: p for p in points}
    point, hits = by.get(r.identity), by.get(replace(r.identity, metric=COUNTED))
    return "" if point is None else in_people(point, hits)


def _attacks(r: Strongest) -> int:
    """How many were tried; in summaries of earlier versions one try was one attack."""
    return r.attacks or r.tried


def _is_corrected(r: Strongest, summary: Summary) -> bool:
    """Whether the attack would be called a leak had it been the only one."""
    return any(
        leaks(p.advantage.mean, p.advantage.low)
        for p in summary.points
        if p.status == "ok" and p.identity == r.identity
    )


def _under(r: Strongest, points: Iterable[Point] = ()) -> str:
    where = _where(r.dataset, r.algorithm, points)
    return f"{where}, {'without a defense' if r.is_undefended else f'with {place(r)}'}"


def _gain(r: Strongest) -> str:
    metric = _NAMES.get(r.metric, r.metric.replace("_", " "))
    if r.low is None or r.high is None:
        return f"{r.advantage:+z.2f} of {metric} (one seed, no interval)"
    low, high = (show(x, 0.0, "+.2f") for x in (r.low, r.high))
    return f"{r.advantage:+z.2f} of {metric} [{low}, {high}]"


def scope(summary: Summary) -> str:
    """The verdict with what it holds for: points, attacks, families, and what would have been seen.

    ``PASS with iso 25. Tested: 3 attacks of 2 of 17 families. Smallest detectable leak: 0.093, of
    the kind that these attacks look for.``, or where that is above a gate's limit: ``PASS ... But
    this audit would only have found a leak of 0.17 (norm), above the limit 0.1; about 9 more seeds
    would do.``
    """
    found, how = headline(summary)
    judged = [v for v in summary.gates if v.defense]
    if found in ("NO GATE", "UNFINISHED") or not judged:
        return f"{found}. {how}"
    asked = [v for v in judged if v.attack or v.gate.metric not in (*TASK, "epsilon_lower")]
    limited = [v for v in judged if v.gate.metric != "epsilon_lower"]  # a claim is anywhere
    where = some(list(dict.fromkeys(place(v) for v in limited or judged)), ", ")
    said = [f"{found} with {where}", f"Tested: {_tested(asked, summary)}"]
    if found == "PASS" and _leaks_undefended(summary) and all(v.strength for v in limited):
        said.insert(1, "Without a defense, this system leaks")
    if found == "FAIL":
        said += _questions(judged, summary)
    else:
        also = deployed(summary)
        said += [f"No gate limits {parts(also)} there"] if also else []
        said += _sensitivity(found, asked)
    return ". ".join([*said, how])


def _leaks_undefended(summary: Summary) -> bool:
    return any(r.is_undefended and leaks(r.advantage, r.low) for r in _found(summary))


def _tested(asked: Sequence[Verdict], summary: Summary) -> str:
    """How many attacks of how many families, or that the main task alone was judged."""
    if not asked:
        return "the main task"
    names = {n for v in asked for n in attacks_of(v, summary)}
    of = _families_of(names, summary)
    return f"{_count(len(names), 'attack')} of {len(of)} of {len(families(summary))} families"


def _families_of(names: Iterable[str], summary: Summary) -> list[str]:
    """Families of the attacks with these labels."""
    bares = {bare(n) for n in names}
    return [f.family for f in families(summary) if bares & set(f.members)]


def answered(summary: Summary) -> str:
    """Which families a PASS speaks of, by name, and that it says nothing of others; else ''."""
    if headline(summary)[0] != "PASS":
        return ""
    found = _families_of({n for v in summary.gates for n in attacks_of(v, summary)}, summary)
    rest = len(families(summary)) - len(found)
    if not found:
        return ""
    return f"Answered: {'; '.join(found)}. Nothing is said of the {rest} other families."


def _sensitivity(found: str, asked: Sequence[Verdict]) -> list[str]:
    """What warns of a PASS, or else the least leak that would have been found."""
    warned = [v for v in asked if v.warning]
    if warned and found == "PASS":
        more = f" (and so at {len(warned) - 1} more)" if len(warned) > 1 else ""
        return [f"But {warned[0].warning}{more}"]
    least = [(x, v) for v in asked for x in v.detectable.values()]
    if not least:
        return []
    most, v = max(least, key=lambda of: of[0])
    worst = " at worst" if len({round(x, 3) for x, _ in least}) > 1 else ""
    shown = show(most, v.gate.detect or v.threshold, ".2g")
    return [f"Smallest detectable leak: {shown}{worst}, of the kind that these attacks look for"]


def _questions(judged: Iterable[Verdict], summary: Summary) -> list[str]:
    """Which questions about a quantity fail a gate, in words, if any does."""
    of = {p.attack: p.of_label for p in summary.points}
    failing = (of.get(v.attack, "") for v in judged if v.verdict == "FAIL")
    answered = [asked_of(q) for q in dict.fromkeys(failing) if q in QUESTIONS]
    return [f"It reveals whether a value is {' and '.join(answered)}"] if answered else []


def attacks_of(v: Verdict, summary: Summary) -> list[str]:
    """Labels of the attacks that a verdict speaks of."""
    known = list(v.attacks or v.detectable)  # summaries of earlier versions lack those in silence
    if known or not v.attack:
        return known
    return sorted({p.attack for p in weighed(v, summary.points) if p.status == "ok"})


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


def cheapest(summary: Summary) -> list[str]:
    """For each training the least costly point of the grid that meets every gate, in a sentence."""
    rows = summary.grid
    out = []
    for dataset, algorithm in dict.fromkeys((r.dataset, r.algorithm) for r in rows):
        here = [r for r in rows if (r.dataset, r.algorithm) == (dataset, algorithm)]
        out.append(f"{_where(dataset, algorithm, rows)}: {_cheapest_of(here)}.")
    return [*out, *unstopped(summary)]


def _cheapest_of(here: Sequence[GridRow]) -> str:
    """What it costs one training to pass every gate, or that nothing does."""
    count = here[0].gates
    several = {1: "the gate", 2: "both gates"}.get(count, f"all {count} gates")
    best = next((r for r in here if r.cheapest), None)
    if best is not None and best.is_undefended:
        return f"{several} pass{'es' if count == 1 else ''} without a defense"
    if best is not None:
        return f"{place(best)} already passes {several}, costs {price(best)}"
    good = [r for r in here if r.passed == r.gates]
    if good:
        return f"{spots(good)} passes {several}; the cost was not measured"
    if all(r.is_undefended for r in here):
        fail = "the gates do not all pass" if count > 1 else "the gate does not pass"
        return f"{fail}, and no defense was tried"
    return f"no strength of the grid ({spots(here)}) passes {several}"


def price(r: GridRow) -> str:
    """``0.002 [-0.007, 0.012] of utility``; a loss that may be none is said to be none shown."""
    low, high = r.utility_drop_low, r.utility_drop_high
    text = number(r.utility_drop)
    text += "" if low is None or high is None else f" [{number(low, limit=0.0)}, {number(high)}]"
    none = low is not None and low <= 0
    return f"no utility that is shown ({text})" if none else f"{text} of utility"


def _where(dataset: str, algorithm: str, rows: Iterable[GridRow | Point]) -> str:
    """The data set, and what trains on it where several do."""
    several = len({r.algorithm for r in rows if r.dataset == dataset}) > 1
    return f"{dataset} trained by {algorithm}" if several else dataset


def spots(rows: Iterable[GridRow]) -> str:
    """Points of the grid in words, such as ``iso 5, iso 25``."""
    return ", ".join(map(place, rows))


def work(summary: Summary) -> str:
    """Trainings, processor time and wall time, told apart."""
    cells, cost = summary.cells, summary.cost
    if not summary.scenario and not summary.scenario_file:
        return f"{_count(len(summary.data), 'recording')}, of which nothing was trained"
    text = f"{cells.finished} of {cells.planned} trainings on {summary.device}"
    if cost.cpu_seconds is None:
        text += f", {cost.training_seconds:.1f} s of work"
    else:
        text += f", {cost.cpu_seconds:.1f} s of processor time"
    wall = cost.run_seconds
    return text + ("" if wall is None else f"; the last run took {wall:.1f} s by the clock")
