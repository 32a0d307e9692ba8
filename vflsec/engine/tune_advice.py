"""What to try where no strength of a defense meets both limits, from what the search measured."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vflsec.audit.gate import FAIL, MIN_SEEDS, TASK, Verdict
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.pareto_front import Trial
from vflsec.audit.record import Acting
from vflsec.core.algorithm import Algorithm
from vflsec.core.policy import Policy
from vflsec.errors import VflsecError
from vflsec.plugins import registry

_MOST_NAMED = 6


class RemedyKind(StrEnum):
    """What a search that found nothing advises, or one whose choice is not confirmed."""

    MORE_SEEDS = "more_seeds"
    STRONGER = "stronger"
    WEAKER = "weaker"
    BETWEEN = "between"
    LOOSER = "looser"
    OTHER_MESSAGES = "other_messages"
    OTHER_DEFENSES = "other_defenses"
    FIXED_DEFENSES = "fixed_defenses"
    NO_OTHER_DEFENSE = "no_other_defense"
    NOT_VALIDATED = "not_validated"
    GATE_FAILS = "gate_fails"


@dataclass(frozen=True)
class Remedy:
    """One thing to try.

    Attributes:
        kind: which.
        text: the reason and what to do, in short sentences.
        options: of `vflsec tune`, with their new values, in turn; empty where it is no search.
        other: the words of another command of `vflsec`.
    """

    kind: RemedyKind
    text: str
    options: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """What is known of the system that a defense is put into.

    Attributes:
        reads: kinds of messages that an attack reads, by its label; may lack some.
        acting: the defenses that act on a kind of message, of :func:`list_acting`.
        accepts: whether the planner takes a defense in this system.
    """

    reads: Mapping[str, Collection[str]]
    acting: Mapping[str, Acting]
    accepts: Callable[[str], bool]


def list_remedies(
    defense: str,
    found: Sequence[Trial],
    leak: float,
    drop: float,
    *,
    seeds: int,
    rounds: int,
    around: Surroundings,
) -> tuple[Remedy, ...]:
    """What to try, the one that changes least first.

    Args:
        defense: whose strengths were tried.
        found: all of them, weakest first, none of which meets both limits; where something failed
            nothing is known.
        leak, drop: the limits.
        seeds, rounds: of the search.
        around: the system.
    """
    few = seeds < MIN_SEEDS
    text = f"Nothing passes on fewer than {MIN_SEEDS} seeds. Add seeds:"
    said: list[Remedy | None] = [_more_seeds(5, text)] if few else []
    found = [t for t in found if not t.failed]
    if not found:
        return tuple(r for r in said if r)
    meets = [t for t in found if t.meets(leak)]
    cheap = [t for t in found if t.drop_high <= drop]
    at = min((meets and cheap) or found, key=lambda t: t.find_excess(leak))
    near = _narrower(found, leak, drop, seeds)
    said += [
        None if few else near,
        _other_range(defense, found, leak, cheap, rounds),
        None if near else _looser(cheap, drop),
        *_others(defense, _find_worst(at, leak), around),
    ]
    return tuple(r for r in said if r)


def _more_seeds(seeds: int, text: str) -> Remedy:
    return Remedy(RemedyKind.MORE_SEEDS, text, ("--seeds", str(seeds)))


def list_doubts(
    fresh: Trial | None, leak: float, silent: Mapping[str, str], *, seeds: int,
    confirmed: bool | None, target: str = "*",
) -> tuple[Remedy, ...]:  # fmt: skip
    """What to do where there is a strength, and something speaks against it.

    Args:
        fresh: the strength on fresh seeds; None if they were not asked.
        leak: the limit.
        silent: attacks that are not validated, by what people read of them.
        seeds: how many fresh ones there are.
        confirmed: whether they confirm it.
        target: of the attacks that were searched.
    """
    out = []
    if fresh is not None and (failing := [g for g in fresh.gates if g.verdict == FAIL]):
        out.append(_meet_gates(fresh, failing, target))
    elif fresh is not None and not confirmed:
        or_ = ", or set a lower --leak" if fresh.leak_high > leak else ""
        text = f"Fresh seeds do not confirm this strength. Add seeds{or_}:"
        out.append(_more_seeds(2 * seeds, text))
    for label, attack in silent.items():
        text = (
            f"{label} is not validated here, so no gate on it can pass. Give it more in its "
            "[[attack]] (known_rows or aux_rows), or leave it out. See what it needs:"
        )
        out.append(Remedy(RemedyKind.NOT_VALIDATED, text, other=("show", strip_label(attack))))
    return tuple(out)


def _meet_gates(fresh: Trial, failing: Sequence[Verdict], target: str) -> Remedy:
    """More seeds do not help against a gate that fails."""
    names = "; ".join(dict.fromkeys(g.label for g in failing))
    here = [g for g in failing if g.strength in (None, fresh.strength)]
    limits = sorted({"--drop" if g.limited in TASK else "--leak" for g in here})
    every = ", or search without --target" if target != "*" else ""
    do = f"Set a lower {' and a lower '.join(limits)}{every}." if here else (
        "It judges the undefended system, which no strength changes."
    )  # fmt: skip
    text = f"On fresh seeds this gate fails: {names}. More seeds do not change that. {do}"
    return Remedy(RemedyKind.GATE_FAILS, text)


def _find_worst(t: Trial, leak: float) -> str:
    """The attack in the way: of the gate on exposed people where averages are within the limit."""
    return t.exposing.attack if t.exposing and t.leak_high <= leak else t.attack


def _narrower(found: Sequence[Trial], leak: float, drop: float, seeds: int) -> Remedy | None:
    near = [
        t for t in found
        if t.is_near(leak) and t.drop <= drop
    ]  # fmt: skip
    if not near:
        return None
    t = min(near, key=lambda t: (t.find_excess(leak), t.leak_high, t.drop_high))
    return _more_seeds(
        2 * seeds,
        f"At strength {t.strength:g} the means are within the limits (advantage {t.leak:+.3f}, "
        f"loss of utility {t.drop:.3f}), but the upper bounds are not. Add seeds:",
    )


def _other_range(
    defense: str, found: Sequence[Trial], leak: float, cheap: Sequence[Trial], rounds: int,
) -> Remedy | None:  # fmt: skip
    """Where strengths were not tried that may do, as far as the trend says."""
    tried = [t for t in found if t.strength > 0]
    if not tried:
        return None
    low = tried[0]
    meets = [t for t in found if t.meets(leak)]
    if not meets:
        return _stronger(defense, found, leak, cheap)
    first = min(meets, key=lambda t: t.strength)
    if first is low:
        text = "Weaker settings may cost less. Try them:"
        return Remedy(RemedyKind.WEAKER, text, ("--low", f"{low.strength / 10:g}"))
    weaker = [t for t in found if t.strength < first.strength]
    if weaker and weaker[-1] not in cheap:  # what is stronger still costs no less
        return None
    below = max((t.strength for t in cheap if t.strength < first.strength), default=0.0)
    if first.strength <= 1.1 * max(below, low.strength):
        return None
    text = f"No strength between {below:g} and {first.strength:g} was tried. Search more finely:"
    return Remedy(RemedyKind.BETWEEN, text, ("--rounds", str(rounds + 3)))


def _stronger(
    defense: str, found: Sequence[Trial], leak: float, cheap: Sequence[Trial]
) -> Remedy | None:
    """Beyond the strongest, if that comes closest and more seeds there are not what is missing."""
    kind: Any = registry.defenses.get(defense)
    most: float = kind.largest
    high = found[-1]
    others = min((t.find_excess(leak) for t in found[:-1]), default=(0.0, 0.0))
    falls = high.find_excess(leak) < others and not high.is_near(leak)
    if not falls or high.strength >= most or high not in cheap:
        return None
    text = (
        "The strongest setting comes closest to the limits. It costs at most "
        f"{high.drop_high:.3f} of utility. Try stronger ones:"
    )
    to = f"{min(10 * high.strength, most):g}"
    return Remedy(RemedyKind.STRONGER, text, ("--high", to))


def _looser(cheap: Sequence[Trial], drop: float) -> Remedy | None:
    """The least leakage that the accepted loss of utility buys; None where people are exposed."""
    t = min((t for t in cheap if not t.exposing), key=lambda t: t.leak_high, default=None)
    if t is None:
        return None
    bound = f"{t.leak_high:+.3f} ({t.named})"
    if not t.strength:
        text = (
            f"Strengths that cost at most {drop:g} of utility do not reduce the leakage. The upper "
            f"bound of the advantage is lowest without a defense: {bound}."
        )
        return Remedy(RemedyKind.LOOSER, text)
    text = (
        f"With a loss of at most {drop:g} of utility, the lowest upper bound of the advantage is "
        f"{bound}, at strength {t.strength:g}. If you can accept that, raise the limit:"
    )
    to = f"{math.ceil(1000 * t.leak_high) / 1000:g}"
    return Remedy(RemedyKind.LOOSER, text, ("--leak", to))


def _others(defense: str, attack: str, around: Surroundings) -> list[Remedy]:
    """What else acts on the messages that the attack in the way reads."""
    kinds, acting = set(around.reads.get(attack, ())), around.acting
    if not kinds:
        return []
    acts = {k for k, of in acting.items() if defense in (*of.tuned, *of.fixed)}
    what = " and ".join(sorted(kinds))
    out = []
    if acts and not acts & kinds:
        out.append(Remedy(
            RemedyKind.OTHER_MESSAGES,
            f"{attack} reads {what} messages, and {defense} acts only on "
            f"{' and '.join(sorted(acts))} messages.",
        ))  # fmt: skip
    found = [acting[k] for k in sorted(kinds) if k in acting]
    named = _list_accepted([n for of in found for n in of.tuned if n != defense], around)
    fixed = _list_accepted([n for of in found for n in of.fixed if n != defense], around)
    if fixed:
        text = (
            f"{' or '.join(fixed)} hides messages that {attack} reads, and has no strength to "
            "tune. Add it as a [[defense]], and audit. See what it leaves:"
        )
        out.append(Remedy(RemedyKind.FIXED_DEFENSES, text, other=("show", fixed[0])))
    if named:
        text = f"{attack} reads {what} messages. Other defenses act on them, too. Try them:"
        options = tuple(word for n in named for word in ("--defense", n))
        out.append(Remedy(RemedyKind.OTHER_DEFENSES, text, options))
    if not (named or fixed):
        text = (
            f"{attack} reads {what} messages. No other defense acts on these messages here. "
            "Share less, or look through all defenses:"
        )
        out.append(Remedy(RemedyKind.NO_OTHER_DEFENSE, text, other=("list", "defenses")))
    return out


def _list_accepted(names: Iterable[str], around: Surroundings) -> list[str]:
    """The first of these defenses that the planner takes."""
    return list(itertools.islice(filter(around.accepts, dict.fromkeys(names)), _MOST_NAMED))


def list_acting(systems: Iterable[Algorithm] = ()) -> dict[str, Acting]:
    """The registered defenses by the kinds of messages that they act on.

    Args:
        systems: algorithms in use; with some, only what acts under one of them is named.
    """
    tuned, fixed = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    made = list(systems)
    policies = [(n, p) for n in registry.defenses.names() if (p := _made(n)) is not None]
    found = [(n, p, k) for n, p in policies for k in _find_acted(p, made)]
    for name, policy, kind in sorted(found, key=lambda of: of[2] not in of[1].treats):
        (tuned if policy.strengths else fixed)[kind].append(name)
    return {k: Acting(tuple(tuned[k]), tuple(fixed[k])) for k in sorted({*tuned, *fixed})}


def _find_acted(policy: Policy, systems: Sequence[Algorithm]) -> frozenset[str]:
    fit = [a for a in systems if not a.explain_unfit(policy)]
    if not systems:
        return policy.acts_on
    return frozenset(k for a in fit for k in policy.acts_in(getattr(a, "profile", "")))


def _made(name: str) -> Policy | None:
    """A defense with its defaults; None for one that must be given more."""
    try:
        policy: Policy = registry.defenses.create(name, {})
    except VflsecError:
        return None
    return policy
