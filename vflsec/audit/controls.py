"""The attacker without the federation, and leakage as a statement about all controls at once.

The leakage of an attack is L = min over controls c of E[d_c], with d_c the attack's figure less
that of the control on the same rows, paired by seed. None is chosen by looking at the truth:

- *L exceeds m* where for every control the one-sided t test of E[d_c] > m rejects at alpha
  (intersection-union, Berger 1982; no correction is due for the number of controls). The lower
  bound of L is the least of the controls' lower bounds.
- *L is at most m* where the upper bound of the control named beforehand is within m. It is named by
  cross-validation on the adversary's own known rows, once for all seeds, strengths and defenses.
  (Testing all controls at a divided level is valid too; it passes fewer tight systems.)

The level of chance is always among the controls, unless one stands alone
(`vflsec.measure.controls.Control`), which is then the one that is named. More controls never
accuse. A control that fails on one seed spreads so far that no attack would be shown to exceed it,
not even one without error. So a lower bound is the larger of two: of the figures as they are, and
of those with the level of chance where the control is worse than that (:func:`floor_at_chance`).
E[a - max(c, chance)] is at most E[a - c]. The latter figures are cut off on one side, so that their
t test has a degree of freedom less for each seed that was changed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from vflsec.audit import intervals
from vflsec.audit.exposed import Counts
from vflsec.audit.metrics import find_sign

FALLBACK = "majority"
"""The control that needs no known row; named where no control could be cross-validated."""

UNTRAINED = "untrained"
"""The control that is the attack itself, without messages and on the model before training."""

CHANCE = "chance"
"""The level of chance of the metric, which is a control of every attack."""

LEAST = 0.005
"""A mean advantage below this prints as 0.00 and is not called a leak, however sure its sign."""

Controls = Mapping[str, Mapping[str, float | None]]
MOST_FORESEEN = 20
"""A forecast names at most so many times the seeds that there are; more is no advice."""
_FAR_OFF = 1e6
_APART = 0.01


class Spread(NamedTuple):
    """Mean and standard deviation of advantages, and the degrees of freedom of their t test."""

    mean: float
    sd: float
    df: int


@dataclass(frozen=True)
class Against:
    """An attack beside one control, over the seeds that have both.

    Attributes:
        name: of the control.
        control: its mean figure; None where only the advantage is known.
        mean, sd, n: of the advantage over it, paired by seed; sd is None for one seed.
        floored: mean and sd with the level of chance where the control is worse than that, and on
            how many seeds it is; None where it never is.
        ratio: of shares of the remaining error, covariance of the share with what the control
            leaves and variance of that, in units of its mean; else None.
        counts: of exposed rows, how many rows each names; else None.
        apart: whether one seed :func:`has_outlier`.
    """

    name: str
    control: float | None
    mean: float
    sd: float | None
    n: int
    counts: Counts | None = None
    apart: bool = False
    floored: tuple[float, float, int] | None = None
    ratio: tuple[float, float] | None = None

    def spreads(self, side: str) -> list[Spread]:
        """What bounds on a side rest on, each a valid test; empty for one seed."""
        if self.n < 2 or self.sd is None:
            return []
        found = [Spread(self.mean, self.sd, self.n - 1)]
        if side == "lower" and self.floored is not None:
            mean, sd, seeds = self.floored
            found += [Spread(mean, sd, self.n - 1 - seeds)] if seeds < self.n - 1 else []
        return found

    def bound(self, side: str, alpha: float) -> float | None:
        """One-sided t bound of the mean, that of counted rows no nearer than their exact one; None
        for one seed.
        """
        sign, root = 1 if side == "upper" else -1, math.sqrt(self.n)
        found = max(
            (x.mean + sign * float(scipy.special.stdtrit(x.df, 1 - alpha)) / root * x.sd
             for x in self.spreads(side)), default=None,
        )  # fmt: skip
        if found is None:
            return None
        wider = max if side == "upper" else min
        if self.ratio is not None:
            found = wider(found, self._bound_ratio(sign, alpha))
        return found if self.counts is None else wider(found, self.counts.bound(side, alpha))

    def _bound_ratio(self, sign: int, alpha: float) -> float:
        """The limit at which :meth:`_p_ratio` is alpha; far off where the error left may be 0."""
        assert self.ratio is not None
        assert self.sd is not None
        covariance, variance = self.ratio
        k = float(scipy.special.stdtrit(self.n - 1, 1 - alpha)) ** 2 / self.n
        rest = 1 - k * variance
        if rest < 1 / _FAR_OFF:
            return sign * _FAR_OFF
        root = math.sqrt((k * covariance) ** 2 + rest * k * self.sd**2)
        return self.mean - (k * covariance - sign * root) / rest

    def _p_ratio(self, limit: float, sign: int) -> float:
        """One-sided p-value of "the mean of gain - limit x error left is at most 0" (Fieller 1954),
        no less than that of "no error is left".
        """
        if self.ratio is None or self.sd is None or self.n < 2:
            return 0.0
        (covariance, variance), gap = self.ratio, self.mean - limit
        spread = math.sqrt(max(self.sd**2 + 2 * gap * covariance + gap**2 * variance, 0.0))
        root = math.sqrt(self.n)
        found = [
            float(scipy.special.stdtr(self.n - 1, -x * root / sd)) if sd else float(x <= 0)
            for x, sd in ((sign * gap, spread), (1.0, math.sqrt(variance)))
        ]
        return max(found)

    def over(self, seeds: int) -> Against:
        """The same mean and spread over so many seeds."""
        low = self.floored and (*self.floored[:2], math.ceil(self.floored[2] * seeds / self.n))
        return replace(self, n=seeds, counts=self.counts and self.counts.over(seeds), floored=low)

    def detectable(self, alpha: float, power: float) -> float | None:
        """The least mean whose lower bound would be above 0 with chance `power`; None for one seed.

        By t quantiles from the spread: (t[1 - alpha] + t[power]) sd / sqrt(n); of counted rows no
        less than what their exact bound takes.
        """
        root = math.sqrt(self.n)
        found = min(
            (float(sum(scipy.special.stdtrit(x.df, [1 - alpha, power]))) * x.sd / root
             + self.mean - x.mean for x in self.spreads("lower")), default=None,
        )  # fmt: skip
        if found is None:
            return None
        return found if self.counts is None else max(found, self.counts.detectable(alpha, power))

    def p(self, limit: float, sign: int = 1) -> float:
        """One-sided p-value of "the mean is at most `limit`", or at least where `sign` is -1."""
        exact = 0.0 if self.counts is None else self.counts.p(limit, sign)
        found = 1.0
        for x in self.spreads("lower" if sign > 0 else "upper"):
            gap = sign * (x.mean - limit)
            if x.sd == 0:
                found = min(found, 0.0 if gap > 0 else 1.0)
            else:
                t = -gap * math.sqrt(self.n) / x.sd
                found = min(found, float(scipy.special.stdtr(x.df, t)))
        return max(found, exact, self._p_ratio(limit, sign))


@dataclass(frozen=True)
class Leakage:
    """What an attack gains over all controls at one point.

    Attributes:
        against: each control, the least mean advantage first; not empty.
        named: name of the control named beforehand, on which upper bounds rest.
        trainings: that it takes for a seed with a figure; above 1 where some have nothing to score.
    """

    against: tuple[Against, ...]
    named: str
    trainings: float = 1.0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Leakage | None:
        """Of a point of :func:`vflsec.audit.leakage.summarise`, where there is an advantage."""
        every = [
            Against(k, v["control"], v["advantage"], v["sd"], v["seeds"],
                    Counts(**found) if (found := v.get("counts")) else None, bool(v.get("apart")),
                    tuple(low) if (low := v.get("floored")) else None,
                    tuple(of) if (of := v.get("ratio")) else None)
            for k, v in (row.get("controls") or {}).items()
        ]  # fmt: skip
        if not every:
            return None
        trainings = [v.get("trainings", 1.0) for v in row["controls"].values()]
        return cls(_ordered(every), str(row["named"]), trainings[0])

    @classmethod
    def between(
        cls,
        advantage: Mapping[str, Mapping[int, float]],
        figure: Mapping[str, Mapping[int, float]],
        named: str,
        floored: Mapping[str, Mapping[int, float]] | None = None,
        left: Mapping[str, Mapping[int, float]] | None = None,
    ) -> Leakage | None:
        """From advantages and the controls' figures, each by name and seed, and advantages with the
        level of chance where a control is worse than that; of shares also the error that controls
        leave, of :func:`as_shares`.

        A control that is missing on some seeds takes part with those it has, if they are two or
        more.
        """
        most = max((len(v) for v in advantage.values()), default=0)
        every = []
        for name, by_seed in advantage.items():
            mean, sd = intervals.mean_and_sd(list(by_seed.values()))
            if mean is not None and len(by_seed) >= min(most, 2):
                own = intervals.mean_of(list(figure[name].values()))
                apart = has_outlier(np.array(list(by_seed.values())))
                low = _floor(by_seed, (floored or {}).get(name, by_seed))
                ratio = _vary_together(by_seed, left[name]) if left else None
                every.append(Against(name, own, mean, sd, len(by_seed), None, apart, low, ratio))
        return cls(_ordered(every), named) if every else None

    @property
    def least(self) -> Against:
        """The control with the least mean advantage."""
        return self.against[0]

    @property
    def ahead(self) -> Against:
        """The control named beforehand; the least where it is not among them."""
        return next((a for a in self.against if a.name == self.named), self.least)

    def without(self, seeds: int) -> bool:
        """Whether the attack's figure is on all of so many seeds that of itself without messages.

        Then they changed nothing of its answer, and equal figures are no accident.
        """
        own = next((a for a in self.against if a.name == UNTRAINED), None)
        return own is not None and own.n >= seeds and own.mean == 0 and own.sd == 0

    def lower(self, alpha: float) -> float | None:
        """Lower bound: the least over controls; None for one seed."""
        found = [a.bound("lower", alpha) for a in self.against]
        return None if None in found else min(x for x in found if x is not None)

    def upper(self, alpha: float) -> float | None:
        """Upper bound, from the control named beforehand; None for one seed."""
        return self.ahead.bound("upper", alpha)

    def p_above(self, limit: float) -> float:
        """One-sided p-value of "it is at most `limit`": the largest over controls."""
        return max(a.p(limit) for a in self.against)

    def p_below(self, limit: float) -> float:
        """One-sided p-value of "it is at least `limit`", against the control named beforehand."""
        return self.ahead.p(limit, -1)

    def detectable(self, alpha: float, power: float = 0.8, *, more: int = 0) -> float | None:
        """The least leakage whose lower bound would be above 0 with chance `power`.

        Against each control, less how far that control is behind the least; the largest over
        controls. None for one seed. `more`: as many further seeds of the same spread.
        """
        found = []
        for a in self.against:
            alone = a.over(a.n + more).detectable(alpha, power) if a.n > 1 else None
            if alone is None:
                return None
            found.append(alone - (a.mean - self.least.mean))
        return max(found)

    def seeds_to_detect(self, size: float, alpha: float) -> int | None:
        """Seeds to add until a leakage of `size` is :meth:`detectable`; None if too many."""
        if self.detectable(alpha) is None:
            return None
        now = min(a.n for a in self.against)
        tries = range((MOST_FORESEEN - 1) * now + 1)  # the more seeds, the less has to leak
        more = bisect_left(tries, -size, key=lambda m: -(self.detectable(alpha, more=m) or 0.0))
        return math.ceil(more * self.trainings) if more < len(tries) else None

    def seeds_until(self, limit: float, alpha: float, level: float) -> int | None:
        """Seeds to add until this is decided, spreads as seen; None if too many would be.

        Args:
            alpha: level of the upper bound that puts it within `limit`.
            level: of the test that puts it beyond.
        """
        above = self.least.mean > limit
        ask = self.against if above else (self.ahead,)
        side, level, sign = ("lower", level, 1) if above else ("upper", alpha, -1)

        def is_decided(n: int) -> bool:
            bounds = [a.over(n).bound(side, level) for a in ask]
            return all(x is not None and sign * (x - limit) > 0 for x in bounds)

        now = min(a.n for a in ask)
        tries = range(max(now, 2), MOST_FORESEEN * now + 1)
        at = bisect_left(tries, True, key=is_decided)  # what is decided stays so with more seeds
        if at == len(tries):
            return None
        return math.ceil(max(tries[at] - now, 1) * self.trainings)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Each control's figures as plain values, for a point; read back by :meth:`of`."""
        return {
            a.name: {"control": a.control, "advantage": a.mean, "sd": a.sd, "seeds": a.n}
            | ({"counts": asdict(a.counts)} if a.counts else {})
            | ({"apart": True} if a.apart else {})
            | ({"floored": list(a.floored)} if a.floored else {})
            | ({"ratio": list(a.ratio)} if a.ratio else {})
            | ({"trainings": self.trainings} if self.trainings != 1 else {})
            for a in self.against
        }


def count_trainings(planned: int, unscored: int) -> float:
    """Of so many trainings how many it takes for one that has something to score."""
    return planned / (planned - unscored) if unscored < planned else 1.0


def _floor(
    plain: Mapping[int, float], floored: Mapping[int, float]
) -> tuple[float, float, int] | None:
    changed = sum(floored[s] != d for s, d in plain.items())
    mean, sd = intervals.mean_and_sd(list(floored.values()))
    return (mean, sd, changed) if changed and mean is not None and sd is not None else None


def _vary_together(
    shares: Mapping[int, float], left: Mapping[int, float]
) -> tuple[float, float] | None:
    """Covariance of shares with the error left, and its variance; None for one seed."""
    if len(shares) < 2:
        return None
    both = np.cov([[share, left[s]] for s, share in shares.items()], rowvar=False)
    return float(both[0, 1]), float(both[1, 1])


def has_outlier(values: NDArray[np.float64]) -> bool:
    """Whether one of the seeds (n,) is farther from their mean than in 99 % of normal ones.

    Source: Grubbs, "Sample criteria for testing outlying observations", Annals of Mathematical
    Statistics 1950.
    """
    n, sd = len(values), float(values.std(ddof=1)) if len(values) > 2 else 0.0
    if sd == 0:
        return False
    t = float(scipy.special.stdtrit(n - 2, 1 - _APART / (2 * n)))
    most = (n - 1) * math.sqrt(t * t / (n * (n - 2 + t * t)))
    return float(np.abs(values - values.mean()).max()) > most * sd


def is_leak(advantage: float | None, low: float | None) -> bool:
    """Whether this is called a leak: the lower bound above 0, and a mean that can be seen."""
    if advantage is None or low is None:
        return False
    return low > 0 and advantage >= LEAST


def _ordered(found: Iterable[Against]) -> tuple[Against, ...]:
    """The least advantage first; of equals the level of chance last, for it says least."""
    return tuple(sorted(found, key=lambda a: (a.mean, a.name == CHANCE, a.name)))


Paired = dict[str, dict[int, float]]


def find_worst(gained: Mapping[str, Mapping[int, float]]) -> float | None:
    """The largest advantage over all controls in a single seed; None where there is none.

    Args:
        gained: advantages by control and seed, of :func:`vflsec.audit.result_row.read_advantages`.
    """
    seeds = {s for of in gained.values() for s in of}
    return max((min(of[s] for of in gained.values() if s in of) for s in seeds), default=None)


def floor_at_chance(gained: Paired) -> Paired:
    """Advantages by control and seed, over the level of chance where a control is worse than that.

    Args:
        gained: advantages by control and seed.
    """
    least = gained.get(CHANCE, {})
    return {k: {s: min(d, least.get(s, d)) for s, d in of.items()} for k, of in gained.items()}


def as_shares(gained: Paired, own: Paired, best: float) -> tuple[Paired, Paired]:
    """Advantages as shares of the error that each control leaves, and those errors in units of
    their mean; none where one leaves no error.

    The share is a ratio of means over seeds. Seeds spread about it as its linear expansion does,
    r + (d - r e) / mean e with d the advantage and e the error left (Cochran, "Sampling
    techniques", 1977, section 6.4). Where e varies much, or with d, t bounds of that are too
    narrow: no bound is narrower than that of Fieller, "Some problems in interval estimation",
    Journal of the Royal Statistical Society B 16, 1954, from the t test of d - m e.

    Args:
        gained, own: advantages and figures by control and seed.
        best: the figure without any error.
    """
    out: Paired = {}
    rest: Paired = {}
    for name, by_seed in gained.items():
        left = {s: abs(best - own[name][s]) for s in by_seed}
        size = intervals.mean_of(list(left.values()))
        if size <= 0:
            return {}, {}
        share = intervals.mean_of(list(by_seed.values())) / size
        out[name] = {s: share + (d - share * left[s]) / size for s, d in by_seed.items()}
        rest[name] = {s: x / size for s, x in left.items()}
    return out, rest


def find_strongest(
    seen: Iterable[tuple[int, Controls]], metric: str, *, has_chance: bool = True
) -> str:
    """Name of the control with the best mean cross-validated score over seeds.

    Args:
        seen: (seed, controls) of every cell; the score of a seed is its mean over cells.
        metric: decides whether larger is better.
        has_chance: whether the metric has a level of chance here; beside a control that stands
            alone it has none.

    Returns:
        the name (ties to the first by name). Where none has a cross-validated score,
        :data:`FALLBACK`, or else :data:`CHANCE`, or else the first of those there are.
    """
    by_control: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    names: set[str] = set()
    for seed, controls in seen:
        names.update(controls)
        for name, of in controls.items():
            cv = of.get("cv")
            if cv is not None and math.isfinite(cv):
                by_control[name][seed].append(float(cv))
    if not by_control:
        usual = [FALLBACK] if has_chance else [FALLBACK, *sorted(names)]
        return next((name for name in usual if name in names), CHANCE)
    mean = {
        name: find_sign(metric) * float(np.mean([np.mean(v) for v in seeds.values()]))
        for name, seeds in by_control.items()
    }
    return min(mean, key=lambda name: (-mean[name], name))
