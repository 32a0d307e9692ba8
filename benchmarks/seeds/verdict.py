"""The rule by which a claim of a paper is reproduced or not, from paired seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vflsec.audit.intervals import t_interval

__all__ = ["RULE", "WORDS", "Effect", "judged"]

WORDS = ("reproduced", "reproduced smaller", "not reproduced")
CONFIDENCE = 0.95

RULE = """\
A claim "A > B" is tried on every data set listed for it, named before any was run where nothing
else is said below. Its effect there is the mean over paired seeds of A - B on test rows, with
the t interval at 1 - 0.05 / m for m real data sets of more than one seed (at 0.95 in a drawn
world, which decides nothing). It is *reproduced* where the whole interval lies above 0 and
reaches the smallest effect that the paper prints, *reproduced smaller* where it lies above 0
and below that, else *not reproduced*. The reason of *not reproduced* is one of: the opposite
holds (the interval lies below 0); there is no room (B with all labels or all rows is less above
B than the paper's effect); an effect of the paper's size is excluded (the interval ends below
it); undecided (it holds both 0 and the paper's effect)."""


@dataclass(frozen=True)
class Effect:
    """What one data set says of a claim.

    Attributes:
        mean, low, high: of A - B; bounds are None with fewer than two seeds.
        word: one of :data:`WORDS`.
        reason: of *not reproduced*, else ''.
    """

    mean: float
    low: float | None
    high: float | None
    word: str
    reason: str = ""


def judged(
    better: Sequence[float],
    worse: Sequence[float],
    paper: tuple[float, float],
    *,
    room: float | None = None,
    tries: int = 1,
) -> Effect:
    """Apply the rule to one data set.

    Args:
        better, worse: figures of A and B, a value a seed, in the same order.
        paper: smallest and largest effect that is printed.
        room: how far B with everything it lacks is above B; None if that was not tried.
        tries: real data sets of the claim, m; 1 for a drawn world.
    """
    d = np.subtract(better, worse)
    low, high = t_interval(d, 1 - (1 - CONFIDENCE) / tries)
    mean, least = float(d.mean()), paper[0]
    if low is None or high is None:
        return Effect(mean, None, None, WORDS[2], "one seed tells nothing")
    if low > 0:
        return Effect(mean, low, high, WORDS[0 if high >= least else 1])
    if high < 0:
        reason = "the opposite holds"
    elif room is not None and room < least:
        reason = f"no room: all that is missing adds {room:+.3f}"
    elif high < least:
        reason = "an effect of the paper's size is excluded"
    else:
        reason = "undecided: 0 and the paper's effect are both within the interval"
    return Effect(mean, low, high, WORDS[2], reason)
