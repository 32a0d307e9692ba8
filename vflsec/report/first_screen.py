"""The first screen: the verdict with its condition, then short lines for each question.

Does it leak, how much and to whom, who is exposed, what stops it at what cost, what was not tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import Enum, auto

from vflsec.audit.controls import CHANCE, FALLBACK
from vflsec.audit.facts import DatasetFacts
from vflsec.audit.findings import NO_FIGURE, ONE_SEED, format_gain
from vflsec.audit.gate import EPSILON, TASK, Verdict, Warn
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.intervals import holds_zero
from vflsec.audit.leakage_claims import LeakageClaim, Quantity, format_secret, rank
from vflsec.audit.metrics import find_reach, format_size, format_unit
from vflsec.audit.point import Identity, Point, Training
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.summary import Summary
from vflsec.data.features import is_nearly_unique
from vflsec.data.table_facts import ColumnFacts, UserTable, UserTables
from vflsec.errors import capitalise, format_count, join_some
from vflsec.report.coverage import (
    NOT_SAFE,
    find_unasked,
    list_families,
    list_untested,
    name_untested,
)
from vflsec.report.numbers import format_number
from vflsec.report.sanitize import clean
from vflsec.report.tree import Answer
from vflsec.report.ungated_leaks import find_deployed, find_unstopped, format_parts
from vflsec.report.verdicts import (
    NO_RISE,
    find_asked,
    find_judged,
    find_weighed,
    format_deployment,
    format_headline,
    format_place,
    name_rows,
)
from vflsec.runtime.grouping import group_by
from vflsec.specs import QUESTIONS, format_question

LEAKS, MUCH, WHO, COST, GAPS, DOUBT = (
    "Does it leak?", "How much, to whom?", "Who is exposed?", "What does it cost to stop?",
    "What was not tested?", "Can the tables be trusted?",
)  # fmt: skip
"""The questions, in order."""

_NONE_NAMED = "no row is shown to be named with certainty"
_NONE_EXCLUDED = " But these seeds cannot exclude that all rows are."
_MOST = 4
"""How many of those who learn nothing significant are named."""


def describe_attacker(summary: Summary) -> str:
    """Which attacker it was: settings as written, or searched on drawn worlds, and what joined."""
    found = summary.attacker
    if found.name == "default":
        return "Attacker: default. Attacks ran with the settings of the scenario."
    if not found.choices:
        return f"Attacker: {found.name}. No attack had other settings to try."
    searched = ", ".join(dict.fromkeys(r.attack for r in found.choices))
    joined = ", ".join(dict.fromkeys(r.chosen for r in found.choices if r.joins))
    more = f"better ones ran too: {joined}" if joined else "none did better"
    return (
        f"Attacker: {found.name}. Settings of {searched} were tried on {len(found.seeds)} drawn "
        f"worlds, without the audited labels and seeds; {more}."
    )


def build_answer(summary: Summary) -> dict[str, tuple[Answer, ...]]:
    """The answers by data set, none before all that was planned is measured; what was not tested is
    said of all of them, under ''.
    """
    names = dict.fromkeys(p.dataset for p in summary.points if summary.complete)
    found = {name: tuple(_answer_for(name, summary)) for name in names}
    return {**found, "": (Answer(GAPS, (_untested(summary),)),)}


def _answer_for(dataset: str, summary: Summary) -> Iterator[Answer]:
    claims = [c for c in summary.claims if c.dataset == dataset and c.advantage is not None]
    asked = _asked_exposed(claims, summary)
    mean = [c for c in claims if c.quantity is not Quantity.EXPOSED]
    doubts = find_doubts(dataset, summary)
    if doubts:
        yield Answer(DOUBT, tuple(doubts))
    yield Answer(LEAKS, (_whether(claims),))
    if mean:
        yield Answer(MUCH, tuple(_how_much(mean, [c for c in asked if c.is_leak])))
        yield Answer(WHO, tuple(_who(asked, claims, summary)))
    cost = (*describe_cheapest(summary, dataset), *find_unstopped(summary, dataset))
    if cost:
        yield Answer(COST, cost)


def _whether(claims: Sequence[LeakageClaim]) -> str:
    """At which trainings something leaks, at which only exposed rows show it, at which that is
    unknown, and at which nothing is shown: each training once.
    """
    mean = [c for c in claims if c.quantity is not Quantity.EXPOSED]
    if not mean:
        return f"Unknown: {NO_FIGURE}."
    if all(c.low is None for c in mean):
        return f"Unknown: {ONE_SEED}."
    states = {t: _find_state(of) for t, of in group_by(claims, lambda c: c.training).items()}
    leaking, single, unknown, rest = (
        [t for t, found in states.items() if found is state] for state in _Shown
    )
    several = len({c.algorithm for c in mean}) > 1
    tests = f"({format_count(max(c.tried for c in mean), 'test')}, corrected)"
    none = tests if len(rest) == len(states) else _at(rest, several)
    rows = [c for c in claims if c.is_leak and c.training in single]
    said = [f"Yes, {_at(leaking, several)}"] if leaking else []
    said += [f"Yes, {_at(single, several)}: {_name_exposed(_find_most(rows))}"] if rows else []
    said += [f"Unknown {_at(unknown, several)}: too few seeds"] if unknown else []
    said += [f"No significant leak {none}"] if rest else []
    return f"{'. '.join(said)}."


class _Shown(Enum):
    """What the claims about one training show, the strongest first."""

    LEAK = auto()
    EXPOSED_ROWS = auto()
    UNKNOWN = auto()
    NO_LEAK = auto()


def _find_state(claims: Sequence[LeakageClaim]) -> _Shown:
    """What the claims about one training show; unknown where they exclude not even the largest leak
    there can be.
    """
    leaks = {c.quantity for c in claims if c.is_leak}
    if leaks:
        return _Shown.EXPOSED_ROWS if leaks == {Quantity.EXPOSED} else _Shown.LEAK
    is_open = any(c.is_open for c in claims if c.quantity is not Quantity.EXPOSED)
    return _Shown.UNKNOWN if is_open else _Shown.NO_LEAK


def _find_most(exposed: Iterable[LeakageClaim]) -> LeakageClaim:
    """Who names the most rows beyond its baseline."""
    return max(exposed, key=lambda c: c.advantage or 0.0)


def name_most(exposed: Iterable[LeakageClaim]) -> str:
    """``with iso 5: shop names 987 more of 1,000 rows``, of who names the most."""
    most = _find_most(exposed)
    return f"{format_deployment(most)}: {_name_exposed(most)}"


def _name_exposed(c: LeakageClaim) -> str:
    return f"{c.adversary} names {_count_exposed(c)}"


def _count_exposed(c: LeakageClaim) -> str:
    share = c.advantage or 0.0
    whom = name_rows(is_part=c.is_part)
    return f"{_many(share) if share >= 0.001 else 'fewer than 1'} more of 1,000 {whom}"


def _at(trainings: Iterable[Training], several: bool) -> str:
    """Trainings in a sentence, with their algorithms where the data set has several."""
    names = ((f"in {t.algorithm} " if several else "") + format_deployment(t) for t in trainings)
    return join_some(list(names))


def _how_much(mean: Sequence[LeakageClaim], exposed: Sequence[LeakageClaim]) -> Iterator[str]:
    """For each attacker and target what the strongest attack gains, undefended if that was run.

    Where nothing leaks there, also what leaks with a defense, and with which.

    Args:
        mean: what is claimed on average.
        exposed: what leaks of single rows, whatever the mean shows.
    """
    bare = [c for c in mean if c.is_undefended] or list(mean)
    away = [] if any(c.is_leak for c in bare) else [c for c in mean if c.is_leak]
    several = len({c.algorithm for c in (*bare, *away)}) > 1
    leaks = sorted((c for c in (*bare, *away) if c.is_leak), key=rank, reverse=True)
    direct = {c.about for c in leaks if c.quantity is Quantity.LEAKAGE}
    for c in leaks:
        if c.quantity is Quantity.LEAKAGE or c.about not in direct:
            where = _of(c, several)
            yield _learned(c, f"{where} {format_deployment(c)}" if away else where)
    yield from _not_shown(bare, {c.about for c in leaks}, exposed, several)


def _not_shown(
    bare: Iterable[LeakageClaim], answered: Set[Identity], exposed: Sequence[LeakageClaim],
    several: bool,
) -> Iterator[str]:  # fmt: skip
    """What leaks of single rows and not on average, then the strongest of what gains nothing
    significant, and how many more there are.
    """
    rest = [c for c in bare if c.about not in answered and c.quantity is Quantity.LEAKAGE]
    single: dict[Identity, LeakageClaim] = {}
    for c in sorted(exposed, key=lambda c: c.advantage or 0.0):
        single[c.about] = c
    for c in rest:
        if c.about in single:
            yield (f"{c.adversary} infers the {format_secret(c)}{_of(c, several)} for "
                   f"{_count_exposed(single[c.about])}. On average not significant: {_gain(c)} "
                   f"over its baseline ({c.named}).")  # fmt: skip
    rest = [c for c in rest if c.about not in single]
    for c in sorted(rest, key=rank, reverse=True)[:_MOST]:
        yield (f"Not significant: {format_secret(c)} to {c.adversary}{_of(c, several)}, "
               f"{_gain(c)} over its baseline ({c.named}).")  # fmt: skip
    if len(rest) > _MOST:
        yield f"Not significant: {len(rest) - _MOST} more."


def _of(c: LeakageClaim, several: bool) -> str:
    """The algorithm, where there are several."""
    return f" ({c.algorithm})" if several else ""


def _learned(c: LeakageClaim, where: str) -> str:
    """Who infers what, and how much that gains."""
    of = f", best of {c.attacks} attacks" if c.attacks > 1 else ""
    of += f"; asked about {clean(c.asked)}" if c.asked else ""
    if c.quantity is not Quantity.LEAKAGE:
        return (f"{c.adversary} infers the {format_secret(c)}{where} with labels flipped: "
                f"{_gain(c)} ({c.named}).")  # fmt: skip
    return (f"{c.adversary} infers the {format_secret(c)}{where}: {_gain(c)} over "
            f"its baseline ({c.named}{of}).")  # fmt: skip


def _gain(c: LeakageClaim) -> str:
    return format_gain(c.metric, c.advantage, c.low, c.high)


def list_codes(summary: Summary) -> dict[str, str]:
    """What is claimed of whom and where, with its significance: for files that programs read."""
    return {
        clean(f"{c.quantity}: {c.dataset}, {c.algorithm}, {format_place(c)}: {format_secret(c)} to "
              f"{c.adversary}"): c.significance.value
        for c in summary.claims
    }  # fmt: skip


def _asked_exposed(claims: Iterable[LeakageClaim], summary: Summary) -> list[LeakageClaim]:
    """Claims on exposed rows, undefended and where a gate judges."""
    judged = find_judged(summary)
    return [
        c for c in claims
        if c.quantity is Quantity.EXPOSED and (c.is_undefended or c.training in judged)
    ]  # fmt: skip


def _who(
    asked: Sequence[LeakageClaim], claims: Sequence[LeakageClaim], summary: Summary
) -> Iterator[str]:
    exposed = [c for c in asked if c.is_leak]
    points = {p.identity: p for p in summary.points}
    scored = {p.answer: p.n for p in summary.points if p.metric == p.primary}
    if not asked:
        made = any(c.quantity is Quantity.EXPOSED for c in claims)
        yield f"{capitalise(_NONE_NAMED)}." if made else "Not counted here."
    several = len({c.algorithm for c in claims}) > 1
    for i, c in enumerate(exposed):
        p = points[c.identity]
        yield _say_exposed(c, p, several)
        if i == 0:
            yield from _name_worst(p, summary.parties.get(c.dataset, DatasetFacts()))
            yield from _say_who_counts(p, scored.get(p.answer, 0))
    for training, of in group_by(asked, lambda c: c.training).items():
        if not any(c.is_leak for c in of):
            most = max(of, key=lambda c: math.inf if c.most is None else c.most)
            where = capitalise(_at([training], several))
            more = _not_excluded(most, most.adversary)
            yield f"{where}, {_NONE_NAMED}.{more or _NONE_EXCLUDED}"


def _say_exposed(c: LeakageClaim, p: Point, several: bool) -> str:
    """``Without a defense, shop names 50 [40, 60] more of 1,000 rows than ...``."""
    of, where = p.exposed, (f"{c.algorithm}, " if several else "") + format_deployment(c)
    assert of is not None
    rows = name_rows(is_part=c.is_part)
    sure = "with certainty" if not of.false_alarms else "at one false alarm in 1,000"
    own = "guessing" if of.control in (CHANCE, FALLBACK) else "its baseline"
    wider = c.most and round(1000 * c.most) > round(1000 * (c.high or 0.0))
    more = _not_excluded(c, "by another test") if wider else ""
    return (
        f"{capitalise(where)}, {c.adversary} names {_many(of.share)} "
        f"[{_many(c.low or 0.0)}, {_many(c.high or 0.0)}] more of 1,000 {rows} {sure} than "
        f"{own}, which names {_many(of.own)} ({format_secret(c)}, by {c.named}).{more}"
    )


def _not_excluded(c: LeakageClaim, by: str) -> str:
    """`` Up to 90 more of 1,000 rows are not excluded (shop).``; '' where seeds exclude nothing."""
    if c.most is None or c.most >= 1:
        return ""
    rows = name_rows(is_part=c.is_part)
    return f" Up to {_many(max(c.most, 0.0))} more of 1,000 {rows} are not excluded ({by})."


def _name_worst(p: Point, facts: DatasetFacts) -> Iterator[str]:
    """The surest tenth of rows, and the worst class, where they say more than the mean."""
    of = p.exposed
    assert of is not None
    if of.sure > of.own_sure:
        yield (f"In the tenth of rows where it is most certain, {of.sure:.0%} of its answers are "
               f"right; for its baseline, {of.own_sure:.0%}.")  # fmt: skip
    if p.target != "label" or of.worst is None:
        return
    more, k = of.worst.share - of.worst.own, of.worst.label
    if more > of.share:
        names = () if facts.labels else facts.class_names
        name = clean(names[k]) if k < len(names) else k
        yield f"Most exposed are rows of class '{name}': {_many(more)} more of 1,000."


def _say_who_counts(p: Point, rows: int) -> Iterator[str]:
    """How many groups there are, where they have several of the `rows` that were scored."""
    assert p.exposed is not None
    if 0 < p.exposed.people < rows:
        yield (f"One row of each group counts: {p.exposed.people:,} groups, which have {rows:,} "
               "rows in a training.")  # fmt: skip


def _many(share: float) -> str:
    return f"{1000 * share:z,.0f}"


def _untested(summary: Summary) -> str:
    """How many families, messages and questions no attack tested."""
    said = list_untested(summary)
    if more := len(find_unasked(summary)):
        said.append(f"{format_count(more, 'further question')} (see the report: Coverage)")
    return " ".join([*([name_untested(said)] if said else []), NOT_SAFE])


def describe_scope(summary: Summary) -> str:
    """The verdict with its condition: where it holds, what was tested, what would have been seen.

    ``PASS with iso 25 (2 of 2 gates passed). Judged: 3 attacks from 2 of 17 families. Smallest
    detectable leak: 0.093 of AUC.``
    """
    found, how = format_headline(summary)
    judged = [v for v in summary.gates if v.defense]
    if found == "UNFINISHED" or not judged:
        return f"{found}. {how}"
    asked = find_asked(summary)
    each = ([v for v in of if v.verdict == found] for of in (asked, judged))
    at = next(filter(None, each), asked)
    spots = ("no defense" if v.training.is_undefended else format_place(v) for v in at)
    where = join_some(list(dict.fromkeys(spots)))
    also = find_deployed(summary)
    seen = _questions if found == "FAIL" else _sensitivity
    said = [
        f"{found} with {where} ({how.removesuffix('.')})",
        *_undefended(found, asked, summary),
        f"Judged: {_tested(asked, summary)}",
        *seen(found, judged, summary),
        *([f"No gate limits {format_parts(also)} there"] if also and found != "FAIL" else []),
    ]
    return ". ".join(said) + "."


def _undefended(found: str, asked: Iterable[Verdict], summary: Summary) -> list[str]:
    """That a PASS holds with a defense alone, where it does."""
    leaks = any(c.is_leak for c in summary.claims if c.is_undefended)
    alone = found == "PASS" and leaks and all(v.strength for v in asked)
    return ["Without a defense, this system leaks"] if alone else []


def _about_attacks(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.attack or v.gate.metric not in (*TASK, EPSILON)]


def _tested(asked: Sequence[Verdict], summary: Summary) -> str:
    """How many attacks of how many families, or what else alone was judged."""
    about = _about_attacks(asked)
    if not about:
        tasks = any(v.gate.metric in TASK for v in asked)
        return "the main task" if tasks else "what defenses claim"
    names = {n for v in about for n in list_attacks(v, summary)}
    bares, every = {strip_label(n) for n in names}, list_families(summary)
    of = sum(bool(bares & set(f.members)) for f in every)
    return f"{format_count(len(names), 'attack')} from {of} of {len(every)} families"


def _sensitivity(found: str, judged: Iterable[Verdict], summary: Summary) -> list[str]:
    """What warns of a PASS, or else the least leak that would have been found."""
    asked = _about_attacks(judged)
    warned = [w for v in asked for w in v.warnings]
    if warned and found in ("PASS", NO_RISE):
        more = len(warned) - 1
        also = f" (and {format_count(more, 'more warning')})" if more else ""
        return [f"But {Warn(min(warned, key=list(Warn).index)).words}{also}"]
    least = [(x, v, v.units.get(name, "")) for v in asked for name, x in v.detectable.items()]
    if not least:
        return []
    if any(x >= find_reach(v.gate.metric, unit)[1] for x, v, unit in least):
        return ["Even the largest possible leak could have been missed"]
    said = []
    for unit, of in group_by(least, lambda of: of[2]).items():
        most, v, _ = max(of, key=lambda of: of[0])
        shown = format_size(most, unit, v.gate.detect or v.threshold, ".2g")
        said.append(shown + format_unit(unit))
    sizes = " and ".join(said)
    return [f"Smallest detectable leak: {sizes}, of the kind these attacks look for"]


def _questions(found: str, judged: Iterable[Verdict], summary: Summary) -> list[str]:
    """Which questions about a quantity fail a gate, in words, if any does."""
    failing = (v.of_label for v in judged if v.verdict == found)
    answered = [format_question(q) for q in dict.fromkeys(failing) if q in QUESTIONS]
    return [f"It reveals whether a value is {' and '.join(answered)}"] if answered else []


def list_attacks(v: Verdict, summary: Summary) -> list[str]:
    """Labels of the attacks that a verdict speaks of."""
    known = list(v.attacks or v.detectable)
    if known or not v.attack:
        return known
    return sorted({p.attack for p in find_weighed(v, summary.points) if p.status == "ok"})


def describe_cheapest(summary: Summary, dataset: str) -> list[str]:
    """For each training the least costly point of the grid that meets every gate, in a sentence."""
    rows = [r for r in summary.grid if r.dataset == dataset]
    by = {a: _cheapest_of(of) for a, of in group_by(rows, lambda r: r.algorithm).items()}
    if len(by) > 1:
        return [f"{algorithm}: {said}." for algorithm, said in by.items()]
    return [f"{capitalise(said)}." for said in by.values()]


def _cheapest_of(here: Sequence[GridRow]) -> str:
    """What it costs one training to pass every gate, or what comes closest where nothing does."""
    best = next((r for r in here if r.cheapest), None)
    if best is not None and best.is_undefended:
        return "every gate passes without a defense"
    if best is not None:
        return f"{format_place(best)} passes every gate and costs {format_price(best)}"
    good = [r for r in here if r.passed == r.gates]
    if good:
        spots = ", ".join(map(format_place, good))
        return f"{spots} passes every gate; the cost was not measured"
    if all(r.is_undefended for r in here):
        return "not every gate passes, and no defense was tried"
    near = max(here, key=lambda r: (-r.failed, r.passed, r.strength or 0.0))
    missed = join_some([f"'{clean(label)}'" for label in dict.fromkeys(near.left)])
    said = f"every gate passes except {missed}" if near.passed else ""
    if not near.failed:
        said = f"none fails, and the audit leaves {missed} inconclusive"
    closest = f"; {format_deployment(near)} {said}" if said and near.left else ""
    return f"no tested strength passes every gate{closest}"


def format_price(r: GridRow) -> str:
    """``0.002 [-0.007, 0.012] of utility``, and whether that is significant."""
    low, high = r.utility_drop_low, r.utility_drop_high
    text = format_number(r.utility_drop)
    if low is not None and high is not None:
        text += f" [{format_number(low, limit=0.0)}, {format_number(high)}]"
    return f"{text} of utility" + (", not significant" if holds_zero(low, high) else "")


def describe_work(summary: Summary) -> str:
    """Trainings, processor time and wall time."""
    cells, cost = summary.cells, summary.cost
    if summary.is_of_traces:
        return f"{format_count(len(summary.data), 'recording')}, nothing was trained"
    text = f"{cells.finished} of {format_count(cells.planned, 'training')} on {summary.device}"
    if cost.cpu_seconds is None:
        text += f", {cost.training_seconds:.1f} s of work"
    else:
        text += f", {cost.cpu_seconds:.1f} s of processor time"
    wall = cost.run_seconds
    return text + ("" if wall is None else f"; the last run took {wall:.1f} s by the clock")


_POOLED = ("pooled_logistic", "pooled_boosting")


def find_doubts(dataset: str, summary: Summary) -> list[str]:
    """A sentence for each reason to doubt the tables of a data set, or what they can teach."""
    tables = summary.tables.get(dataset, UserTables()).tables
    found = [text for table in tables for text in _doubt_table(table)]
    return [f"{dataset}: {text}" for text in [*found, *_doubt_utility(dataset, summary)]]


def _doubt_table(table: UserTable) -> Iterator[str]:
    """Categories with almost as many values as rows, and parties of constant columns."""
    features = [c for c in table.columns if c.role == "feature"]
    odd = [c.name for c in features if _is_odd_category(c, table.rows)]
    if odd:
        yield (
            f"{join_some(odd)} of {table.file} has nearly unique texts: an id? Leave it out (drop)."
        )
    for party in table.parties:
        own = [c for c in features if c.party == party]
        if own and not any(map(_varies, own)):
            yield f"all columns of {party} are constant."


def _is_odd_category(c: ColumnFacts, rows: int) -> bool:
    """Whether nobody declared a category, and nearly every row has another value."""
    undeclared = c.kind == "category" and bool(c.warning)
    return undeclared and is_nearly_unique(c.distinct, rows - c.missing)


def _varies(c: ColumnFacts) -> bool:
    """Whether a column has two values; a missing category is one."""
    return c.distinct + (c.kind == "category" and c.missing > 0) > 1


def _doubt_utility(dataset: str, summary: Summary) -> Iterator[str]:
    """That no reference on all columns beats guessing."""
    pooled = [
        p for p in summary.points
        if p.dataset == dataset and p.algorithm in _POOLED and not p.attack and p.status == "ok"
        and p.metric == p.primary and p.value.mean is not None and p.chance is not None
    ]  # fmt: skip
    if not pooled or any(map(_beats_guessing, pooled)):
        return
    best = max(pooled, key=lambda p: p.value.mean or 0.0)
    yield (
        f"no model of all columns beats guessing ({best.algorithm}: {best.metric} "
        f"{best.value.mean:.3f}, guessing {best.chance:.3f}). Do ids match the right rows, "
        "and is the label the right column? More rows may help."
    )


def _beats_guessing(p: Point) -> bool:
    """Whether a model is significantly better than guessing; of one seed, better at all."""
    least = p.value.mean if p.value.low is None else p.value.low
    return least is not None and p.chance is not None and least > p.chance
