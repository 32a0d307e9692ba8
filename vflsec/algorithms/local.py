"""Local: the active party trains alone on its own columns; nothing is exchanged.

The reference that any federation has to beat, and FedSplitNN with K = 1, bit for bit.

Source: the "Local" reference row of the vertical federated learning literature, for example
Kang, Liu, Liang, "FedCVT: Semi-supervised vertical federated learning with cross-view training",
arXiv:2008.10838 (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vflsec import registry
from vflsec.algorithms.splitnn import SplitNN
from vflsec.federation import Federation
from vflsec.party import Party


@registry.algorithm
@dataclass(frozen=True)
class Local(SplitNN):
    """The same hyper-parameters as FedSplitNN; only the active party's count."""

    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset()
    federated: ClassVar[bool] = False
    world: ClassVar[dict[str, Any]] = {"task": {"signal": 0.0}}

    def passive(self, fed: Federation) -> list[Party]:
        return []
