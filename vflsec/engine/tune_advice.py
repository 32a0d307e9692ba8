"""What to try where no strength of a defense meets both limits, from what the search measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vflsec.audit.pareto_front import Trial
from vflsec.core.policy import Policy
from vflsec.errors import VflsecError
from vflsec.plugins import registry

_MOST_NAMED = 6


def list_remedies(
    defense: str,
    found: Sequence[Trial],
    leak: float,
    drop: float,
    *,
    seeds: int,
    rounds: int,
    reads: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    """Sentences, the one that changes least first; each names the options of `vflsec tune`.

    Args:
        defense: whose strengths were tried.
        found: all of them, weakest first, none of which meets both limits; where something failed
            nothing is known.
        leak, drop: the limits.
        seeds, rounds: of the search.
        reads: kinds of messages that an attack reads, by its label; may lack some.
    """
    found = [t for t in found if not t.failed]
    if not found:
        return ()
    meets = [t for t in found if t.leak_high <= leak]
    cheap = [t for t in found if t.drop_high <= drop]
    best = min(meets or found, key=lambda t: t.drop_high if meets else t.leak_high)
    said = [
        _more_seeds(found, leak, drop, seeds),
        _other_range(defense, found, meets, cheap, rounds),
        _within(cheap, drop),
        *_others(
            defense, min(cheap, key=lambda t: t.leak_high, default=best) if meets else best, reads
        ),
    ]
    return tuple(s for s in said if s)


def _more_seeds(found: Sequence[Trial], leak: float, drop: float, seeds: int) -> str:
    near = [t for t in found if t.leak <= leak and t.drop <= drop and not t.turned]
    if not near:
        return ""
    t = min(near, key=lambda t: (t.leak_high, t.drop_high))
    return (
        f"At strength {t.strength:g} the means are within both limits (advantage {t.leak:+.3f}, "
        f"loss of utility {t.drop:.3f}), the bounds are not: --seeds {2 * seeds}."
    )


def _other_range(
    defense: str, found: Sequence[Trial], meets: Sequence[Trial], cheap: Sequence[Trial],
    rounds: int,
) -> str:  # fmt: skip
    """Where strengths were not tried that may do, as far as the trend says."""
    tried = [t for t in found if t.strength > 0]
    if not tried:
        return ""
    low, high = tried[0], tried[-1]
    if not meets:
        kind: Any = registry.defenses.get(defense)
        most: float = kind.largest
        others = min(t.leak_high for t in found if t is not high)
        if high.leak_high >= others or high.strength >= most or high not in cheap:
            return ""
        return (
            f"The bound still falls at the strongest, which costs at most {high.drop_high:.3f} of "
            f"utility: --high {min(10 * high.strength, most):g}."
        )
    first = min(meets, key=lambda t: t.strength)
    if first is low:
        low_ = low.strength / 10
        return f"Weaker ones may cost less: --low {low_:g}."
    weaker = [t for t in found if t.strength < first.strength]
    if weaker and weaker[-1] not in cheap:  # what is stronger still costs no less
        return ""
    below = max((t.strength for t in cheap if t.strength < first.strength), default=0.0)
    if first.strength <= 1.1 * max(below, low.strength):
        return ""
    return (
        f"None was tried between strengths {below:g} and {first.strength:g}: --rounds {rounds + 3}."
    )


def _within(cheap: Sequence[Trial], drop: float) -> str:
    """The least leakage that the accepted loss of utility buys."""
    if not cheap:
        return ""
    t = min(cheap, key=lambda t: t.leak_high)
    where = f"at strength {t.strength:g}: raise --leak" if t.strength else "undefended"
    return (
        f"For a loss of at most {drop:g} of utility the lowest bound is {t.leak_high:+.3f} "
        f"({t.named}) {where}."
    )


def _others(defense: str, at: Trial, reads: Mapping[str, Collection[str]]) -> list[str]:
    """What else treats the messages that the attack in the way reads."""
    kinds = set(reads.get(at.attack, ()))
    own = _made(defense)
    treats = set[str](own.treats) if own is not None else set()
    what = " and ".join(sorted(kinds))
    out = []
    if kinds and treats and not kinds & treats:
        out.append(
            f"{at.attack} reads {what} messages, {defense} treats {' and '.join(sorted(treats))}."
        )
    others = sorted({n for kind in kinds for n in list_treating().get(kind, ())} - {defense})
    if others:
        options = " ".join(f"--defense {n}" for n in others[:_MOST_NAMED])
        out.append(f"{at.attack} reads {what} messages, treated also by: {options}.")
    elif kinds:
        out.append(f"No other defense treats {what} messages.")
    return out


def list_treating() -> dict[str, list[str]]:
    """The registered defenses that have a strength, by the kinds of messages that they treat."""
    out: dict[str, list[str]] = {}
    for name in registry.defenses.names():
        policy = _made(name)
        for kind in sorted(policy.treats) if policy is not None and policy.strengths else ():
            out.setdefault(kind, []).append(name)
    return out


def _made(name: str) -> Policy | None:
    """A defense with its defaults; None for one that must be given more."""
    try:
        policy: Policy = registry.defenses.create(name, {})
    except VflsecError:
        return None
    return policy
