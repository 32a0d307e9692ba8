"""Claimed against measured epsilon: what a gate on ``epsilon_lower`` says at one point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["CLAIM", "CLAIMED", "Contest", "contest"]

CLAIM, CLAIMED = "epsilon_lower", "epsilon_claimed"
"""Metrics of the rows that carry the measured lower bound and the accountant's epsilon."""


class Contest(NamedTuple):
    """Whether a claim stands: measured bound, what it must not exceed, seeds, and a sentence."""

    contradicted: bool
    measured: float
    limit: float
    seeds: int
    reason: str


def contest(rows: Sequence[Mapping[str, Any]], limit: float | None) -> Contest | None:
    """Compare the mean measured bound over seeds with the claim, and with `limit` if given.

    None if nothing was measured. A bound below the claim is no evidence for it.
    """
    measured = [r for r in rows if r["metric"] == CLAIM and r["status"] == "ok"]
    claimed = [r["value"] for r in rows if r["metric"] == CLAIMED and r["status"] == "ok"]
    if not measured or not claimed:
        return None
    value = max(float(r["value"]) for r in measured)
    seeds = max(int(r["value_seeds"]) for r in measured)
    claim = float(min(claimed))
    bound = claim if limit is None else min(limit, claim)
    if value > bound:
        what = "the claimed epsilon" if bound == claim else "the limit"
        reason = f"Canaries prove epsilon >= {value:.3g}, which contradicts {what} {bound:.4g}."
        return Contest(True, value, bound, seeds, reason)
    reason = (
        f"Canaries prove epsilon >= {value:.3g}; that does not contradict the claimed {claim:.4g}, "
        "and does not prove it either."
    )
    return Contest(False, value, bound, seeds, reason)
