"""What was found of the noise that a mechanism names, and what trainings say of it together.

Sources: Fisher (1925) for p-values of several trainings; Neyman and Pearson (1933) for the power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scipy import special

POWER = 0.8


class Fault(StrEnum):
    """In what a mechanism differs from what it says of its noise."""

    LESS = "less_noise"
    SHARED = "shared_noise"
    MISSING = "missing_noise"
    REPEATED = "repeated_noise"
    TOO_FAR = "row_moves_too_far"
    COUPLED = "row_moves_others"
    SAMPLING = "no_poisson_batches"


@dataclass(frozen=True)
class Heard:
    """What was found of the noise of one training.

    Attributes:
        numbers: that were noised.
        p: of each fault that was looked for, the chance of such a finding without it.
    """

    numbers: int
    p: Mapping[Fault, float]

    def fields(self) -> dict[str, Any]:
        """As it is stored."""
        return {"numbers": self.numbers, **{str(fault): p for fault, p in self.p.items()}}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Heard:
        """What :meth:`fields` made."""
        return cls(stored["numbers"], {Fault(k): p for k, p in stored.items() if k != "numbers"})


def find_least(numbers: int, alpha: float) -> float:
    """The largest share of the claimed noise that is told from it at `alpha`, with a chance of 0.8.

    Args:
        numbers: that were noised.
        alpha: error of the test.
    """
    least = special.gammaincinv(numbers / 2, alpha) / special.gammaincinv(numbers / 2, POWER)
    return math.sqrt(float(least))


def combine(heard: Sequence[Heard]) -> dict[Fault, float]:
    """p-values of several trainings together (Fisher 1925), each with noise of its own."""
    out = {}
    for fault in dict.fromkeys(f for h in heard for f in h.p):
        p = [max(h.p[fault], 1e-300) for h in heard if fault in h.p]
        out[fault] = float(special.gammaincc(len(p), -sum(map(math.log, p))))
    return out
