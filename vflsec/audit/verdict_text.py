"""The sentences that say how a gate came out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vflsec.audit import intervals
from vflsec.audit.controls import Leakage
from vflsec.audit.dosing import Doses, place_key
from vflsec.audit.gate_candidate import Candidate
from vflsec.audit.leakage import is_undefended
from vflsec.audit.metrics import METRICS, reach
from vflsec.audit.rounding import beside
from vflsec.plugins import registry
from vflsec.specs import QUESTIONS, asked

if TYPE_CHECKING:
    from vflsec.audit.gate import Gate

__all__ = [
    "TASK", "Blind", "between", "broken", "detectable", "dosed", "either_way", "fails", "inverted",
    "nothing", "passes", "reversed_", "seeds_to_add", "thin", "would_have_found",
]  # fmt: skip

TASK = ("utility", "utility_drop")
"""Gate metrics that speak of the main task, not of an attack."""

_MOST_NAMED = 5
_ROUNDING = 1e-12  # spreads this small beside their mean are those of equal figures


def thin(row: Mapping[str, Any], leak: Leakage, seeds: int, rows: int) -> str:
    """What is missing from the least evidence for a PASS, in words; '' if nothing is."""
    name, n = row["attack"], leak.least.n
    planned = int(row.get("planned") or n)
    if row.get("gap"):
        return str(row["gap"])
    if n < planned:
        return gaps(name, row, leak)
    if leak.ahead.n < planned:
        return (
            f"{leak.ahead.name}, the control that was named beforehand beside {name}, has a "
            f"figure on {leak.ahead.n} of {planned} seeds"
        )
    if n < seeds:
        return f"{name} has {n} seeds, and a pass takes at least {seeds}"
    least = row.get("n_least")  # an earlier version has the most alone
    scored = int(row["n"] if least is None else least)
    if scored < rows:
        seed = "" if scored == int(row["n"]) else " on a seed"
        return f"{name} was scored on {scored} rows{seed}, and a pass takes at least {rows}"
    if _is_silent(row):
        return ""
    same = leak.ahead.sd is not None and leak.ahead.sd <= _ROUNDING * abs(leak.ahead.mean)
    if same and not _full(row, leak) and not leak.without(planned):
        return f"{name} has the same figure on all {n} seeds, so their spread says nothing"
    if _is_blank(row):
        return f"{name} tells no two rows apart on any of {n} seeds, as a broken attack would"
    return ""


def _is_blank(row: Mapping[str, Any]) -> bool:
    """Whether the figure is that of chance, exactly, on every seed."""
    return row.get("value_sd") == 0 and row.get("value") == row.get("chance")


def _is_silent(row: Mapping[str, Any]) -> bool:
    """Whether the attack says by equal scores, on every seed, that it found nothing."""
    name = str(row["attack"]).partition("(")[0]
    known = registry.attacks.entries()
    return _is_blank(row) and name in known and bool(registry.attacks.get(name).silent)


def _full(row: Mapping[str, Any], leak: Leakage) -> bool:
    """Whether the control that was named beforehand has all that the figure can have, on every
    seed: then nothing can be gained, and no spread is needed to know it.
    """
    own, metric = leak.ahead.control, str(row["metric"])
    if own is None or metric not in METRICS:
        return False
    return own == reach(metric)[METRICS[metric].larger_is_better]


def gaps(name: str, row: Mapping[str, Any], leak: Leakage) -> str:
    """That some of the planned seeds have no figure, in words; '' if all have one."""
    n = leak.least.n
    planned = int(row.get("planned") or n)
    return f"{name} has a figure on {n} of {planned} seeds" if n < planned else ""


def nothing(missing: Sequence[Mapping[str, Any]], gate: Gate) -> str:
    """Why there was nothing to judge, by attack."""
    said = []
    for r in missing:
        why = r["reason"]
        what = r["attack"] or gate.metric
        state = "without a figure" if r["status"] == "ok" else r["status"]
        said.append(f"{what} is {state}" + (f" ({why})" if why else ""))
    return f"Nothing to judge: {'; '.join(dict.fromkeys(said))}. That is not the same as safe."


def broken(failed: Sequence[Mapping[str, Any]], blocked: Sequence[Mapping[str, Any]]) -> str:
    """Which attacks have failed, and why."""
    names = {r["attack"] or r["metric"]: r for r in [*blocked, *failed]}
    said = []
    for name, r in names.items():
        count = int(r["failed"])
        what = f"{count} {'seed' if count == 1 else 'seeds'} of {name} failed"
        if not count:
            what = f"{name} has no figure" if r["status"] == "ok" else f"{name} is {r['status']}"
        said.append(what + (f" ({r['reason']})" if r["reason"] else ""))
    return f"Cannot pass: {'; '.join(said)}."


def _figure(c: Candidate, gate: Gate) -> str:
    what = f"the {gate.metric} of {c.name}" if c.row["attack"] else gate.metric
    return f"{what} is {beside(c.leak.least.mean, gate.threshold)} over {c.n} seeds"


def fails(lead: Candidate, beyond: Sequence[Candidate], gate: Gate) -> str:
    """What is beyond the threshold, and how surely."""
    others = len({c.name for c in beyond}) - 1
    rest = f", and {others} more beyond it" if others else ""
    where = "above" if gate.max is not None else "below"
    if lead.row.get("of_label") in QUESTIONS and gate.metric == "advantage":
        rest += f": it is told whether a value is {asked(lead.row['of_label'])}"
    text = f"{_figure(lead, gate)}, {where} {gate.threshold:g} at {100 * gate.confidence:g}%{rest}."
    return text[0].upper() + text[1:]


def passes(
    lead: Candidate,
    high: float,
    found: Sequence[Candidate],
    missing: Sequence[Mapping[str, Any]],
    gate: Gate,
) -> str:
    """What is within the threshold, and by how much."""
    side, bound = ("upper", high) if gate.max is not None else ("lower", -high)
    shown = beside(bound, gate.threshold)
    text = f"{_figure(lead, gate)}, its {side} bound {shown} within {gate.threshold:g}"
    if len({c.name for c in found}) > 1:
        text += f" (the worst of {len({c.name for c in found})} attacks)"
    text += _of_one_seed(found, gate) + _little_room(found, gate) + _unmoved(found)
    aside = sorted({f"{r['attack']} ({r['status']})" for r in missing})
    text += f"; set aside: {', '.join(aside)}" if aside else ""
    return text[0].upper() + text[1:] + "."


def _unmoved(found: Sequence[Candidate]) -> str:
    """Which attacks no message moved, so that their figures are the same on all seeds."""
    names = dict.fromkeys(c.name for c in found if c.row["attack"] and c.leak.without(c.n))
    if not names:
        return ""
    return f"; {', '.join(names)} answered as it does without any message on every seed"


_BOUNDS_NOTHING = (
    "what is measured is a lower bound of epsilon: that no more was found does not say how large "
    "it is, only a claim bounds it from above"
)


@dataclass(frozen=True)
class Guessing:
    """What guessing reaches in the main task, and points of the training without a defense."""

    reaches: float | None
    bare: Sequence[Mapping[str, Any]]

    @classmethod
    def by_training(cls, rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Guessing]:
        """By data set and algorithm, told from the points of the main task."""
        main: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for r in rows:
            if not r["attack"] and r["metric"] == r["utility_metric"]:
                main[r["dataset"], r["algorithm"]].append(r)
        return {
            key: cls(of[0]["chance"], [r for r in of if is_undefended(r)])
            for key, of in main.items()
        }

    def unbeaten(self, row: Mapping[str, Any]) -> str:
        """That the main task of a point is not shown to be above guessing, in words; or ''."""
        metric, bound = row["utility_metric"], row["utility_lower"]
        if metric not in METRICS or self.reaches is None or not METRICS[metric].larger_is_better:
            return ""
        if bound is None or bound != bound or bound > self.reaches:
            return ""
        return (
            f"is not shown to predict better than guessing ({metric} {row['utility']:.2f}, by "
            f"guessing {self.reaches:.2f})"
        )


def worthless(row: Mapping[str, Any], gate: Gate, guessing: Guessing | None) -> str:
    """Why a PASS at this point tells nothing of a system that works, in words; '' if nothing does.

    Args:
        row: a point of the training.
        gate: what was asked.
        guessing: what it reaches there; None where there is no main task.
    """
    if gate.metric == "epsilon_lower":
        return _BOUNDS_NOTHING if gate.max is not None else ""
    if guessing is None:
        return ""
    if gate.metric == "utility":
        reached = guessing.reaches
        low = gate.min is not None and reached is not None and gate.min <= reached
        said = f"guessing reaches {row['utility_metric']} {reached:.3g}" if low else ""
        return f"{said}, so the limit asks for nothing" if low else ""
    if gate.metric == "utility_drop":
        said = next(filter(None, map(guessing.unbeaten, guessing.bare)), "")
        return f"the system without a defense {said}, so there is nothing to lose" if said else ""
    said = guessing.unbeaten(row)
    return f"the system {said}, and this tells nothing of one that does" if said else ""


def cramped(found: Iterable[tuple[Candidate, Mapping[str, Any] | None]], gate: Gate) -> str:
    """That a figure which is not the primary one cannot rise by the limit here, in words; or ''.

    Args:
        found: attacks, each with the point of the same answer in the primary metric, if there is
            one. Where that cannot rise so far either, a control knows the labels already.
        gate: what was asked.
    """
    for c, main in found if gate.limits_leaks else ():
        room, metric = _room(c), c.row["metric"]
        if main is not None and reach(main["metric"])[1] - _beside(main) < gate.threshold:
            continue
        if metric != c.row["primary"] and room < gate.threshold:
            return (
                f"no more than {max(room, 0.0):.3f} of {metric} could be gained beside {c.name}, "
                f"so the limit asks for nothing there, whatever is gained in {c.row['primary']}"
            )
    return ""


def unasked(names: Sequence[str], gate: Gate) -> str:
    """Attacks that have no figure of the metric which a gate on all attacks asks for; or ''."""
    shown = ", ".join(names[:_MOST_NAMED])
    shown += f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    has, it = ("has", "it") if len(names) == 1 else ("have", "them")
    what = gate.of or gate.metric
    return f"{shown} {has} no {what}, so this says nothing of {it}" if names else ""


def inverted(gate: Gate) -> str:
    """That a maximum of an error passes the better attacks guess, in words; or ''."""
    metric = METRICS.get(gate.metric)
    if metric is None or metric.larger_is_better or gate.max is None:
        return ""
    return (
        f"less {gate.metric} is better for an attack, so a maximum of it limits no leak: a minimum "
        "does"
    )


def _beside(main: Mapping[str, Any]) -> float:
    """The figure of the control that leaves the least, beside a point of an attack."""
    return float(main["value"]) - float(main["advantage"])


def _room(c: Candidate) -> float:
    """What is left to gain over the control that leaves the least."""
    return reach(c.row["metric"])[1] - (float(c.row["value"]) - c.leak.least.mean)


def _of_one_seed(found: Sequence[Candidate], gate: Gate) -> str:
    """That a single training leaked more than the limit, which is on the mean, in words; or ''."""
    beyond = [c for c in found if (c.row.get("worst_seed") or 0.0) > gate.threshold]
    if not gate.limits_leaks or not beyond:
        return ""
    top = max(beyond, key=lambda c: float(c.row["worst_seed"]))
    which = f" of {top.name}" if len({c.name for c in found}) > 1 else ""
    shown = beside(top.row["worst_seed"], gate.threshold)
    return f"; the largest{which} in a single seed is {shown}, above the limit"


def _little_room(found: Sequence[Candidate], gate: Gate) -> str:
    """That what attackers know without the federation leaves no room for the limit; or ''."""
    known = {c.name: c.row["value"] - c.leak.least.mean for c in found}
    room = {c.name: _room(c) for c in found}
    top = min(room, key=lambda name: room[name])
    if gate.metric != "advantage" or not gate.limits_leaks or room[top] >= gate.threshold:
        return ""
    return (
        f"; beside {top} a control reaches {known[top]:.3f} without the federation, so that no "
        f"more than {max(room[top], 0.0):.3f} could be gained"
    )


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


def either_way(lead: Candidate, more: int | None, gate: Gate) -> str:
    """That an answer turned round is not shown to be within the limit, nor to leak."""
    cure = "even 1000 seeds would not tell" if more is None else f"about {_seeds(more)} would tell"
    turned = beside(lead.mirrored, gate.threshold)
    text = (
        f"{_figure(lead, gate)}, and turned round {turned}, which the spread over seeds does not "
        f"show to be within {gate.threshold:g}; {cure}."
    )
    return text[0].upper() + text[1:]


def reversed_(lead: Candidate, more: int | None, gate: Gate) -> str:
    """Why an answer that ranks in reverse cannot pass, or not yet."""
    cure = "" if more is None else f" (about {_seeds(more)} would tell)"
    text = (
        f"{_figure(lead, gate)}, but it ranks in reverse: turned round it would be "
        f"{lead.mirrored:.3f}, which is not shown to be within {gate.threshold:g}{cure}. "
    )
    if lead.ranking:
        text = (
            f"{_figure(lead, gate)}, but it ranks in reverse: turned round its advantage in "
            f"{lead.ranking} is {lead.mirrored:.3f}, and its {lead.row['metric']} was not "
            "measured. "
        )
    text += "Whoever knows which way round it is has the labels."
    return text[0].upper() + text[1:]


def detectable(found: Sequence[Candidate], alpha: float) -> dict[str, float]:
    """By attack the least leakage over all controls that would have been shown to be above 0.

    Of one that found nothing on any seed no spread tells it.
    """
    out: dict[str, float] = {}
    for c in found:
        leak = Leakage.of(c.row)
        silent = leak is None or _is_silent(c.row)
        least = leak.detectable(alpha) if leak is not None and not silent else None
        if least is not None:
            out[c.name] = max(least, out.get(c.name, 0.0))
    return out


def dosed(found: Sequence[Candidate], doses: Doses) -> dict[str, float | None]:
    """By attack the least planted leak that was found; None where none was, on some rows.

    An attack of which a section, or a set of rows, was not dosed is left out.
    """
    out: dict[str, float | None] = {}
    bare = {c.name for c in found if place_key(c.row) not in doses}
    for c in found:
        if c.name not in bare:
            least, before = doses[place_key(c.row)], out.get(c.name, 0.0)
            out[c.name] = None if least is None or before is None else max(least, before)
    return out


def would_have_found(
    least: Mapping[str, float], laid: Mapping[str, float | None], gate: Gate
) -> str:
    """What a PASS would have found: half of what it says."""
    if not least:
        return ""
    ordered = sorted(least.items(), key=lambda item: -item[1])
    said = _sizes({name: max(v, 0.001) for name, v in ordered[:_MOST_NAMED]}, gate)
    said += f" and less for {len(ordered) - _MOST_NAMED} more" * (len(ordered) > _MOST_NAMED)
    what = "leak" if gate.metric == "advantage" else gate.metric
    which = "one" if gate.metric == "advantage" else "an advantage"
    side = "above" if gate.max is not None else "below"
    return (
        f" No {what} {side} {gate.threshold:g} was found; this audit would have found {which} of "
        f"{said}{_of_doses(laid, gate)}."
    )


@dataclass(frozen=True)
class Blind:
    """The attack by which an audit would have found the least, where that is above what it must.

    Attributes:
        lead: that attack.
        says: how little, and what would mend it.
        adds: the same in a sentence after :func:`would_have_found`, which has the figure.
        more: seeds to add; None where they are not what is missing.
    """

    lead: Candidate
    says: str
    adds: str
    more: int | None

    @classmethod
    def of(
        cls,
        found: Sequence[Candidate],
        least: Mapping[str, float],
        laid: Mapping[str, float | None],
        gate: Gate,
    ) -> Blind | None:
        """None where a leak of the gate's `detect`, else of its limit, would have been found.

        Args:
            found: the attacks.
            least: of :func:`detectable`.
            laid: of :func:`dosed`, which is taken before `least`.
            gate: only a maximum of the advantage, above 0, can be compared with a leak.
        """
        sizes = {**least, **{k: math.inf if v is None else v for k, v in laid.items()}}
        worst = max(sizes, key=lambda name: sizes[name], default="")
        size, asked = sizes.get(worst, 0.0), gate.must_find
        if not gate.limits_leaks or asked <= 0 or size <= asked:
            return None
        lead = next(c for c in found if c.name == worst)
        limit = "the limit" if gate.detect is None else "its detect ="
        above = f"above {limit} {asked:g}"
        more = None if worst in laid else _seeds_to_detect(found, asked, gate)
        cure = "add seeds or known rows" if more is None else f"about {_seeds(more)} would do"
        shown = _sizes({worst: size}, gate)
        says = f"this audit would only have found a leak of {shown}, {above}"
        adds = f" That of {worst} is {above}; {cure}."
        if math.isinf(size):
            says = f"this audit would have found none of the leaks that were planted ({worst})"
            adds = f" {cure[0].upper()}{cure[1:]}."
        return cls(lead, f"{says}; {cure}", adds, more)


def _seeds_to_detect(found: Sequence[Candidate], size: float, gate: Gate) -> int | None:
    """Seeds to add until all of `found` show a leak of that size."""
    alpha = (1 - gate.confidence) * gate.confidence
    more = [None if (leak := Leakage.of(c.row)) is None else leak.seeds_to_detect(size, alpha)
            for c in found]  # fmt: skip
    return None if any(m is None for m in more) else max(m for m in more if m is not None)


def _seeds(more: int) -> str:
    return f"{more} more seed{'s' if more > 1 else ''}"


def _sizes(of: Mapping[str, float], gate: Gate) -> str:
    return ", ".join(f"{beside(v, gate.must_find, '.2g')} ({name})" for name, v in of.items())


def _of_doses(laid: Mapping[str, float | None], gate: Gate) -> str:
    if not laid:
        return ""
    found = _sizes({k: v for k, v in laid.items() if v is not None}, gate)
    missed = " and ".join(k for k, v in laid.items() if v is None)
    said = [f"it finds those from {found} on"] * bool(found)
    said += [f"{missed} finds none"] * bool(missed)
    return f". Of the leaks that were planted {', '.join(said)}"


def between(lead: Candidate, more: int | None, gate: Gate, level: float) -> str:
    """What is open, and what would decide it."""
    named = lead.leak.ahead
    if more is None and lead.value <= lead.most < lead.sign * named.mean:
        cure = (
            f"no number of seeds decides it, for against {named.name}, the control that was named "
            f"beforehand, it is {named.mean:.3f}: {_better(lead, gate)}"
        )
    elif more is None:
        cure = "even 1000 seeds would not decide it"
    else:
        cure = f"about {_seeds(more)} would decide it"
        cure += _rows_instead(lead, level)
    text = f"{_figure(lead, gate)}, and its interval holds {gate.threshold:g}; {cure}."
    return text[0].upper() + text[1:]


def _better(lead: Candidate, gate: Gate) -> str:
    """What may decide a gate that the control named beforehand keeps open."""
    if not gate.limits_leaks or _room(lead) >= gate.threshold:
        return "more known rows name a better one"
    least = lead.leak.least
    return (
        f"nor can it fail, for {least.name} reaches {_beside(lead.row):.3f}, which leaves no more "
        f"than {max(_room(lead), 0.0):.3f} to gain; ask for a figure that has room (of)"
    )


def _rows_instead(c: Candidate, alpha: float) -> str:
    """The other cure, where so few target rows explain the spread over seeds by themselves.

    '' where it is the spread against another control that keeps the gate open.

    The standard error of a share over n rows is at most 0.5 / sqrt(n), and that of an AUC of
    balanced classes about 0.58 / sqrt(n) (Hanley and McNeil 1982, no signal).
    """
    beside = c.leak.least if c.value > c.most else c.leak.ahead
    rows, gap = int(c.row["n"] or 0), abs(beside.mean - c.limit)
    factor = intervals.t_half_width(c.n, 1 - alpha, "upper")
    if rows < 1 or not beside.sd or not factor or beside.sd > 1.2 * 0.58 / math.sqrt(rows):
        return ""
    wanted = math.ceil(rows * (factor * beside.sd / gap) ** 2)
    return f", or about {wanted} target rows instead of {rows}" if wanted > rows else ""
