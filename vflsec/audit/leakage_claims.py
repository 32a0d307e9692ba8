"""Claims: what an attacker learns of whom at one training, each with the one interval that is said.

Every sentence, table, figure and finding about a leak rests on these, so that no two can disagree.
What is claimed of one attacker and target under one training rests on m tests: attacks, rows,
stages. Each test has t bounds at 1 - (1 - confidence) / m over all controls, no farther out than
the figure can be, and a claim stands for the strongest of them. A gate that failed made a test of
its own: what it shows to be above its limit leaks, with the gate's lower bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter

from vflsec.audit import controls, intervals
from vflsec.audit.gate import FAIL, Origin, Verdict
from vflsec.audit.gate_candidate import as_against, as_leakage, find_room
from vflsec.audit.metrics import find_reach
from vflsec.audit.point import SPLITS, Estimate, Identity, Point
from vflsec.runtime.grouping import group_by

USUAL = 0.1
"""The advantage that gates usually allow."""

_SECRETS = {
    "label": "labels", "feature": "columns", "attribute": "values of one column",
    "embedding": "embeddings", "integrity": "predictions (forced)", "membership": "training rows",
    "property": "distribution of one column", "presence": "lists of ids",
}  # fmt: skip
_ATTACK = ("dataset", "algorithm", "adversary", "attack", "attack_key", "target")
_DEPLOYED = (*_ATTACK, "defense", "strength")
APART = ("phase", "attack", "attack_key", "of_label", "known_rows", "split", "metric")
"""Fields in which the tests of one attacker for one target under one training differ."""


class Quantity(StrEnum):
    """What a claim is about."""

    LEAKAGE = "leakage"
    REVERSED = "reversed"
    EXPOSED = "exposed"


class Significance(StrEnum):
    """What a claim shows: a leak, none, or nothing because one seed has no interval."""

    SIGNIFICANT = "significant"
    NOT_SIGNIFICANT = "not_significant"
    NO_INTERVAL = "no_interval"


@dataclass(frozen=True, slots=True)
class LeakageClaim(Identity):
    """What the strongest attack of one attacker gains over its baseline; its identity says where.

    Attributes:
        quantity: ``leakage`` in the metric, ``reversed`` with labels flipped, or ``exposed``, the
            share of rows that are named with certainty.
        control: the baseline.
        advantage: over it, mean over seeds; None where there is none.
        low, high: its interval; None for one seed.
        p: corrected one-sided p-value of "it gains nothing"; None for one seed.
        tried: how many tests were made.
        most: the largest of their one-sided upper bounds, by which gates pass; that all are within
            it needs no correction (intersection-union, Berger 1982). None where one has none.
        attacks: of how many attacks.
        at: which rows and stage in words, where the attack has several.
        asked: what the attack chose to ask, in words; '' where it chooses nothing.
        is_part: of exposed rows, whether those of the largest class were left out.
        is_open: whether it shows nothing either way: a test has no interval, or one that holds all
            that its baseline leaves to learn.
        more_seeds: of one that is open, how many more seeds would show something, if they spread as
            these do; None for one seed, or where too many would be.
    """

    quantity: Quantity = Quantity.LEAKAGE
    control: str = ""
    advantage: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    tried: int = 0
    most: float | None = None
    attacks: int = 0
    at: str = ""
    asked: str = ""
    is_part: bool = False
    is_open: bool = False
    more_seeds: int | None = None

    @property
    def significance(self) -> Significance:
        """The code by which every place calls it a leak or not."""
        if self.low is None or self.advantage is None:
            return Significance.NO_INTERVAL
        seen = self.quantity is Quantity.EXPOSED or self.advantage >= controls.LEAST
        shown = self.low > 0 and seen
        return Significance.SIGNIFICANT if shown else Significance.NOT_SIGNIFICANT

    @property
    def is_leak(self) -> bool:
        """Whether it leaks significantly."""
        return self.significance is Significance.SIGNIFICANT

    @property
    def named(self) -> str:
        """The attack, and where it was that strong."""
        return " ".join(filter(None, (self.attack, self.at)))

    @property
    def about(self) -> Identity:
        """Who learns what there, whichever attack it is."""
        return self.without(*APART)


def correct(
    points: Sequence[Point], verdicts: Iterable[Verdict] = (), confidence: float = 0.95
) -> list[Point]:
    """The points with the one interval of each advantage, and of each with labels flipped.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        verdicts: of their gates.
        confidence: of the two-sided intervals, over all tests of a claim.
    """
    failed = _find_failed(verdicts)
    tests = Counter(test for p in points for test in _tests(p, failed))
    return [_correct(p, tests, failed, 1 - confidence) for p in points]


Failed = Mapping[Identity, Verdict]
"""The verdict by which a gate on a leak failed, by the figure that decided."""


def _find_failed(verdicts: Iterable[Verdict]) -> Failed:
    """Of several gates that failed on one figure, the one that is the most certain."""
    failed = [v for v in verdicts
              if v.verdict == FAIL and v.gate.limits_leaks and v.origin is Origin.GATE]  # fmt: skip
    return {v.identity: v for v in sorted(failed, key=lambda v: v.gate.confidence)}


def _find_limit(p: Point, failed: Failed) -> float | None:
    """The lower bound by which a gate failed on this figure; None where none did.

    The bound of a verdict is that of the largest of its attacks: no more is said of one than its
    own bound at the level of the gate.
    """
    verdict = failed.get(p.identity)
    if verdict is None or verdict.low is None or p.leakage is None:
        return None
    own = p.leakage.lower(1 - verdict.gate.confidence)
    return None if own is None else min(verdict.low, own)


def _tests(p: Point, failed: Failed) -> Iterator[tuple[Quantity, Identity]]:
    """The tests in which a point takes part; one in another metric only if a gate failed on it."""
    about = p.without(*APART)
    if p.exposed is not None and p.leakage is not None:
        yield Quantity.EXPOSED, about
    elif p.is_main or _find_limit(p, failed) is not None:
        yield Quantity.LEAKAGE, about
    if p.attack and p.status == "ok" and p.is_ranking and p.mirrored.mean is not None:
        yield Quantity.REVERSED, about


def _correct(
    p: Point, tests: Mapping[tuple[Quantity, Identity], int], failed: Failed, error: float
) -> Point:
    limit = _find_limit(p, failed)
    for test in _tests(p, failed):
        tail, ends = error / (2 * tests[test]), find_reach("advantage", p.metric)
        flipped = as_against(p.mirrored) if test[0] is Quantity.REVERSED else None
        if flipped is not None:
            low, high = flipped.bound("lower", tail), flipped.bound("upper", tail)
        elif p.leakage is not None:
            low, high = p.leakage.lower(tail), p.leakage.upper(tail)
            low = limit if limit is not None and (low is None or low <= 0) else low
        else:
            continue
        low, high = intervals.clip_bound(low, ends), intervals.clip_bound(high, ends)
        name = "mirrored" if flipped is not None else "advantage"
        p = replace(p, **{name: replace(getattr(p, name), low=low, high=high)})
    return p


def find_claims(
    points: Iterable[Point], verdicts: Iterable[Verdict] = (), confidence: float = 0.95
) -> list[LeakageClaim]:
    """For each training, attacker and target the strongest of its tests, for each quantity.

    What leaks significantly is stronger than what does not, whatever its mean: one attack that
    varies a lot hides no other.

    Args:
        points, verdicts, confidence: of :func:`correct`.
    """
    failed = _find_failed(verdicts)
    pairs = ((test, p) for p in points for test in _tests(p, failed))
    groups = group_by(pairs, lambda pair: pair[0])
    return [
        _claim(quantity, [p for _, p in of], 1 - confidence)
        for (quantity, _), of in groups.items()
    ]  # fmt: skip


def _claim(quantity: Quantity, of: Sequence[Point], error: float) -> LeakageClaim:
    made = [(_one_claim(quantity, p, of), p) for p in of]
    best, point = max(made, key=lambda pair: _order(*pair))
    leak, m = point.leakage, len(of)
    known = leak is not None and best.low is not None and quantity is not Quantity.REVERSED
    p = min(1.0, m * leak.p_above(0.0)) if leak is not None and known else None
    highs = [_bound_above(quantity, p, error) for p in of]
    most = None if None in highs else max(x for x in highs if x is not None)
    attacks = len({one.keep(*_DEPLOYED) for one in of})
    best = replace(best, p=p, most=most, attacks=attacks, at=_at(point, of))
    wide = [p for claim, p in made if claim.high is None or claim.high >= _find_most(quantity, p)]
    if best.is_leak or not wide:
        return best
    return replace(best, is_open=True, more_seeds=_count_seeds(quantity, of, error / (2 * m)))


def _bound_above(quantity: Quantity, p: Point, alpha: float) -> float | None:
    """One-sided upper bound of what is claimed of a point; None for one seed."""
    found = as_leakage(p.mirrored) if quantity is Quantity.REVERSED else p.leakage
    high = None if found is None else found.upper(alpha)
    return intervals.clip_bound(high, find_reach("advantage", p.metric))


def _find_most(quantity: Quantity, p: Point) -> float:
    """The largest leak there can be beside the baseline; infinite where none of note is left."""
    most = find_reach("advantage", p.metric)[1]
    if quantity is Quantity.REVERSED or p.leakage is None:
        return most
    room = min(most, find_room(p, p.leakage))
    return math.inf if room < USUAL else room


def _count_seeds(quantity: Quantity, of: Sequence[Point], tail: float) -> int | None:
    """Seeds to add until one test shows a leak, or all exclude the largest; None if too many."""
    leaks = [p.leakage for p in of if p.leakage is not None]
    if quantity is Quantity.REVERSED or len(leaks) < len(of) or any(x.least.n < 2 for x in leaks):
        return None
    tests = [(x, _find_most(quantity, p)) for x, p in zip(leaks, of, strict=True)]
    shown = [x.seeds_until(0.0, tail, tail) for x in leaks if x.least.mean >= controls.LEAST]
    excluded = [x.seeds_until(most, tail, tail) for x, most in tests if most < math.inf]
    ways = [n for n in shown if n is not None]
    if excluded and None not in excluded:
        ways.append(max(n for n in excluded if n is not None))
    return min(ways, default=None)


def _one_claim(quantity: Quantity, p: Point, of: Sequence[Point]) -> LeakageClaim:
    figure: Estimate = p.mirrored if quantity is Quantity.REVERSED else p.advantage
    single = p.exposed if quantity is Quantity.EXPOSED else None
    mean = figure.mean if single is None else single.share
    return LeakageClaim(
        **p.identity.as_dict(), quantity=quantity, advantage=mean, low=figure.low,
        high=figure.high, tried=len(of), control=p.control if single is None else single.control,
        asked=p.asked, is_part=single is not None and single.is_part,
    )  # fmt: skip


def _order(claim: LeakageClaim, p: Point) -> tuple[float, ...]:
    """Leaks outweigh others, then the own metric: a gain in another unit is no larger."""
    is_leak, gain = rank(claim)
    return is_leak, p.is_main, gain, -p.exposed.false_alarms if p.exposed else 0.0


def find_leaks(claims: Iterable[LeakageClaim]) -> list[LeakageClaim]:
    """Who leaks to whom: of each data set, attacker and target the strongest undefended claim.

    Where nothing of a data set is undefended, all trainings count.
    """
    of = [c for c in claims if c.quantity is Quantity.LEAKAGE]
    bare = {c.dataset for c in of if c.is_undefended}
    kept = [c for c in of if c.dataset not in bare or c.is_undefended]
    return _strongest(kept, "dataset", "adversary", "victim", "target")


def find_strongest(claims: Iterable[LeakageClaim]) -> list[LeakageClaim]:
    """The strongest attacker of each target under each training."""
    of = [c for c in claims if c.quantity is Quantity.LEAKAGE]
    return _strongest(of, "dataset", "algorithm", "defense", "strength", "victim", "target")


def _strongest(claims: Sequence[LeakageClaim], *by: str) -> list[LeakageClaim]:
    return [max(of, key=rank) for of in group_by(claims, attrgetter(*by)).values()]


def rank(claim: LeakageClaim) -> tuple[bool, float]:
    """What is stronger sorts behind."""
    return claim.is_leak, -math.inf if claim.advantage is None else claim.advantage


def find_gain(point: Point) -> float:
    """The mean advantage; minus infinity where there is none."""
    return -math.inf if point.advantage.mean is None else point.advantage.mean


def select_shown(points: Iterable[Point]) -> list[Point]:
    """One answer for each (data, algorithm, defense, strength, adversary, attack), for figures.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.

    Returns:
        in the metric that verdicts rest on those after the last phase, on the rows (test or
        training) on which the attack gains most without a defense, the same ones at every strength.
    """
    groups = group_by((p for p in points if p.is_main), lambda p: p.keep(*_DEPLOYED))
    last = [[p for p in of if p.phase == of[-1].phase] for of in groups.values()]
    gained: dict[Identity, dict[str, float]] = {}
    for who, of in group_by((p for each in last for p in each), lambda p: p.keep(*_ATTACK)).items():
        by_split = group_by([p for p in of if p.is_undefended] or of, lambda p: p.split)
        gained[who] = {split: max(map(find_gain, there)) for split, there in by_split.items()}
    return [
        max(sort_usual(of), key=lambda p: gained[p.keep(*_ATTACK)].get(p.split, -math.inf))
        for of in last
    ]


def sort_usual(points: Iterable[Point]) -> list[Point]:
    """Points by the rows that they are of, the usual ones first."""
    return sorted(points, key=lambda p: (*SPLITS, p.split).index(p.split))


def format_secret(at: Identity) -> str:
    """What leaks and whose it is: "labels of active"."""
    what = _SECRETS.get(at.target or "label", at.target)
    return f"{what} of {at.victim.replace('+', ' and ')}" if at.victim else what


def _at(point: Point, points: Iterable[Point]) -> str:
    """On which rows, and after which stage, where the same attack has several; else ''."""
    same = [p for p in points if p.keep(*_DEPLOYED) == point.keep(*_DEPLOYED)]
    words = [f"on {point.split} rows"] if len({p.split for p in same}) > 1 else []
    words += [f"after {point.phase}"] if len({p.phase for p in same}) > 1 else []
    return " ".join(words)
