"""What a gate weighs: one attack's figure at one point, or one of the main task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vflsec.audit.controls import Against, Leakage, is_leak
from vflsec.audit.gate import Gate, Reason
from vflsec.audit.metrics import ERROR_REMOVED, METRICS, find_best, find_sign
from vflsec.audit.point import Estimate, Point


@dataclass(frozen=True)
class NoRoom:
    """Why a limit decides nothing.

    Attributes:
        metric: that cannot rise by the limit.
        control: that leaves the least to gain.
        room: how much that is.
        decider: the metric that would decide at this limit; '' where only a lower limit would.
    """

    metric: str
    control: str
    room: float
    decider: str


@dataclass(frozen=True)
class Candidate:
    """One attack at one point under one gate. Figures are turned so that it asks for a maximum.

    Attributes:
        point: which.
        leak: what is asked about, over all controls; of a plain figure, against itself alone.
        sign: -1 where the gate asks for a minimum.
        limit: the gate's threshold.
        not_validated, shortfall: why it may not pass; None if nothing is in the way.
        reversed: the figure of the answer with its labels flipped, None where there is no such
            thing.
        reversed_metric: where the figure itself cannot be turned round, the metric that `reversed`
            is the advantage in; '' where it is the figure's own.
        no_room: why the limit cannot be exceeded; None where it can.
        instead_of: why another figure of the same answer, which cannot exceed it, is not judged.
    """

    point: Point
    leak: Leakage
    sign: int
    limit: float
    not_validated: Reason | None = None
    shortfall: Reason | None = None
    reversed: Against | None = None
    reversed_metric: str = ""
    no_room: NoRoom | None = None
    instead_of: NoRoom | None = None

    @property
    def name(self) -> str:
        """Of the attack, or of the main task's metric."""
        return self.point.attack or self.point.utility_metric

    @property
    def figure(self) -> float:
        """The attack's own figure, mean over seeds; NaN where there is none."""
        return math.nan if self.point.value.mean is None else self.point.value.mean

    @property
    def judged_by(self) -> str:
        """The metric, where it stands in for that of the gate; else ''."""
        return self.point.metric if self.instead_of else ""

    @property
    def value(self) -> float:
        """Mean over seeds, turned."""
        return self.sign * self.leak.least.mean

    @property
    def most(self) -> float:
        """The limit, turned like the figures."""
        return self.sign * self.limit

    @property
    def n(self) -> int:
        """Seeds behind the value."""
        return self.leak.least.n

    def bound(self, side: str, alpha: float) -> float | None:
        """One-sided bound at level `alpha`, turned; None for one seed."""
        upper = (side == "upper") == (self.sign > 0)
        found = self.leak.upper(alpha) if upper else self.leak.lower(alpha)
        return None if found is None else self.sign * found

    def p_beyond(self) -> float:
        """One-sided p-value of "it is within the limit"."""
        return (self.leak.p_above if self.sign > 0 else self.leak.p_below)(self.limit)

    @property
    def reversed_value(self) -> float:
        """Mean of the answer with its labels flipped; minus infinity where there is none."""
        return -math.inf if self.reversed is None else self.reversed.mean

    def is_reversed_open(self, alpha: float) -> bool:
        """Whether the answer with its labels flipped is not shown to be within the limit.

        What a figure that cannot be turned round would be then, nobody knows: there it counts
        whether the ranking turned round leaks significantly.
        """
        if self.reversed_metric:
            return self.is_reversed_leak(alpha)
        high = None if self.reversed is None else self.reversed.bound("upper", alpha)
        return high is not None and high > self.limit

    def is_reversed_leak(self, alpha: float) -> bool:
        """Whether the answer with its labels flipped leaks significantly, not by noise."""
        if self.reversed is None:
            return False
        return is_leak(self.reversed.mean, self.reversed.bound("lower", alpha))

    def seeds_until(self, alpha: float, level: float) -> int | None:
        """Seeds to add until it is decided, labels flipped too; None if too many would be.

        Args:
            alpha: level of the bound that passes it.
            level: of the test that fails it.
        """
        levels = (alpha, level) if self.sign > 0 else (level, alpha)
        asked = [self.leak]
        if self.reversed is not None and self.is_reversed_open(alpha):
            asked.append(Leakage((self.reversed,), "", self.leak.trainings))
        found = [x.seeds_until(self.limit, *levels) for x in asked]
        return None if None in found else max(x for x in found if x is not None)


def as_leakage(figure: Estimate) -> Leakage | None:
    """A plain figure, as a leakage over no control but itself; None where there is none."""
    found = as_against(figure)
    return None if found is None else Leakage((found,), "")


def as_against(figure: Estimate) -> Against | None:
    """A figure beside nothing; None where there is none."""
    if figure.mean is None:
        return None
    return Against("", None, figure.mean, figure.sd, figure.seeds)


DECIDES = "exposed"
STANDING_IN = (DECIDES, ERROR_REMOVED)
"""The metrics by which an attack is judged where its own has no room: the first that has some."""

COUNTED = ("label", "attribute")
"""Targets of attacks whose exposed rows an audit counts."""
_ROUNDING = 1e-9


def find_room(point: Point, leak: Leakage) -> float:
    """What is left to gain over the control that leaves the least."""
    value = math.nan if point.value.mean is None else point.value.mean
    control = value - find_sign(point.metric) * leak.least.mean
    return abs(find_best(point.metric) - control)


def is_full(point: Point, leak: Leakage) -> bool:
    """Whether the control that was named beforehand has all that the figure can have, on every
    seed: then nothing can be gained, and no spread is needed to know it.
    """
    own, metric = leak.ahead.control, point.metric
    if own is None or metric not in METRICS:
        return False
    return own == find_best(metric)


def choose_figure(
    c: Candidate, gate: Gate, figures: Sequence[Point], weigh: Callable[[Point], Candidate | None]
) -> Candidate:
    """The candidate itself where its limit can be exceeded; else the one to judge it by.

    Args:
        c: an attack's figure.
        gate: what was asked.
        figures: points of the same answer, the primary one and those of :data:`STANDING_IN`.
        weigh: makes a candidate of a point.
    """
    if not gate.limits_leaks:
        return c
    room = find_room(c.point, c.leak)
    if _is_enough(room, gate) or is_full(c.point, c.leak):
        return c
    why = NoRoom(c.point.metric, c.leak.least.name, max(room, 0.0), _name_decider(c, gate, figures))
    others = [p for p in figures if p.metric in STANDING_IN]
    for point in others if c.point.exposed is None else ():
        other = weigh(point)
        if other is not None and _is_enough(find_room(other.point, other.leak), gate):
            return replace(other, instead_of=why)
    return replace(c, no_room=why)


def _is_enough(room: float, gate: Gate) -> bool:
    return room >= gate.threshold - _ROUNDING


def _name_decider(c: Candidate, gate: Gate, figures: Sequence[Point]) -> str:
    """The metric that would decide at this limit; '' where only a lower limit would."""
    metric = c.point.metric
    for main in (p for p in figures if p.metric == p.primary != metric):
        if main.leakage is not None and _is_enough(find_room(main, main.leakage), gate):
            return main.metric
    of_class = metric in METRICS and "label" in METRICS[metric].targets
    counted = of_class and c.point.target in COUNTED
    known = {metric, *(p.metric for p in figures)}
    return DECIDES if counted and DECIDES not in known else ""
