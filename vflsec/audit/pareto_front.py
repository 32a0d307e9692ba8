"""Each strength of each defense as one point: its worst attack, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vflsec.audit.exposed import EXPOSED
from vflsec.audit.findings import NO_FIGURE
from vflsec.audit.gate import Gate, Rule, Ruling, Verdict
from vflsec.audit.gate_candidate import Candidate
from vflsec.audit.gate_rules import Weighed, decide
from vflsec.audit.gate_selection import is_selected
from vflsec.audit.judge import weigh
from vflsec.audit.metrics import (
    find_reach,
    format_limit,
    format_size,
    format_unit,
    metric_name,
)
from vflsec.audit.point import Point
from vflsec.audit.validated import Validation
from vflsec.audit.verdict_text import format_failed
from vflsec.errors import ConfigError
from vflsec.runtime.grouping import group_by


@dataclass(frozen=True)
class Trial:
    """One strength of one defense: the worst attack's advantage and the main task, with bounds.

    Every attack is judged by the figure that the gate of its limit judges it by.

    Attributes:
        defense, strength: what was run.
        leak, leak_high: largest mean advantage over attacks, and the largest upper bound, of the
            answer or of the answer turned round where it ranks two classes.
        means: `leak` of the attacks that are judged by each metric.
        attack: the attack with that bound; '' where none sees a message, and all figures are 0.
        utility: mean of the main-task metric.
        drop, drop_high: mean loss of utility against strength 0, and its upper bound; of several
            trainings (data sets, algorithms, phases) these three are of the one that loses most.
        claimed, measured: the epsilon that is claimed, and the largest lower bound that canaries
            measure of it; None where nothing is claimed, or tested.
        failed: why the limit's gate passes nothing there whatever the bounds are: something failed,
            an answer ranks in reverse, evidence is missing, or no figure has room. None if it may.
        turned: largest mean advantage of answers turned round; -inf where none can be.
        gates: what the gates of the audit say there.
        judged_by: the metric of `leak_high`, where it is not the attack's own; else ''.
    """

    defense: str
    strength: float
    leak: float
    leak_high: float
    attack: str
    utility: float
    drop: float
    drop_high: float
    claimed: float | None = None
    measured: float | None = None
    failed: Ruling | None = None
    turned: float = -math.inf
    gates: tuple[Verdict, ...] = ()
    judged_by: str = ""
    means: Mapping[str, float] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """What the advantage is measured in, where that is another figure than usual; or ''."""
        return f" in {metric_name(self.judged_by)}" if self.judged_by and not self._counts else ""

    @property
    def _counts(self) -> str:
        """The metric of exposed rows that it is judged by; or ''."""
        return self.judged_by if self.judged_by in EXPOSED else ""

    def format_gain(self, advantage: float, limit: float = 0.0) -> str:
        """``+0.012``, or ``12 of 1,000 rows named with certainty``."""
        size = format_size(advantage, self._counts, limit, "+.3f")
        return f"{size}{format_unit(self._counts)}"

    def format_limit(self, limit: float) -> str:
        """``0.05``, or ``50 of 1,000 rows``."""
        return format_limit(limit, self._counts) + (" of 1,000 rows" if self._counts else "")

    @property
    def named(self) -> str:
        """The attack, with what it is judged by, or that none sees a message."""
        return f"{self.attack}{self.unit}" if self.attack else "no attack sees a message"

    def find_mean(self, metric: str) -> float:
        """`leak` in one metric: 0 where no attack sees a message, NaN where none has a figure."""
        return self.means.get(metric, math.nan if self.means else self.leak)

    def meets(self, leak: float) -> bool:
        """Whether every attack gave a figure to pass on, its upper bound is within, and no gate
        says that too many rows may be exposed.
        """
        return not (self.failed or any(self.find_excess(leak)))

    def find_excess(self, leak: float) -> tuple[float, float]:
        """How far the upper bound of the advantage is beyond `leak`, and that of the worst gate on
        exposed rows beyond its limit; 0 where it is within.
        """
        return max(self.leak_high - leak, 0.0), self.exposing.excess if self.exposing else 0.0

    def is_near(self, leak: float) -> bool:
        """Whether more seeds may do: the means are within, those of exposed rows too."""
        means = all(g.value is not None and g.value <= g.threshold for g in self.exposed)
        return not self.failed and max(self.leak, self.turned) <= leak and means

    @property
    def exposed(self) -> list[Verdict]:
        """The gates on rows exposed at this strength whose upper bound is beyond their limit."""
        here = (g for g in self.gates if g.strength in (None, self.strength))
        return [g for g in here if g.limited in EXPOSED and g.excess > 0]

    @property
    def exposing(self) -> Verdict | None:
        """Of these the one farthest beyond its limit; None if all are within."""
        return max(self.exposed, key=lambda g: g.excess, default=None)

    def epsilons(self) -> str:
        """Both epsilons as a sentence, ``""`` where nothing is claimed."""
        if self.claimed is None:
            return ""
        if self.measured is None:
            return f" Claimed epsilon {self.claimed:.4g} (not tested)."
        return f" Claimed epsilon {self.claimed:.4g}, measured at least {self.measured:.3g}."


_BY_BOUNDS = (
    Rule.EXCEEDED, Rule.UNDECIDED, Rule.EITHER_DIRECTION, Rule.WITHIN, Rule.NOT_VALIDATED,
)  # fmt: skip
"""Rules that ask for bounds alone, and whether attacks work, which is for whoever asks. By any
other a gate passes nothing, whatever the bounds are.
"""


def trials(points: Sequence[Point], limit: Gate) -> list[Trial]:
    """One trial for each defense and strength of an audit.

    Args:
        points: :attr:`vflsec.audit.result.Audit.points`.
        limit: a maximum of the advantage. It is judged as any gate is, as if every attack were
            validated: which are not is for whoever asks.

    Raises:
        ConfigError: no attack gave a figure.
    """
    asked = [p for p in points if not p.attack or is_selected(p, limit)]
    if not any(p.attack and p.status == "ok" for p in asked):
        where = f" in {metric_name(limit.of)}" if limit.of else ""
        raise ConfigError(f"tune: {NO_FIGURE}{where}. See `vflsec check`.")
    weighed = weigh(points, limit, {p.place: Validation(validated=True) for p in points})
    swept = (p for p in asked if p.strength is not None)
    by = group_by(swept, lambda p: (p.defense, p.strength or 0.0))
    here = group_by(weighed.items(), lambda of: (of[0].defense, of[0].strength or 0.0))
    return [
        _trial(by[k], [w for _, w in here.get(k, ())], limit.of) for k in sorted(by)
        if any(p.attack for p in by[k])
    ]  # fmt: skip


def _trial(points: Sequence[Point], weighed: Sequence[Weighed], of: str) -> Trial:
    """Of the points of one defense and strength, and what the limit's gate weighs of them, and the
    metric that it names.
    """
    paid, failed = _dearest(points), _find_failed(points, weighed)
    drop, high = paid.utility_drop.mean, paid.utility_drop.high
    lost = (0.0, 0.0) if paid.is_undefended else (_or(drop, math.nan), _or(high, math.inf))
    cost = _or(paid.utility.mean, math.nan), *lost
    defense, strength = paid.defense, paid.strength or 0.0
    found = [(c, _bound(c, w.alpha)) for w in weighed for c in w.found]
    if not found:
        unseen = all(p.status == "not-observable" for p in points if p.attack)
        leak = (0.0, 0.0) if unseen else (math.nan, math.inf)
        return Trial(defense, strength, *leak, "", *cost, failed=failed)
    worst, most = max(found, key=lambda of: of[1])
    by = group_by((c for c, _ in found), lambda c: c.point.metric)
    means = {metric: max(c.value for c in each) for metric, each in by.items()}
    turned = (c.reversed_value for c, _ in found if not c.reversed_metric)
    return Trial(
        defense, strength, max(means.values()), most, worst.name, *cost,
        failed=failed, turned=max(turned, default=-math.inf),
        judged_by=worst.judged_by or of, means=means,
    )  # fmt: skip


def _bound(c: Candidate, alpha: float) -> float:
    """The upper bound of its figure or of the answer turned round."""
    high = _or(c.bound("upper", alpha), math.inf)
    if high == math.inf:
        return high
    turned = None if c.reversed_metric or c.reversed is None else c.reversed.bound("upper", alpha)
    most = math.inf if c.no_room else find_reach("advantage", c.point.metric)[1]
    return min(max(high, _or(turned, -math.inf)), most)


def _find_failed(points: Sequence[Point], weighed: Sequence[Weighed]) -> Ruling | None:
    """What failed, or else what the limit's gate says against any figure; None if nothing."""
    main = (p for p in points if p.attack or p.metric in ("", p.utility_metric))
    lost = [p for p in main if p.failed or (p.status == "ok" and p.value.mean is None)]
    if lost:
        return Ruling(Rule.FAILED_RUNS, format_failed(lost, ()))
    rulings = (decide(w)[1] for w in weighed)
    return next((r for r in rulings if r.rule not in _BY_BOUNDS), None)


def _dearest(points: Sequence[Point]) -> Point:
    """The point of a strength at which the loss of utility may be largest, wherever it leaks."""
    here = [p for p in points if p.attack or p.metric == p.utility_metric]
    return max(here, key=lambda p: _or(p.utility_drop.high, math.inf))


def pareto(found: Sequence[Trial]) -> dict[str, list[Trial]]:
    """By metric, those that no other beats in both utility and advantage in it (means), best
    utility first.
    """
    fronts: dict[str, list[Trial]] = {m: [] for t in found for m in t.means}
    for metric, front in fronts.items():
        there = [t for t in found if not math.isnan(t.find_mean(metric))]
        for trial in sorted(there, key=lambda t: (-t.utility, t.find_mean(metric))):
            if not front or trial.find_mean(metric) < front[-1].find_mean(metric):
                front.append(trial)
    return fronts


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
