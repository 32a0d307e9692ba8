"""Did leakage rise against earlier results? A regression gate on the mean advantage.

The same point (data, algorithm, defense, strength, attack, adversary, rows, metric) is compared.
A rise fails if it exceeds max(0.03, 2.5 sd / sqrt(n)) with the baseline's spread over seeds, so
that the noise of a few seeds is not taken for a change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Regressions", "regressions"]

LEAST = 0.03
SPREAD = 2.5
_KEY = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack",
        "attack_key", "target", "split", "metric")  # fmt: skip


@dataclass(frozen=True)
class Regressions:
    """What changed.

    Attributes:
        lines: one sentence for each rise, and one about what was compared.
        failed: whether some advantage rose.
        compared: number of points in both.
    """

    lines: tuple[str, ...]
    failed: bool
    compared: int

    @property
    def exit_code(self) -> int:
        """0 nothing rose, 1 something did, 3 nothing could be compared."""
        return 1 if self.failed else 0 if self.compared else 3


def regressions(
    now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> Regressions:
    """Compare the ``points`` of two summaries."""
    old = {tuple(p[k] for k in _KEY): p for p in before if _has(p)}
    lines, compared = [], 0
    for p in now:
        known = old.get(tuple(p[k] for k in _KEY))
        if known is None or not _has(p):
            continue
        compared += 1
        sd, n = known.get("advantage_sd") or 0.0, max(int(known["advantage_seeds"]), 1)
        allowed = max(LEAST, SPREAD * sd / math.sqrt(n))
        rise = p["advantage"] - known["advantage"]
        if rise > allowed:
            lines.append(
                f"FAIL  {p['attack']} by {p['adversary']} on {p['dataset']} ({p['defense']}, "
                f"{p['split']}): advantage rose by {rise:+.3f} from {known['advantage']:+.3f}, "
                f"{allowed:.3f} is allowed."
            )
    failed = bool(lines)
    lines.append(f"{compared} points compared with the baseline, {len(lines)} rose.")
    return Regressions(tuple(lines), failed, compared)


def _has(point: Mapping[str, Any]) -> bool:
    return (
        bool(point["attack"])
        and point.get("advantage") is not None
        and point["metric"] == point["primary"]
    )
