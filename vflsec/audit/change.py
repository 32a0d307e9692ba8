"""By how much a leakage changed between two audits, over all controls.

With L = min over controls of E[d_c], L rose where for every control c now E[d_c] is above that of
its counterpart before (the same control, or where it was not there the one with the least
advantage), for then L now = E[d_c*] > E[d_c* before] >= L before. Intersection-union as in
:mod:`vflsec.audit.controls`; the upper bound mirrors it. Paired by seed where both have the seed,
else Welch 1947.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from vflsec.audit.controls import Against, Leakage

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
        half = float(special.stdtrit(self.freedom, 1 - alpha)) * self.error
        return self.mean + (half if side == "upper" else -half)

    def p_above_zero(self) -> float:
        """One-sided p-value of "there is no rise"."""
        if self.freedom <= 0:
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return float(special.stdtr(self.freedom, -self.mean / self.error))

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
