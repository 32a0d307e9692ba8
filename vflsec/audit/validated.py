"""Which attacks are shown to work, and where: silence proves nothing about a broken attack.

An attack is validated at a place (data set, algorithm, adversary, attack with settings and grants)
if the lower bound of its advantage over all controls, in the primary metric, is above 0 there
without a defense, or on a positive control (a planted leak) trained by the same algorithm, with the
same grants, for the same side (active or passive party) and a label of the same kind (classes, a
quantity or several labels). Nothing is pooled over places: of two
sections that differ in what they grant, or in their victim, each is shown to work by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from vflsec.audit.attack_names import list_granted
from vflsec.audit.controls import LEAST, Against, Leakage
from vflsec.audit.gate import WordedCode
from vflsec.audit.point import Grants, Place, Point
from vflsec.audit.rounding import show
from vflsec.label import make_label
from vflsec.runtime.grouping import group_by
from vflsec.specs import UNMADE

Granted = Mapping[str, Grants]
"""Grants that are not usual, by section."""


class Evidence(WordedCode):
    """What speaks for an attack or against it, and where that was measured."""

    UNDEFENDED = "undefended", "on the undefended run"
    POSITIVE_CONTROL = "positive_control", "in the positive control"
    NEVER_UNDEFENDED = "never_undefended"
    NONE = "none"


@dataclass(frozen=True)
class Validation:
    """Whether an attack is shown to work.

    Attributes:
        validated: whether it is; ``alive`` in ``summary.json``.
        text: the evidence, for people; ``evidence`` there.
        code: where the evidence comes from.
        place: where it is judged.
        more_seeds: of one that is not, how many more seeds would show it on the undefended run, if
            they spread as these do; None where it gains nothing there, or too many would be.
    """

    validated: bool = field(default=False, metadata={"key": "alive"})
    text: str = field(default="", metadata={"key": "evidence"})
    code: Evidence = Evidence.UNDEFENDED
    place: Place = field(default_factory=Place)
    more_seeds: int | None = None


Validated = Mapping[Place, Validation]
"""What is shown of the attack at every place."""

NO_EVIDENCE = Validation(False, "no evidence", Evidence.NONE)
_NEVER = Validation(False, "not measured undefended on two seeds", Evidence.NEVER_UNDEFENDED)


def find_validated(
    own: Sequence[Point],
    control: Sequence[Point] | None = None,
    confidence: float = 0.95,
    active: Mapping[str, str] | None = None,
    grants: Granted | None = None,
    classes: Mapping[str, int] | None = None,
    planted_as: Mapping[str, str] | None = None,
) -> dict[Place, Validation]:
    """What is shown to work at every place of the audit.

    The bound is corrected for looking at a positive control as well, and for all figures of one
    attacker and target (Holm 1979), as what is called significant is: of these attacks any is shown
    to work by luck in at most 1 - `confidence` of the systems without a leak, and what leaks
    significantly without a defense is shown to work.

    Args:
        own: summary of the audit.
        control: summary of the positive-control run, if there was one.
        confidence: of the lower bound.
        active: {data set: name of its active party}; where it is not told, every adversary counts
            as a passive party.
        grants: of the sections of the audit and of the control; the usual ones if not told.
        classes: {data set: how many, 1 for a quantity and 0 for several labels}; where it is not
            told, labels count as classes.
        planted_as: {section: the attack's name on the positive control}, where its settings name a
            column that is not there.

    Returns:
        a validation for each place; none where the attack could not be made, for there nothing is
        silent.
    """
    given, kinds = grants or {}, classes or {}

    def role(place: Place) -> tuple[Any, ...]:
        kind = make_label(kinds.get(place.dataset, 2)).name
        there = (planted_as or {}).get(place.section, place.attack)
        return kind, *_role(replace(place, attack=there), active or {}, given)

    shown = _measured(own, Evidence.UNDEFENDED, lambda p: p.place)
    planted = _measured(control or (), Evidence.POSITIVE_CONTROL, lambda p: role(p.place))
    seen: dict[Place, list[_Looks]] = {}
    made = [p for p in own if p.attack and p.status not in UNMADE]
    for place in dict.fromkeys(p.place for p in made):
        mine = role(place)
        of = (shown.get(place), planted.get(mine) or planted.get((*mine[:-1], None)))
        seen[place] = [looks for looks in of if looks is not None]
    level = _find_level(confidence, control is not None)
    out = {place: replace(_NEVER, place=place) for place in seen}
    asked = {p.place: (p.dataset, p.algorithm, p.adversary, p.target, p.victim) for p in made}
    for places in group_by(seen, asked.__getitem__).values():
        out |= _judge_places({place: seen[place] for place in places if seen[place]}, level)
    return out


def find_least_gain(places: int, seeds: int, confidence: float = 0.95) -> float:
    """The least gain that is shown at one of so many places with a chance of 0.8 while none of the
    others is, beside a positive control; in units of its standard deviation over seeds.

    Args:
        places: attacks by one adversary on one target.
        seeds: trainings, or recorded runs; two or more.
        confidence: as for :func:`find_validated`.
    """
    unit = Leakage((Against("", None, 0.0, 1.0, seeds),), "")
    found = unit.detectable(_find_level(confidence, True) / places)
    assert found is not None
    return found


def _find_level(confidence: float, beside: bool) -> float:
    """The error of each look at a place: half of it where a positive control is `beside`."""
    return (1 - confidence) / (2 if beside else 1)


def _judge_places(seen: Mapping[Place, list[_Looks]], level: float) -> dict[Place, Validation]:
    """What is shown at places, at a level over all figures of them from each source (Holm)."""
    out: dict[Place, Validation] = {}
    left, many, tails = list(seen), len(seen) + 1, dict[Evidence, float]()
    while left and len(left) < many:  # what is shown to work is no more in the way of others
        many = len(left)
        looks = group_by((x for place in left for x in seen[place]), lambda x: x.source)
        tails = {source: level / sum(len(x.found) for x in of) for source, of in looks.items()}
        for place in left:
            best = max((x.judge(tails[x.source]) for x in seen[place]), key=lambda pair: pair[0])
            out[place] = replace(best[1], place=place)
        left = [place for place in left if not out[place].validated]
    for place in left:
        ways = [x.count_seeds(tails[x.source]) for x in seen[place]
                if x.source is Evidence.UNDEFENDED]  # fmt: skip
        out[place] = replace(out[place], more_seeds=next(iter(ways), None))
    return out


def name_places(found: Validated, grants: Granted | None = None) -> dict[str, Place]:
    """Places by a name for each: the attack, and what tells places of one attack apart."""
    by_attack = group_by(found, lambda place: place.attack)
    named: dict[str, Place] = {}
    for place in found:
        title = _title(place, by_attack[place.attack], grants or {})
        named[title if title not in named else f"{title} [{place.section[:8]}]"] = place
    return named


def _title(place: Place, places: Sequence[Place], grants: Granted) -> str:
    def many(name: str) -> bool:
        return len({getattr(p, name) for p in places}) > 1

    words = [f"by {place.adversary}"] if many("adversary") else []
    words += [f"on {place.dataset}"] if many("dataset") else []
    words += [f"trained by {place.algorithm}"] if many("algorithm") else []
    if many("budget") and place.budget is not None:
        words.append(f"with {place.budget:g} known rows")
    of = [grants.get(p.section, Grants()) for p in places]
    mine = grants.get(place.section, Grants())
    return " ".join([place.attack, *words, *list_granted(mine, of)])


def _role(place: Place, active: Mapping[str, str], grants: Granted) -> tuple[Any, ...]:
    """What a place has in common with one on a planted leak, where the parties have other names."""
    name = active.get(place.dataset)
    side = "active" if name is not None and name in place.adversary.split("+") else "passive"
    given = replace(grants.get(place.section, Grants()), victim="")
    return place.algorithm, side, place.attack, given, place.budget


K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class _Looks:
    """All figures of a place, or of a positive control, and where they come from."""

    source: Evidence
    found: list[Leakage] = field(default_factory=list)

    def judge(self, tail: float) -> tuple[float, Validation]:
        """The largest lower bound, each at this tail, of an advantage, and its words."""
        bounds = [(x.lower(tail), x.least.mean) for x in self.found]
        low, mean = max((-math.inf if b is None else b, m) for b, m in bounds)
        bound = show(low, 0.0, "+.3f")
        text = f"advantage {mean:+.3f} {self.source.words}, lower bound {bound}"
        return low, Validation(low > 0, text, self.source)

    def count_seeds(self, tail: float) -> int | None:
        """Seeds to add until :meth:`judge` would show it; None if too many would be."""
        gains = (x for x in self.found if x.least.mean >= LEAST)
        ways = [n for x in gains if (n := x.seeds_until(0.0, tail, tail)) is not None]
        return min(ways, default=None)


def _measured(
    summary: Sequence[Point], source: Evidence, key: Callable[[Point], K]
) -> dict[K, _Looks]:
    """By place what was measured of it without a defense."""
    found: dict[K, _Looks] = defaultdict(lambda: _Looks(source))
    for p in summary:
        if p.is_main and p.is_undefended and p.leakage is not None and p.leakage.least.n >= 2:
            found[key(p)].found.append(p.leakage)
    return dict(found)
