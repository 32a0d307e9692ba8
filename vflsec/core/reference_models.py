"""What an adversary has trained for comparison: answers of own systems to the same questions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class References:
    """Systems of the same kind, each trained by the adversary on a half of some records.

    Attributes:
        rows: (n,) sample ids of the records.
        answers: (k, T, n, C) log class shares that each system gave, at T moments.
        trained: (k, n) bool, whether the record was among those that the system was trained on.
    """

    rows: Tensor
    answers: Tensor
    trained: Tensor
