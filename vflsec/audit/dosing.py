"""Dosing: a planted leak of known size laid over what an attacker sees, to learn what is found.

A share of the rows gets a received gradient and an own embedding that carry its label and nothing
else: the gradient of a logistic loss at the class shares, -(onehot(y) - prior) U, and an embedding
on the far side of all others, in directions U that are drawn for the seed. The rows are drawn
without regard to the label, and known rows among them: that is how the attack can learn the way.
Then the same attack is made, and judged by the same rule. This is an operation of the audit: labels
come from the truth, and no attack can reach it.

The size of the dose is what the best possible attacker gains, who has the label of those rows and
ranks the others like the strongest control, of AUC A: (1 - (1 - share)^2) (1 - A), for a pair of
rows is ranked rightly where one of them is dosed. Of other metrics it is share (1 - A).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from vflsec.audit.controls import Leakage, Spread
from vflsec.audit.metrics import RANKINGS
from vflsec.audit.point import Identity, Point
from vflsec.runtime.grouping import group_by

MARK = "@dose="
"""In the phase of a measure: what follows is the share of rows that were dosed."""

POWER = 0.8
_UNSAID = ("of_label", "target", "victim")
"""What is no part of a place: the attack's key tells it."""

Doses = Mapping[Identity, float | None]
"""The least planted leak that is found with a chance of 0.8, by place; None if none was."""


@dataclass(frozen=True, slots=True)
class Dose(Identity):
    """What was found of one dose by an attack; `phase` is that of the training.

    Attributes:
        share: of the rows, that were dosed.
        planted: size of the dose.
        advantage, low, high: of the attack, with its bounds.
        found: whether this audit shows it to be above 0.
        chance: that an audit of as many seeds does, from the spread seen.
    """

    share: float = 0.0
    planted: float = 0.0
    advantage: float | None = None
    low: float | None = None
    high: float | None = None
    found: bool = False
    chance: float = 0.0


def compute_planted_gain(metric: str, share: float, control: float) -> float:
    """What the best possible attacker gains over a control of that figure."""
    part = 1 - (1 - share) ** 2 if metric in RANKINGS else share
    return part * (1 - control)


def build_curve(points: Iterable[Point], confidence: float = 0.95) -> list[Dose]:
    """What was found of each dose, by place and ascending.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`, of the dosed measures alone.
        confidence: of the gate's test.
    """
    alpha = (1 - confidence) * confidence
    out = []
    for p in points:
        leak, control = p.leakage, p.control_value.mean
        if not p.is_main or leak is None or leak.least.n < 2 or control is None:
            continue
        phase, _, share = p.phase.partition(MARK)
        out.append(
            Dose(
                **replace(p.identity, phase=phase).as_dict(), share=float(share),
                planted=compute_planted_gain(p.metric, float(share), control),
                advantage=p.advantage.mean, low=p.advantage.low, high=p.advantage.high,
                found=leak.p_above(0.0) < alpha,
                chance=_chance(leak, alpha),
            )
        )  # fmt: skip
    return sorted(out, key=lambda d: (*map(str, astuple(identify_curve(d))), d.share))


def _chance(leak: Leakage, alpha: float) -> float:
    """That the lower bound is above 0, by the noncentral t against each control."""
    return min(max(_chance_of(x, a.n, alpha) for x in a.spreads("lower")) for a in leak.against)


def _chance_of(x: Spread, n: int, alpha: float) -> float:
    if not x.sd:
        return float(x.mean > 0)
    from scipy import stats

    bar, away = stats.t.isf(alpha, x.df), x.mean * math.sqrt(n) / x.sd
    with np.errstate(all="ignore"):  # scipy 1.12 warns where its value is right
        sure = math.nan if abs(away) > 30 else float(stats.nct.sf(bar, x.df, away))
    return float(away > 0) if math.isnan(sure) else sure


def find_least_dose(doses: Iterable[Dose]) -> dict[Identity, float | None]:
    """The least dose by :func:`identify_curve` that is found with a chance of 0.8.

    Between two doses the size is interpolated; below the smallest nothing is claimed.
    """
    by_place = group_by(doses, identify_curve)
    return {at: _least(sorted(of, key=lambda d: d.planted)) for at, of in by_place.items()}


def _least(doses: Sequence[Dose]) -> float | None:
    """Of one place, ascending."""
    sure = [d.chance >= POWER for d in doses]
    first = next((i for i in range(len(sure)) if all(sure[i:])), None)
    if first is None:
        return None
    b = doses[first]
    if not first:
        return b.planted
    a = doses[first - 1]
    part = (POWER - a.chance) / max(b.chance - a.chance, 1e-12)
    return a.planted + part * (b.planted - a.planted)


def identify_curve(at: Identity) -> Identity:
    """What identifies a curve, of a dose or of a point; its sizes are those of one metric."""
    return at.without(*_UNSAID)
