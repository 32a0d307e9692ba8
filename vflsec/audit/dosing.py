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
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vflsec.audit.controls import Leakage
from vflsec.audit.leakage import rows_of
from vflsec.audit.metrics import RANKINGS
from vflsec.audit.point import Point

__all__ = ["MARK", "Doses", "curve", "least_found", "planted"]

MARK = "@dose="
"""In the phase of a measure: what follows is the share of rows that were dosed."""

POWER = 0.8
_PLACE = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack",
          "attack_key", "known_rows", "split")  # fmt: skip

Doses = Mapping[tuple[Any, ...], float | None]
"""The least planted leak that is found with a chance of 0.8, by place; None if none was."""


def planted(metric: str, share: float, control: float) -> float:
    """What the best possible attacker gains over a control of that figure."""
    part = 1 - (1 - share) ** 2 if metric in RANKINGS else share
    return part * (1 - control)


def curve(summary: Sequence[Point], confidence: float = 0.95) -> list[dict[str, Any]]:
    """What was found of each dose.

    Args:
        summary: of :func:`vflsec.audit.leakage.summarise`, of the dosed measures alone.
        confidence: of the gate's test.

    Returns:
        for each place and share, ascending: ``share``, ``planted`` (size of the dose),
        ``advantage`` with ``low`` and ``high``, ``found`` (whether this audit shows it to be above
        0) and ``chance`` (that an audit of as many seeds does, from the spread seen).
    """
    out = []
    for r in rows_of(summary):
        leak = Leakage.of(r) if r["attack"] and r["metric"] == r["primary"] else None
        if r["status"] != "ok" or leak is None or leak.least.n < 2:
            continue
        phase, _, share = str(r["phase"]).partition(MARK)
        alpha = (1 - confidence) * confidence
        out.append(
            {k: r[k] for k in _PLACE} | {
                "phase": phase, "share": float(share), "metric": r["metric"],
                "planted": planted(r["metric"], float(share), float(r["control_value"])),
                "advantage": leak.least.mean, "low": r["advantage_low"],
                "high": r["advantage_high"], "found": leak.p_above(0.0) < alpha,
                "chance": _chance(leak, alpha),
            }
        )  # fmt: skip
    return sorted(out, key=lambda r: (*(str(r[k]) for k in _PLACE), r["share"]))


def _chance(leak: Leakage, alpha: float) -> float:
    """That the lower bound is above 0, by the noncentral t against each control."""
    chances = []
    for a in leak.against:
        if not a.sd:
            chances.append(float(a.mean > 0))
            continue
        from scipy import stats

        bar, away = stats.t.isf(alpha, a.n - 1), a.mean * math.sqrt(a.n) / a.sd
        with np.errstate(all="ignore"):  # scipy 1.12 warns where its value is right
            sure = math.nan if abs(away) > 30 else float(stats.nct.sf(bar, a.n - 1, away))
        chances.append(float(away > 0) if math.isnan(sure) else sure)
    return min(chances)


def least_found(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], float | None]:
    """The least dose by :data:`place <place_key>` that is found with a chance of 0.8.

    Between two doses the size is interpolated; below the smallest nothing is claimed.
    """
    by_place: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows:
        by_place[place_key(r)].append(r)
    out: dict[tuple[Any, ...], float | None] = {}
    for place, of in by_place.items():
        ordered = sorted(of, key=lambda r: r["planted"])
        sure = [r["chance"] >= POWER for r in ordered]
        first = next((i for i in range(len(sure)) if all(sure[i:])), None)
        out[place] = None
        if first is not None:
            out[place] = ordered[first]["planted"]
            if first:
                a, b = ordered[first - 1], ordered[first]
                part = (POWER - a["chance"]) / max(b["chance"] - a["chance"], 1e-12)
                out[place] = a["planted"] + part * (b["planted"] - a["planted"])
    return out


def place_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What identifies a curve, of a dose or of a point."""
    return tuple(None if row[k] != row[k] else row[k] for k in _PLACE)
