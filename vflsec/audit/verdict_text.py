"""Why a verdict is what it is: what evidence lacks, what a PASS leaves open, and the sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vflsec.audit.controls import Leakage
from vflsec.audit.dosing import Doses, identify_curve
from vflsec.audit.exposed import EXPOSED
from vflsec.audit.gate import EPSILON, MIN_ROWS, MIN_SEEDS, TASK, Gate, Reason, Shortfall, Warn
from vflsec.audit.gate_candidate import Candidate, NoRoom, find_room, is_full
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.metrics import METRICS, format_limit, format_size, format_unit, metric_name
from vflsec.audit.point import Point, Training
from vflsec.errors import capitalise, format_count, join_some
from vflsec.plugins import registry
from vflsec.runtime.grouping import group_by
from vflsec.specs import QUESTIONS, format_question

_MOST_NAMED = 5
_ROUNDING = 1e-12  # spreads this small beside their mean are those of equal figures


def find_shortfall(row: Point, leak: Leakage) -> Reason | None:
    """What is missing from the least evidence for a PASS; None if nothing is."""
    n, ahead, name, planned = (
        leak.least.n,
        leak.ahead,
        row.attack,
        row.planned - row.unscored or leak.least.n,
    )
    if row.gap:
        return Reason(Shortfall.INCOMPLETE_RECORD, row.gap)
    lack = find_lack(
        (Shortfall.MISSING_SEEDS, name, n, planned),
        (Shortfall.BASELINE_MISSING_SEEDS, ahead.name, ahead.n, planned),
        (Shortfall.FEW_SEEDS, name, n, MIN_SEEDS),
        (Shortfall.FEW_ROWS, name, row.n_least, MIN_ROWS),
    )
    if lack is None and _has_equal_figures(row, leak, planned):
        return Reason(Shortfall.EQUAL_FIGURES, f"{name} has the same value on all {n} seeds")
    if lack is None and row.tied and not _is_silent(row):
        return Reason(Shortfall.ALL_TIED, f"{name} scores all rows alike on {n} seeds")
    return lack


def find_lack(*asked: tuple[Shortfall, str, int, int]) -> Reason | None:
    """The first of (code, who, how many there are, how many it takes) of which there are too few;
    None if none is.
    """
    return next((Reason(code, format_lack(who, has, needed, code))
                 for code, who, has, needed in asked if has < needed), None)  # fmt: skip


def format_lack(name: str, has: int, needed: int, code: Shortfall = Shortfall.FEW_SEEDS) -> str:
    """How much of the least evidence there is."""
    what = "rows" if code is Shortfall.FEW_ROWS else "seeds"
    return f"{name} has {has} of the {needed} {what} needed"


def _has_equal_figures(row: Point, leak: Leakage, planned: int) -> bool:
    """Whether all seeds have one figure, and nothing explains that."""
    ahead = leak.ahead
    if ahead.counts or ahead.sd is None or ahead.sd > _ROUNDING * abs(ahead.mean):
        return False
    return not (_is_silent(row) or is_full(row, leak) or leak.without(planned))


def _is_silent(row: Point) -> bool:
    """Whether the attack says by equal scores, on every seed, that it found nothing."""
    if not row.tied:
        return False
    name = strip_label(row.attack)
    known = name in registry.attacks.entries()
    return known and bool(getattr(registry.attacks.get(name), "silent", False))


def format_not_validated(name: str, why: str, every: Iterable[str] = ()) -> str:
    """That nothing shows that an attack works here, why, and which others nothing does."""
    others = [other for other in dict.fromkeys(every) if other != name]
    more = f", {join_some(others, _MOST_NAMED)}" if others else ""
    return f"Not validated here: {name} ({why}){more}."


def format_nothing(missing: Sequence[Point], gate: Gate) -> str:
    """Why there was nothing to judge, each reason once with its attacks."""
    said = []
    for (status, why), of in group_by(missing, lambda r: (r.status, r.reason)).items():
        names = list(dict.fromkeys(r.attack or gate.metric for r in of))
        state = "without a figure" if status == "ok" else status
        are = f"{join_some(names)} {'is' if len(names) == 1 else 'are'} {state}"
        said.append(are + (f" ({why.rstrip('.')})" if why else ""))
    return f"Nothing to judge: {'; '.join(said)}."


def format_failed(failed: Sequence[Point], blocked: Sequence[Point]) -> str:
    """Which attacks have failed, or have no figure, and why: each reason once."""
    named = {r.attack or r.metric: r for r in [*blocked, *failed]}
    by_reason = group_by(named.items(), lambda of: (of[1].failed, of[1].status, _why_none(of[1])))
    said = []
    for (seeds, status, why), of in by_reason.items():
        one, names = len(of) == 1, join_some([name for name, _ in of], _MOST_NAMED)
        what = f"{names} {'is' if one else 'are'} {status}"
        if seeds:
            what = f"{format_count(seeds, 'seed')} of {names} failed"
        elif status == "ok":
            what = f"{names} {'has' if one else 'have'} no figure"
        said.append(what + (f" ({why.rstrip('.')})" if why else ""))
    return f"Cannot pass: {'; '.join(said)}."


def _why_none(of: Point) -> str:
    """Why a point has no figure; where an attack answered, all rows that are scored are alike."""
    if of.reason or of.failed or of.status != "ok":
        return of.reason
    if of.target == "label":
        return "rows of one class are left to score: take more rows"
    return "all values to score are equal"


def _figure(c: Candidate, gate: Gate) -> str:
    what = f"the {gate.metric}" + (f" of {c.name}" if c.point.attack else "")
    metric = c.point.metric
    unit = format_unit(metric) if gate.metric in ("advantage", *TASK, *EXPOSED) else ""
    size = format_size(c.leak.least.mean, metric, gate.threshold)
    return f"{what} is {size}{unit} over {c.n} seeds"


def _limit(c: Candidate, gate: Gate) -> str:
    return format_limit(gate.threshold, c.point.metric)


def format_no_room(lead: Candidate, why: NoRoom, gate: Gate) -> str:
    """That the limit decides nothing, and what would."""
    cure = f'A gate with of = "{why.decider}" would decide' if why.decider else (
        f"Only a limit below {format_size(why.room, why.metric)} can be exceeded"
    )  # fmt: skip
    limit = format_limit(gate.threshold, why.metric)
    return f"The limit {limit} decides nothing here: {_format_room(lead, why)}. {cure}."


def _format_room(lead: Candidate, why: NoRoom) -> str:
    return (
        f"the baseline of {lead.name} ({why.control}) leaves at most "
        f"{format_size(why.room, why.metric)}{format_unit(why.metric)} to gain"
    )


def _format_instead(lead: Candidate, gate: Gate) -> str:
    """That another figure than the gate's was judged; or ''."""
    why = lead.instead_of
    if why is None:
        return ""
    by, limit = metric_name(lead.point.metric), format_limit(gate.threshold, why.metric)
    return f"; judged by {by}, for {_format_room(lead, why)}, not {limit}"


def _format_full(found: Sequence[Candidate], gate: Gate) -> str:
    """That a control knows all there is, in words; or ''."""
    full = [c for c in found if gate.limits_leaks and is_full(c.point, c.leak)]
    if not full:
        return ""
    reached = format_size(full[0].leak.ahead.control or 0.0, full[0].point.metric)
    return f"; the baseline of {full[0].name} reaches {reached}, all there is"


def format_exceeded(lead: Candidate, beyond: Sequence[Candidate], gate: Gate) -> str:
    """What is beyond the threshold, and how surely."""
    others = len({c.name for c in beyond}) - 1
    rest = f", as is that of {format_count(others, 'more attack')}" if others else ""
    where = "above" if gate.max is not None else "below"
    if lead.point.of_label in QUESTIONS and gate.metric == "advantage":
        rest += f": reveals whether a value is {format_question(lead.point.of_label)}"
    rest += _format_instead(lead, gate)
    far = f"{where} {_limit(lead, gate)} at {100 * gate.confidence:g}%"
    return capitalise(f"{_figure(lead, gate)}, {far}{rest}.")


def format_within(
    lead: Candidate,
    high: float,
    found: Sequence[Candidate],
    missing: Sequence[Point],
    gate: Gate,
) -> str:
    """What is within the threshold, and by how much."""
    side, bound = ("upper", high) if gate.max is not None else ("lower", -high)
    shown = format_size(bound, lead.point.metric, gate.threshold)
    text = f"{_figure(lead, gate)}, its {side} bound {shown} within {_limit(lead, gate)}"
    if len({c.name for c in found}) > 1:
        text += f" (the worst of {len({c.name for c in found})} attacks)"
    text += _of_one_seed(found, gate) + _format_instead(lead, gate) + _unmoved(found)
    text += _format_full(found, gate)
    aside = sorted({f"{r.attack} ({r.status})" for r in missing})
    text += f"; set aside: {', '.join(aside)}" if aside else ""
    return capitalise(text) + "."


def _unmoved(found: Sequence[Candidate]) -> str:
    """Which attacks no message moved, so that their figures are the same on all seeds."""
    names = dict.fromkeys(c.name for c in found if c.point.attack and c.leak.without(c.n))
    if not names:
        return ""
    return f"; no message changed {', '.join(names)}"


@dataclass(frozen=True)
class Guessing:
    """What guessing reaches in the main task, and points of the training without a defense."""

    reaches: float | None
    bare: Sequence[Point]

    @classmethod
    def by_algorithm(cls, rows: Iterable[Point]) -> dict[Training, Guessing]:
        """By data set and algorithm, told from the points of the main task."""
        figures = (r for r in rows if not r.attack and r.metric == r.utility_metric)
        main = group_by(figures, lambda r: r.system)
        return {
            key: cls(of[0].chance, [r for r in of if r.is_undefended]) for key, of in main.items()
        }

    def unbeaten(self, row: Point) -> str | None:
        """That the main task of a point is not shown to be above guessing, in words; or None."""
        metric, bound = row.utility_metric, row.utility.lower
        if metric not in METRICS or self.reaches is None or not METRICS[metric].larger_is_better:
            return None
        if bound is None or bound > self.reaches:
            return None
        return f"{metric} {row.utility.mean or 0:.2f}, guessing {self.reaches:.2f}"


def find_worthless(row: Point, gate: Gate, guessing: Guessing | None) -> Reason | None:
    """Why a PASS at this point tells nothing of a system that works; None if it does.

    Args:
        row: a point of the training.
        gate: what was asked.
        guessing: what it reaches there; None where there is no main task.
    """
    if gate.metric == EPSILON:
        return None if gate.max is None else Reason.warning(Warn.LOWER_BOUND_ONLY)
    if guessing is None:
        return None
    if gate.metric == "utility":
        reached = guessing.reaches
        if gate.min is None or reached is None or gate.min > reached:
            return None
        return Reason.warning(Warn.LIMIT_AT_CHANCE, f"{row.utility_metric} {reached:.3g}")
    if gate.metric == "utility_drop":
        said = next(filter(None, map(guessing.unbeaten, guessing.bare)), None)
        return None if said is None else Reason.warning(Warn.NOTHING_TO_LOSE, said)
    said = guessing.unbeaten(row)
    return None if said is None else Reason.warning(Warn.MODEL_AT_CHANCE, said)


def find_other_metric(names: Sequence[str], gate: Gate) -> Reason | None:
    """Attacks without a figure of the metric which a gate on all attacks asks for; or None."""
    if not names:
        return None
    shown = join_some(names, _MOST_NAMED)
    return Reason.warning(Warn.OTHER_METRIC, f"{shown}, no {gate.of or gate.metric}")


def find_seed_apart(lead: Candidate) -> list[Reason]:
    """That bounds over seeds are wrong more often here, for one seed stands apart."""
    if not (lead.leak.least.apart or lead.leak.ahead.apart):
        return []
    text = f"1 of {lead.n} of {lead.name} (Grubbs, 1 %); add seeds"
    return [Reason.warning(Warn.SEED_APART, text)]


def find_limits_no_leak(gate: Gate) -> Reason | None:
    """That a maximum of an error passes the better attacks guess; or None."""
    metric = METRICS.get(gate.metric)
    if metric is None or metric.larger_is_better or gate.max is None:
        return None
    return Reason.warning(Warn.LIMITS_NO_LEAK, f"set a min of {gate.metric}")


def _of_one_seed(found: Sequence[Candidate], gate: Gate) -> str:
    """That a single training leaked more than the limit, which is on the mean, in words; or ''."""
    beyond = [c for c in found if (c.point.worst_seed or 0.0) > gate.threshold]
    if not gate.limits_leaks or not beyond:
        return ""
    top = max(beyond, key=lambda c: c.point.worst_seed or 0.0)
    which = f" of {top.name}" if len({c.name for c in found}) > 1 else ""
    shown = format_size(top.point.worst_seed or 0.0, top.point.metric, gate.threshold)
    return f"; one seed{which} reaches {shown}"


def seeds_to_add(open_: Sequence[Candidate], alpha: float, level: float) -> int | None:
    """Seeds that would decide the gate; None if too many would.

    One attack beyond the limit fails it, whatever the others do; else all of them must pass.

    Args:
        open_: attacks between pass and fail.
        alpha: level of the bound that passes an attack.
        level: of the test that fails one, which is stricter where there are several.
    """
    past = [c for c in open_ if c.value > c.most]
    more = [c.seeds_until(alpha, level) for c in past or open_]
    found = [m for m in more if m is not None]
    if past:
        return min(found, default=None)
    return max(found) if len(found) == len(more) else None


def format_flipped(lead: Candidate, cure: str, gate: Gate) -> str:
    """That an answer with its labels flipped is not shown to be within the limit, nor to leak."""
    why = f", not significantly within {_limit(lead, gate)}"
    if lead.reversed_metric:
        why = f" in {lead.reversed_metric}; its {lead.point.metric} was not measured"
    turned = format_size(lead.reversed_value, lead.point.metric, gate.threshold)
    text = f"{_figure(lead, gate)}, and with labels flipped {turned}{why}{cure}."
    return capitalise(text)


def find_detectable(found: Sequence[Candidate], alpha: float) -> dict[str, float]:
    """By attack the least leakage over all controls that would have been shown to be above 0.

    Of one that found nothing on any seed no spread tells it.
    """
    out: dict[str, float] = {}
    for c in found:
        leak = None if _is_silent(c.point) else c.point.leakage
        least = leak.detectable(alpha) if leak is not None else None
        if least is not None:
            out[c.name] = max(least, out.get(c.name, 0.0))
    return out


def find_dosed(found: Sequence[Candidate], doses: Doses) -> dict[str, float | None]:
    """By attack the least planted leak that was found; None where none was, on some rows.

    An attack of which a section, or a set of rows, was not dosed is left out.
    """
    out: dict[str, float | None] = {}
    undosed = {c.name for c in found if identify_curve(c.point) not in doses}
    for c in found:
        if c.name not in undosed:
            least, before = doses[identify_curve(c.point)], out.get(c.name, 0.0)
            out[c.name] = None if least is None or before is None else max(least, before)
    return out


def format_sensitivity(
    least: Mapping[str, float], laid: Mapping[str, float | None], units: Mapping[str, str],
    gate: Gate,
) -> str:  # fmt: skip
    """The least leak that a PASS would have found: half of what it says."""
    if not least:
        return ""
    ordered = sorted(least.items(), key=lambda item: -item[1])
    said = _sizes({name: max(v, 0.001) for name, v in ordered[:_MOST_NAMED]}, units, gate)
    if len(ordered) > _MOST_NAMED:
        said += f" and less for {len(ordered) - _MOST_NAMED} more"
    return f" Smallest detectable leak: {said}{_of_doses(laid, units, gate)}."


@dataclass(frozen=True)
class Insensitive:
    """The attack by which an audit would have found the least, where that is above what it must.

    Attributes:
        lead: that attack.
        warning: how little, and what would mend it.
        sentence: the same, to stand after :func:`format_sensitivity`, which has the figure.
        more: seeds to add; None where they are not what is missing.
    """

    lead: Candidate
    warning: Reason
    sentence: str
    more: int | None

    @classmethod
    def of(
        cls,
        found: Sequence[Candidate],
        least: Mapping[str, float],
        laid: Mapping[str, float | None],
        units: Mapping[str, str],
        gate: Gate,
    ) -> Insensitive | None:
        """None where a leak of the gate's `detect`, else of its limit, would have been found.

        Args:
            found: the attacks.
            least: of :func:`find_detectable`.
            laid: of :func:`find_dosed`, which is taken before `least`.
            units: the metric of each.
            gate: only a maximum of the advantage, above 0, can be compared with a leak.
        """
        sizes = {**least, **{k: math.inf if v is None else v for k, v in laid.items()}}
        worst = max(sizes, key=lambda name: sizes[name], default="")
        size, asked = sizes.get(worst, 0.0), gate.must_find
        if not gate.limits_leaks or asked <= 0 or size <= asked:
            return None
        lead = max((c for c in found if c.name == worst), key=lambda c: c.value)
        limit = f"the limit {format_limit(asked, units.get(worst, ''))}"
        above = f"above {limit if gate.detect is None else f'its detect = {asked:g}'}"
        more = None if worst in laid else _seeds_to_detect(found, asked, gate)
        cure = "add seeds or labelled rows" if more is None else format_seeds(more)
        shown = _sizes({worst: size}, units, gate)
        says = f"the smallest detectable is {shown}, {above}"
        sentence = f" A leak {above} could be missed; {cure}."
        if math.isinf(size):
            says = f"no planted leak was detected ({worst})"
            sentence = f" {capitalise(cure)}."
        return cls(lead, Reason.warning(Warn.INSENSITIVE, f"{says}; {cure}"), sentence, more)


def _seeds_to_detect(found: Sequence[Candidate], size: float, gate: Gate) -> int | None:
    """Seeds to add until all of `found` show a leak of that size."""
    alpha = (1 - gate.confidence) * gate.confidence
    more = [None if (leak := c.point.leakage) is None else leak.seeds_to_detect(size, alpha)
            for c in found]  # fmt: skip
    return None if any(m is None for m in more) else max(m for m in more if m is not None)


def format_seeds(more: int | None) -> str:
    """The seeds that would decide it."""
    if more is None:
        return "no feasible number of seeds would decide it"
    return f"about {format_count(more, 'more seed')} needed"


def _sizes(of: Mapping[str, float], units: Mapping[str, str], gate: Gate) -> str:
    """``0.068 of AUC (similarity), 0.06 (norm)``: the unit where another one begins."""
    said, before = [], ""
    for name, size in of.items():
        unit = units.get(name, "")
        text = format_size(size, unit, gate.must_find, ".2g")
        text += format_unit(unit) if unit != before else ""
        said.append(f"{text} ({name})")
        before = unit
    return ", ".join(said)


def _of_doses(laid: Mapping[str, float | None], units: Mapping[str, str], gate: Gate) -> str:
    if not laid:
        return ""
    found = _sizes({k: v for k, v in laid.items() if v is not None}, units, gate)
    missed = " and ".join(k for k, v in laid.items() if v is None)
    said = {f"from {found} on": found, f"none by {missed}": missed}
    return f". Planted leaks detected: {', '.join(text for text, about in said.items() if about)}"


def format_undecided(lead: Candidate, more: int | None, gate: Gate) -> str:
    """What is open, and what would decide it."""
    named, what = lead.leak.ahead, _figure(lead, gate)
    if more is None and lead.value <= lead.most < lead.sign * named.mean:
        text = (
            f"{what} and {format_size(named.mean, lead.point.metric, gate.threshold)} over "
            f"'{named.name}', the baseline chosen beforehand. The limit {_limit(lead, gate)} lies "
            f"between, so seeds do not decide. {_better(lead, gate)}."
        )
    else:
        text = f"{what}, and its interval holds {_limit(lead, gate)}; {format_seeds(more)}."
    return capitalise(text)


_MORE = {"": "known_rows", "label": "known_rows", "integrity": "known_rows",
         "membership": "test rows", "presence": "test rows"}  # fmt: skip


def name_more_rows(target: str) -> str:
    """The rows of which more may show what an attack on this target gains."""
    return _MORE.get(target, "aux_rows")


def _better(lead: Candidate, gate: Gate) -> str:
    """What may decide a gate that the control named beforehand keeps open."""
    room = find_room(lead.point, lead.leak) if gate.limits_leaks else gate.threshold
    if room >= gate.threshold:
        return f"Take more {name_more_rows(lead.point.target)}"
    value, gain, least = lead.point.value.mean, lead.point.advantage.mean, lead.leak.least.name
    own = math.nan if value is None or gain is None else value - gain
    reached, left = (format_size(x, lead.point.metric) for x in (own, max(room, 0.0)))
    said = f"the baseline '{least}' reaches {reached} and leaves {left}"
    return f"Gate another metric (of): {said}"
