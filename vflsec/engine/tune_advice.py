"""What to try where no strength of a defense meets both limits, from what the search measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from vflsec.audit.gate import MIN_SEEDS, TASK, Verdict
from vflsec.audit.pareto_front import Trial
from vflsec.audit.record import Acting
from vflsec.audit.validated import Validation
from vflsec.core.algorithm import Algorithm
from vflsec.core.policy import Policy
from vflsec.errors import VflsecError
from vflsec.plugins import registry
from vflsec.report.steps import advise_open, advise_validation, find_step
from vflsec.report.tree import Step, StepKind
from vflsec.runtime.grouping import group_by


def list_remedies(
    largest: float,
    found: Sequence[Trial],
    leak: float,
    drop: float,
    *,
    seeds: int,
    rounds: int,
    others: Callable[[str], Sequence[Step]],
) -> tuple[Step, ...]:
    """What to try, the one that changes least first.

    Args:
        largest: the largest strength that has a meaning.
        found: all strengths that were tried, weakest first, none of which meets both limits; where
            something failed nothing is known.
        leak, drop: the limits.
        seeds, rounds: of the search.
        others: what else to try against an attack.
    """
    found = [t for t in found if not t.failed]
    near = _narrower(found, leak, drop, seeds)
    text = f"Nothing passes on fewer than {MIN_SEEDS} seeds. Add seeds:"
    said = [_more_seeds(5, text) if seeds < MIN_SEEDS else near]
    if found:
        cheap = [t for t in found if t.drop_high <= drop]
        meets = any(t.meets(leak) for t in found)
        at = min((meets and cheap) or found, key=lambda t: t.find_excess(leak))
        said += [
            _other_range(largest, found, leak, cheap, rounds),
            None if near else _looser(cheap, drop),
            *others(_find_worst(at, leak)),
        ]
    return tuple(step for step in said if step)


def _more_seeds(seeds: int, text: str) -> Step:
    return Step(StepKind.MORE_SEEDS, text, options=("--seeds", str(seeds)))


def list_doubts(
    fresh: Trial | None, leak: float, silent: Mapping[str, Validation], *, seeds: int, met: bool,
    target: str = "*",
) -> tuple[Step, ...]:  # fmt: skip
    """What to do where there is a strength, and something speaks against it.

    Args:
        fresh: the strength on fresh seeds; None if they were not asked.
        leak: the limit.
        silent: attacks that are not validated, by what people read of them.
        seeds: how many fresh ones there are.
        met: whether it meets both limits on them.
        target: of the attacks that were searched.
    """
    asked = group_by(fresh.gates if fresh else (), find_step)
    open_ = [g for kind, of in asked.items() if kind not in _SEEDS_OR_NONE for g in of]
    out = advise_validation(silent, seeds)
    if fresh and (failing := asked.get(StepKind.GATE_FAILS)):
        return (_meet_gates(fresh, failing, target), *out)
    if open_:
        return (advise_open(open_), *out)
    if fresh is None or (met and StepKind.MORE_SEEDS not in asked):
        return tuple(out)
    or_ = ", or set a lower --leak" if fresh.leak_high > leak else ""
    text = f"Fresh seeds do not confirm this strength. Add seeds{or_}:"
    return (_more_seeds(2 * seeds, text), *out)


_SEEDS_OR_NONE = (
    None, StepKind.UNDETECTED, StepKind.NOT_VALIDATED, StepKind.MORE_SEEDS,
)  # fmt: skip
"""What a gate on fresh seeds asks for that more seeds, or :func:`advise_validation`, may give."""


def _meet_gates(fresh: Trial, failing: Sequence[Verdict], target: str) -> Step:
    """More seeds do not help against a gate that fails."""
    names = "; ".join(dict.fromkeys(g.label for g in failing))
    here = [g for g in failing if g.strength in (None, fresh.strength)]
    limits = sorted({"--drop" if g.limited in TASK else "--leak" for g in here})
    every = ", or search without --target" if target != "*" else ""
    do = f"Set a lower {' and a lower '.join(limits)}{every}." if here else (
        "It judges the undefended system, which no strength changes."
    )  # fmt: skip
    text = f"On fresh seeds this gate fails: {names}. More seeds do not change that. {do}"
    return Step(StepKind.GATE_FAILS, text)


def _find_worst(t: Trial, leak: float) -> str:
    """The attack in the way: of the gate on exposed rows where averages are within the limit."""
    return t.exposing.attack if t.exposing and t.leak_high <= leak else t.attack


def _narrower(found: Sequence[Trial], leak: float, drop: float, seeds: int) -> Step | None:
    near = (t for t in found if t.is_near(leak) and t.drop <= drop)
    t = min(near, key=lambda t: (t.find_excess(leak), t.leak_high, t.drop_high), default=None)
    if t is None:
        return None
    return _more_seeds(
        2 * seeds,
        f"At strength {t.strength:g} the means are within the limits (advantage "
        f"{t.format_gain(t.leak)}, loss of utility {t.drop:.3f}), but the upper bounds are not. "
        "Add seeds:",
    )


def _other_range(
    largest: float, found: Sequence[Trial], leak: float, cheap: Sequence[Trial], rounds: int,
) -> Step | None:  # fmt: skip
    """Where strengths were not tried that may do: beyond the last that leaks and costs little, up
    to the first that does not leak.
    """
    tried = [t for t in found if t.strength > 0]
    first = next((t for t in found if t.meets(leak)), None)
    if first is None:
        return _stronger(largest, found, leak, cheap) if tried else None
    weaker = [t for t in tried if t.strength < first.strength]
    if not weaker:
        text = "Weaker settings may cost less. Try them:"
        return Step(StepKind.WEAKER, text, options=("--low", f"{first.strength / 10:g}"))
    below = weaker[-1]
    if below not in cheap or first.strength <= 1.1 * below.strength:
        return None
    text = (
        f"No strength between {below.strength:g} and {first.strength:g} was tried. Search more "
        "finely:"
    )
    return Step(StepKind.BETWEEN, text, options=("--rounds", str(rounds + 3)))


def _stronger(
    largest: float, found: Sequence[Trial], leak: float, cheap: Sequence[Trial]
) -> Step | None:
    """Beyond the strongest, if that comes closest and more seeds there are not what is missing."""
    high = found[-1]
    others = min((t.find_excess(leak) for t in found[:-1]), default=(0.0, 0.0))
    falls = high.find_excess(leak) < others and not high.is_near(leak)
    if not falls or high.strength >= largest or high not in cheap:
        return None
    text = (
        "The strongest setting comes closest to the limits. It costs at most "
        f"{high.drop_high:.3f} of utility. Try stronger ones:"
    )
    to = f"{min(10 * high.strength, largest):g}"
    return Step(StepKind.STRONGER, text, options=("--high", to))


def _looser(cheap: Sequence[Trial], drop: float) -> Step | None:
    """The least leakage that the accepted loss of utility buys; None where rows are exposed."""
    t = min((t for t in cheap if not t.exposing), key=lambda t: t.leak_high, default=None)
    if t is None:
        return None
    bound = f"{t.format_gain(t.leak_high)} ({t.named})"
    if not t.strength:
        text = (
            f"Strengths that cost at most {drop:g} of utility do not reduce the leakage. The upper "
            f"bound of the advantage is lowest without a defense: {bound}."
        )
        return Step(StepKind.LOOSER, text)
    text = (
        f"With a loss of at most {drop:g} of utility, the lowest upper bound of the advantage is "
        f"{bound}, at strength {t.strength:g}. If you can accept that, raise the limit:"
    )
    to = f"{math.ceil(1000 * t.leak_high) / 1000:g}"
    return Step(StepKind.LOOSER, text, options=("--leak", to))


def list_acting(systems: Iterable[Algorithm] = ()) -> dict[str, Acting]:
    """The registered defenses by the kinds of messages that they act on.

    Args:
        systems: algorithms in use; with some, only what acts under one of them is named.
    """
    tuned, fixed, by_labels = (defaultdict[str, list[str]](list) for _ in range(3))
    made = list(systems)
    policies = [(n, p) for n in registry.defenses.names() if (p := _made(n)) is not None]
    found = [(n, p, k) for n, p in policies for k in _find_acted(p, made)]
    for name, policy, kind in sorted(found, key=lambda of: of[2] not in of[1].treats):
        (tuned if policy.strengths else fixed)[kind].append(name)
        by_labels[kind] += [name] if kind in policy.acts_by_labels else []
    return {k: Acting(*(tuple(of[k]) for of in (tuned, fixed, by_labels)))
            for k in sorted({*tuned, *fixed})}  # fmt: skip


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
