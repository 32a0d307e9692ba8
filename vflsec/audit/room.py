"""Whether a limit can be exceeded beside a control, and by which figure it is judged if not.

A control that ranks the labels with an AUC of 0.97 leaves 0.03 to gain: a maximum of 0.1 decides
nothing there, whatever leaks. Such an attack is judged by the people that it exposes
(:mod:`vflsec.audit.exposed`), under the same limit, if that figure has room. If none has, the gate
stays open and names what would decide it. Where people were not counted, or leave no room either,
it is judged by the share of the error that its controls leave (:mod:`vflsec.audit.metrics`), which
always has some. A control that knows all there is leaves nothing to leak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from vflsec.audit.controls import Leakage, find_sign
from vflsec.audit.gate import Gate
from vflsec.audit.gate_candidate import Candidate, NoRoom
from vflsec.audit.metrics import ERROR_REMOVED, METRICS, find_reach
from vflsec.audit.point import Point

DECIDES = "exposed"
STANDING_IN = (DECIDES, ERROR_REMOVED)
"""The metrics by which an attack is judged where its own has no room: the first that has some."""

_COUNTED = ("label", "attribute")
"""Targets of attacks whose exposed people an audit counts."""
_ROUNDING = 1e-9


def find_room(point: Point, leak: Leakage) -> float:
    """What is left to gain over the control that leaves the least."""
    value = math.nan if point.value.mean is None else point.value.mean
    return find_reach(point.metric)[1] - (value - leak.least.mean)


def is_full(point: Point, leak: Leakage) -> bool:
    """Whether the control that was named beforehand has all that the figure can have, on every
    seed: then nothing can be gained, and no spread is needed to know it.
    """
    own, metric = leak.ahead.control, point.metric
    if own is None or metric not in METRICS:
        return False
    return own == find_reach(metric)[METRICS[metric].larger_is_better]


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
    if not gate.limits_leaks or find_sign(c.point.metric) < 0:
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
    counted = of_class and c.point.target in _COUNTED
    known = {metric, *(p.metric for p in figures)}
    return DECIDES if counted and DECIDES not in known else ""
