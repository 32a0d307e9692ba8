"""What changed between two audits: paired by cell where both trained the same seeds."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import scipy

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.point import Identity
from vflsec.audit.result import Audit
from vflsec.audit.result_row import ResultRow, find_declined, read_advantages
from vflsec.runtime.grouping import group_by

Seeds = Mapping[int, float]
"""A figure by seed."""


@dataclass(frozen=True)
class Step:
    """The change of one figure: mean, standard error, degrees of freedom."""

    mean: float
    error: float
    freedom: float
    seeds: int
    paired: bool

    def bound(self, side: str, alpha: float) -> float | None:
        """One-sided bound; None where there is no degree of freedom."""
        if self.freedom <= 0:
            return None
        half = float(scipy.special.stdtrit(self.freedom, 1 - alpha)) * self.error
        return self.mean + (half if side == "upper" else -half)

    def p_above_zero(self) -> float:
        """One-sided p-value of "there is no rise"."""
        if self.freedom <= 0:
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return float(scipy.special.stdtr(self.freedom, -self.mean / self.error))

    def more_seeds(self, alpha: float) -> int | None:
        """Seeds to add until it would surely be above 0, spread as seen; None if too many."""
        spread = self.error * math.sqrt(self.seeds)
        if spread == 0 or self.mean <= 0:
            return None if self.seeds > 1 else 1
        found = Leakage((Against("", None, self.mean, spread, self.seeds),), "")
        return found.seeds_until(0.0, alpha, alpha)


@dataclass(frozen=True)
class Change:
    """The change of a leakage.

    Attributes:
        before, after: mean advantage over the least control of each audit, on the seeds compared.
        now, then: the steps of every control now, and of every control there was before.
    """

    before: float
    after: float
    now: tuple[Step, ...]
    then: tuple[Step, ...]

    @property
    def mean(self) -> float:
        """After less before."""
        return self.after - self.before

    @property
    def seeds(self) -> int:
        """The fewest behind a step."""
        return min(s.seeds for s in self.now)

    @property
    def paired(self) -> bool:
        """Whether every step is paired by seed."""
        return all(s.paired for s in self.now)

    def lower(self, alpha: float) -> float | None:
        """Lower bound: the least over the controls now."""
        found = [s.bound("lower", alpha) for s in self.now]
        return None if None in found else min(x for x in found if x is not None)

    def upper(self, alpha: float) -> float | None:
        """Upper bound: the largest over the controls there were."""
        found = [s.bound("upper", alpha) for s in self.then]
        return None if None in found else max(x for x in found if x is not None)

    def p_above_zero(self) -> float:
        """One-sided p-value of "there is no rise": the largest over the controls now."""
        return max(s.p_above_zero() for s in self.now)

    def more_seeds(self, alpha: float) -> int | None:
        """Seeds to add until the rise would be shown; None if too many."""
        found = [s.more_seeds(alpha) for s in self.now]
        return None if None in found else max(x for x in found if x is not None)


def find_least(of: Mapping[str, Seeds]) -> str:
    """The control with the least mean advantage."""
    return min(of, key=lambda name: (float(np.mean(list(of[name].values()))), name))


def compute_change(now: Mapping[str, Seeds], before: Mapping[str, Seeds]) -> Change:
    """The change of a leakage, from the advantages by control and seed; neither may be empty."""
    first, last = find_least(now), find_least(before)
    steps = [_step(v, before.get(k, before[last])) for k, v in now.items()]
    back = [_step(now.get(k, now[first]), v) for k, v in before.items()]
    shared = set(now[first]) & set(before[last])
    if not all(s.paired for s in steps):
        shared = set()
    return Change(_least_of(before, shared), _least_of(now, shared), tuple(steps), tuple(back))


def _least_of(of: Mapping[str, Seeds], shared: set[int]) -> float:
    """Mean advantage over the least control, both on the shared seeds; on all where none is."""
    here = {k: {s: x for s, x in v.items() if not shared or s in shared} for k, v in of.items()}
    here = {k: v for k, v in here.items() if v}
    return float(np.mean(list(here[find_least(here)].values())))


def _step(now: Seeds, before: Seeds) -> Step:
    shared = sorted(set(now) & set(before))
    if len(shared) >= 2 or len(shared) == len(now) == len(before):
        d = np.array([now[s] - before[s] for s in shared])
        return Step(float(d.mean()), _sd(d) / math.sqrt(len(d)), len(d) - 1.0, len(d), True)
    new, old = np.array(list(now.values())), np.array(list(before.values()))
    mean, n = float(new.mean() - old.mean()), min(len(new), len(old))
    a, b = _sd(new) ** 2 / len(new), _sd(old) ** 2 / len(old)
    freedom = n - 1.0
    if n > 1 and a + b > 0:  # Welch 1947
        freedom = (a + b) ** 2 / (a**2 / (len(new) - 1) + b**2 / (len(old) - 1))
    return Step(mean, math.sqrt(a + b) if n > 1 else 0.0, freedom, n, False)


def _sd(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


_UNSAID = ("attack_key", "of_label")
"""What is no part of a comparison: keys differ by version, and labels are told by the attack's."""

Values = Mapping[Identity, Mapping[str, Seeds]]
"""By point, control and seed: advantages of attacks, values of the main task."""


@dataclass(frozen=True, slots=True)
class Compared(Identity):
    """A figure of two audits; of one that only one has the figures are None.

    Attributes:
        before, after: means over seeds.
        change, low, high: paired by seed where possible, with its t interval; no bounds for one.
        seeds: how many.
        paired: whether both audits have the same ones.
    """

    before: float | None = None
    after: float | None = None
    change: float = 0.0
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    paired: bool = True

    @property
    def quantity(self) -> str:
        """``advantage`` (over all controls) or ``utility``."""
        return "advantage" if self.attack else "utility"

    @property
    def harm(self) -> int:
        """1 for more leakage or less utility beyond the interval, -1 for the opposite, else 0."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return 0
        return 1 if (self.low > 0) == bool(self.attack) else -1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two audits.

    Attributes:
        before, after: their folders.
        confidence: of the intervals.
        rows: figures of both.
        gone, new: points of one only.
        facts: what else differs (scenario, data, versions, device) as (name, before, after).
    """

    before: str
    after: str
    confidence: float
    rows: tuple[Compared, ...] = ()
    gone: tuple[Compared, ...] = ()
    new: tuple[Compared, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()


def compare(old: Audit, new: Audit) -> Comparison:
    """The change of every advantage over all controls, and of the utility, between two audits.

    Two-sided t intervals have the confidence of `new`.
    """
    level = new.found.confidence
    a, b = (_values(x.rows) for x in (old, new))
    same = _same(a, b)
    return Comparison(
        str(old.folder), str(new.folder), level,
        rows=tuple(_change(k, a[k], b[other], level) for k, other in same.items()),
        gone=tuple(Compared(**k.as_dict()) for k in a if k not in same),
        new=tuple(Compared(**k.as_dict()) for k in b if k not in same.values()),
        facts=tuple(_facts(old, new)),
    )  # fmt: skip


def _same(a: Values, b: Values) -> dict[Identity, Identity]:
    """Points of one audit with their like in the other.

    Strength 0 of any defense is the undefended training, so it is compared with that of another.
    """
    out = {k: k for k in a if k in b}
    left = {_bare(k): k for k in b if k not in out and k.is_undefended}
    for k in a:
        if k not in out and k.is_undefended and _bare(k) in left:
            out[k] = left.pop(_bare(k))
    return out


def _bare(at: Identity) -> Identity:
    return at.without("defense", "strength")


def _values(rows: Sequence[ResultRow]) -> Values:
    declined = find_declined(rows)
    known = (
        r for r in rows
        if r.role != "control" and r.metric == r.primary and r.status == "ok"
        and r.value is not None
    )  # fmt: skip
    found = group_by(known, lambda r: r.without(*_UNSAID))
    out = {key: _by_control(of, declined) for key, of in found.items()}
    return {key: of for key, of in out.items() if of}


def _by_control(
    rows: Sequence[ResultRow], declined: Mapping[Identity, Collection[int]]
) -> Mapping[str, Seeds]:
    if rows[0].attack:
        return read_advantages(rows, declined)[0]
    seeds = sorted(group_by(rows, lambda r: r.seed).items())
    return {"": {s: float(np.mean([r.value for r in of])) for s, of in seeds}}


def _change(
    at: Identity, before: Mapping[str, Seeds], after: Mapping[str, Seeds], level: float
) -> Compared:
    found, tail = compute_change(after, before), (1 - level) / 2
    return Compared(
        **at.as_dict(), before=found.before, after=found.after,
        change=found.mean, low=found.lower(tail), high=found.upper(tail), seeds=found.seeds,
        paired=found.paired,
    )  # fmt: skip


def _facts(old: Audit, new: Audit) -> Iterator[tuple[str, str, str]]:
    was, now = old.found, new.found
    yield from _differ("scenario hash", was.scenario_hash, now.scenario_hash)
    yield from _differ("device", was.device, now.device)
    for name, a, b in ("data", was.data, now.data), ("versions", was.versions, now.versions):
        for key in dict.fromkeys(chain(a, b)):
            yield from _differ(f"{name} {key}", a.get(key, "-"), b.get(key, "-"))


def _differ(name: str, before: object, after: object) -> Iterator[tuple[str, str, str]]:
    if before != after:
        yield name, str(before), str(after)
