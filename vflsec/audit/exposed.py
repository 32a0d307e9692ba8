"""Exposed rows: rows whose label an attack names with certainty, beside what a control names.

Sort the rows by how surely a class is said of them. Those of the class that stand above the first
row of another one are named at no false alarm; at a rate r of false alarms above the row after the
floor(r m)-th of m others. Rows with one score are named by their mean over all orders. Beside it
stands how many are right of the tenth of rows of which the class is said most surely. A class of
more than four rows in five is left out: whoever says it of everybody is nearly always right, and
so few others tell no certainty.

Where nothing is known, rows are named by luck: of p rows of a class beside m others, p (k + 1) /
(m + 1) stand above the k + 1-th other on average, a geometric number for k = 0. Over S seeds the
number of lucky rows is taken as negative binomial with S runs of that mean, which spreads no less
than the sum over the classes does. Bounds of the share that is named by more than luck: take the
lucky rows off at their quantile of alpha / 2, and bound the share of the rest exactly at alpha / 2
(Clopper and Pearson 1934). The difference of two shares is bounded by MOVER (Zou and Donner 2008).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from vflsec.audit import intervals

EXPOSED = {"exposed": 0.0, "exposed_01pct": 0.001}
"""Metrics of exposed rows, with the rate of false alarms that each allows."""
LUCKY = (1.3, 2.6)
"""Rows of a training that a limit must allow, a and b: of a + b times the mean of lucky rows a PASS
over five trainings is in reach nearly always where nothing leaks."""
_MOST = 4
"""Rows of a class for each of another, above which the class is not named."""
_SURE = 1e-9
_CHANCE = "chance"
_TENTH = 10

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassCount:
    """How many rows of one class are named in one training.

    Attributes:
        label: number of the class.
        named: rows of it that are named, the mean over tied orders.
        rows: of it that were scored.
        luck: rows that equal scores name on average.
        own: by control, the share of them that it names.
        sure: share that is right, of as many rows as a tenth of it, those of which the class is
            said most surely.
        own_sure: the same by control; of ``chance`` the share of the class.
        people: who were scored, with those of the other classes.
    """

    label: int
    named: float
    rows: int
    luck: float
    own: Mapping[str, float] = field(default_factory=dict)
    sure: float = 0.0
    own_sure: Mapping[str, float] = field(default_factory=dict)
    people: int = 0

    @property
    def share(self) -> float:
        """Share of its rows that are named."""
        return self.named / self.rows

    def write(self, own: Mapping[str, float], own_sure: Mapping[str, float]) -> dict[str, Any]:
        """Plain values, with what controls name of it and how often their surest are right."""
        return asdict(replace(self, own=own, own_sure={**self.own_sure, **own_sure}))


def count_by_class(
    scores: Floats, y: NDArray[np.int64], rate: float = 0.0, *, turned: bool = False
) -> list[ClassCount]:
    """How many rows of each class are named; classes that cannot be named are left out.

    Args:
        scores: (n,) larger = class 1, or (n, C).
        y: classes (n,).
        rate: false alarms that are allowed, as a share of the rows of other classes.
        turned: count for the answer turned round, of two classes.
    """
    sign = -1.0 if turned else 1.0
    out = []
    for c, p in enumerate(np.bincount(y).tolist()):
        if not is_nameable(p, len(y)):
            continue
        others = len(y) - p
        s = scores[:, c] if scores.ndim == 2 else scores * (sign if c else -sign)
        ends = int(rate * others + _SURE) + 1
        luck = p * ends / (others + 1)
        of = y == c
        chance = {_CHANCE: p / len(y)}
        sure = _find_right(s, of, math.ceil(p / _TENTH))
        named = _count_above(s, of, ends)
        out.append(ClassCount(c, named, p, luck, sure=sure, own_sure=chance, people=len(y)))
    return out


def is_nameable(rows: int, of: int) -> bool:
    """Whether a class with so many of the rows can be named."""
    return 0 < rows <= _MOST * (of - rows)


def count_nameable(y: NDArray[np.int64]) -> tuple[int, float]:
    """Rows of classes that can be named, of classes (n,), and how many luck names of them."""
    sizes = [p for p in np.bincount(y).tolist() if is_nameable(p, len(y))]
    return sum(sizes), sum(p / (len(y) - p + 1) for p in sizes)


def _count_above(s: Floats, of: NDArray[np.bool_], ends: int) -> float:
    """Rows of a class above the `ends`-th other row, the mean over tied orders."""
    others = s[~of]
    bar = others.max() if ends == 1 else np.partition(others, -ends)[-ends]
    mine = s[of]
    mine = mine[mine >= bar]
    others = others[others >= bar]
    left, level = ends - int((others > bar).sum()), int((others == bar).sum()) + 1
    return int((mine > bar).sum()) + int((mine == bar).sum()) * left / level


def _find_right(s: Floats, of: NDArray[np.bool_], many: int) -> float:
    """Share of the `many` rows of the largest scores that are of a class, mean over tied orders."""
    bar = np.partition(s, -many)[-many]
    above, tied = s > bar, s == bar
    left = many - int(above.sum())
    return float((of[above].sum() + left * of[tied].mean()) / many)


@lru_cache(4096)
def _find_luck(q: float, seeds: int, mean: float) -> int:
    """Quantile `q` of the rows that are named by luck over so many seeds."""
    if mean <= 0:
        return 0
    found = float(scipy.special.nbdtrik(q, seeds, seeds / (seeds + mean)))
    return max(0, math.ceil(found - _SURE)) if math.isfinite(found) else 0


@lru_cache(1 << 16)  # every gate, claim and p-value asks for the same few
def _bound_share(
    named: float, rows: int, luck: float, seeds: int, alpha: float
) -> tuple[float, float]:
    """Bounds of the share of rows that is named by more than luck, each at level `alpha`."""
    share = (named - luck) / rows
    if abs(named - luck) < _SURE * max(1.0, luck):  # equal scores: no luck in it
        return share, share
    sure = 1 - alpha / 2
    least = max(0, math.floor(named + _SURE) - _find_luck(sure, seeds, luck))
    most = max(0, math.ceil(named - _SURE) - _find_luck(alpha / 2, seeds, luck))
    low = intervals.clopper_pearson(least, rows, sure, "lower").low
    high = intervals.clopper_pearson(min(most, rows), rows, sure, "upper").high
    return min(low, share), max(high, share)


@dataclass(frozen=True)
class Counts:
    """Rows that an attack and a control name, over all seeds that have both.

    Attributes:
        named, own: by the attack, and by the control.
        rows: that could be named.
        luck: that equal scores name on average.
        seeds: trainings.
    """

    named: float
    own: float
    rows: int
    luck: float
    seeds: int

    @property
    def share(self) -> float:
        """Share of rows that the attack names and the control does not."""
        return (self.named - self.own) / self.rows

    def over(self, seeds: int) -> Counts:
        """The same shares over so many seeds."""
        by = seeds / self.seeds
        return Counts(by * self.named, by * self.own, round(by * self.rows), by * self.luck, seeds)

    def detectable(self, alpha: float, power: float) -> float:
        """The least share of which the lower bound would be above 0 with chance `power`; 1 where
        that of no share is.
        """
        fewest = math.ceil(self.own)
        named = range(fewest, self.rows + 1)
        least = bisect_left(
            named, True, key=lambda k: replace(self, named=k).bound("lower", alpha) > 0
        )
        if fewest + least > self.rows:
            return 1.0
        return replace(self, named=float(fewest + least)).bound("upper", 1 - power)

    def bound(self, side: str, alpha: float) -> float:
        """One-sided bound of :attr:`share` at level `alpha`."""
        mine, its = (
            _bound_share(n, self.rows, self.luck, self.seeds, alpha) for n in (self.named, self.own)
        )
        a, c = ((x - self.luck) / self.rows for x in (self.named, self.own))
        if side == "upper":
            return self.share + math.hypot(mine[1] - a, c - its[0])
        return self.share - math.hypot(a - mine[0], its[1] - c)

    def p(self, limit: float, sign: int = 1) -> float:
        """One-sided p-value of "the share is at most `limit`", or at least where `sign` is -1."""
        if sign * (self.share - limit) <= 0:
            return 1.0
        low, high = 1e-9, 0.5
        for _ in range(30):
            at = math.sqrt(low * high)
            bound = self.bound("lower" if sign > 0 else "upper", at)
            low, high = (low, at) if sign * (bound - limit) > 0 else (at, high)
        return high


@dataclass(frozen=True)
class WorstClass:
    """The class of which the largest share is exposed.

    Attributes:
        label: its number.
        share, own: shares of its rows that the attack and the control name.
        rows: over all seeds.
    """

    label: int
    share: float
    own: float
    rows: int


@dataclass(frozen=True)
class Exposed:
    """What an attack names at one point, over all seeds, beside the control that leaves least.

    Attributes:
        named, own: shares of rows that the attack and the control name, by luck too.
        share: the first less the second.
        low, high: exact two-sided interval of it, over rows.
        rows: that could be named, over all seeds.
        control: the control.
        false_alarms: rate that is allowed.
        worst: the class that is exposed the most; None where there is a single one.
        sure, own_sure: of the tenth of rows of which attack and control say a class most surely,
            the shares that are right.
        people: that were scored in a training, one row of each, the mean over seeds.
        is_part: whether those of a class that cannot be named are left out of `rows`.
    """

    named: float
    own: float
    share: float
    low: float
    high: float
    rows: int
    control: str
    false_alarms: float
    worst: WorstClass | None = None
    sure: float = 0.0
    own_sure: float = 0.0
    people: int = 0
    is_part: bool = False

    @classmethod
    def of(
        cls, metric: str, control: str, counts: Counts, classes: Iterable[Sequence[ClassCount]],
        confidence: float,
    ) -> Exposed:  # fmt: skip
        """From counts, and those of each class by seed, with a two-sided interval."""
        seeds = [tuple(of) for of in classes]
        tail, every = (1 - confidence) / 2, [c for of in seeds for c in of]
        rows, people = sum(c.rows for c in every) or 1, sum(of[0].people for of in seeds if of)
        return cls(
            counts.named / counts.rows, counts.own / counts.rows, counts.share,
            max(-1.0, counts.bound("lower", tail)), min(1.0, counts.bound("upper", tail)),
            counts.rows, control, EXPOSED[metric], _find_worst(every, control),
            sum(c.rows * c.sure for c in every) / rows,
            sum(c.rows * c.own_sure.get(control, 0.0) for c in every) / rows,
            round(people / max(1, len(seeds))), rows < people,
        )  # fmt: skip


def _find_worst(classes: Iterable[ClassCount], control: str) -> WorstClass | None:
    """The class of which an attack names the most above a control, seeds together."""
    named: dict[int, float] = defaultdict(float)
    own: dict[int, float] = defaultdict(float)
    rows: dict[int, int] = defaultdict(int)
    for c in classes:
        named[c.label] += c.named
        own[c.label] += c.rows * c.own[control] if control in c.own else c.luck
        rows[c.label] += c.rows
    if len(rows) < 2:
        return None
    k = max(rows, key=lambda c: ((named[c] - own[c]) / rows[c], -c))
    return WorstClass(k, named[k] / rows[k], own[k] / rows[k], rows[k])
