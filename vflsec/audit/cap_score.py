"""Single figures for a privacy-utility curve: CAP, DCS, relative risk. Reported, never gated."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflsec.core import check


def _unit(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.atleast_1d(np.asarray(values, float))
    if array.ndim != 1 or not ((array >= 0) & (array <= 1)).all():
        raise check.fail(name, "numbers in [0, 1] along the strength grid", array.tolist())
    return array


def cap(utility: ArrayLike, attack: ArrayLike) -> float:
    """Calibrated averaged performance: the mean over the strength grid of U·(1 − A).

    With A = attack accuracy this reproduces Table XII of He et al. 2022 (FedHSSL, eq. 8), which
    does not print its error term. CAP depends on the grid, multiplies unlike quantities and
    rewards a task with nothing to steal, so compare it only between curves of one data set and one
    grid.

    Args:
        utility: main-task metric at each strength, (v,) in [0, 1].
        attack: attack performance at the same strengths, (v,) in [0, 1].

    Raises:
        ConfigError: lengths differ, the grid is empty, or a value leaves [0, 1].
    """
    u, a = _unit("cap: utility", utility), _unit("cap: attack", attack)
    if len(u) != len(a):
        raise check.fail("cap: attack", f"of the length of utility ({len(u)})", len(a))
    if len(u) == 0:
        raise check.fail("cap: utility", "at least one point", 0)
    return float((u * (1 - a)).mean())


def dcs(ap: float, mp: float, mp0: float, beta: float = 0.5) -> float:
    """Defense capability score 1 / (1 + sqrt((1−β)·d_AP² + β·d_MP²)) (Zou et al. 2024, VFLAIR).

    d_AP = ap (the best defense leaves 0), d_MP = max(mp0 − mp, 0). Not corrected for chance: a
    coin flip against two classes still scores 0.739.

    Args:
        ap: attack performance in [0, 1].
        mp: main-task metric with the defense, in [0, 1].
        mp0: main-task metric without attack or defense, in [0, 1].
        beta: weight of the loss of utility.
    """
    check.in_unit("dcs: beta", beta)
    d_ap = check.in_unit("dcs: ap", ap)
    d_mp = max(check.in_unit("dcs: mp0", mp0) - check.in_unit("dcs: mp", mp), 0.0)
    return 1 / (1 + math.sqrt((1 - beta) * d_ap**2 + beta * d_mp**2))


def relative_risk(attack: float, control: float) -> float:
    """(attack − control) / (1 − control), signed (Giomi et al. 2023, Anonymeter).

    0 when the control is already perfect, for then nothing is left to leak.
    """
    a = check.in_unit("relative_risk: attack", attack)
    c = check.in_unit("relative_risk: control", control)
    return 0.0 if c == 1 else (a - c) / (1 - c)


def relative_improvement(auc: float, reference: float, baseline: float = 0.5) -> float:
    """(auc − baseline) / (reference − baseline) − 1, "RelaImpr" (Yan et al. 2014).

    Raises:
        ConfigError: the reference is no better than the baseline.
    """
    if reference <= baseline:
        raise check.fail(
            "relative_improvement: reference", f"above the baseline {baseline}", reference
        )
    return (auc - baseline) / (reference - baseline) - 1
