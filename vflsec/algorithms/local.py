"""Local: the active party trains alone on its own columns; nothing is exchanged.

The reference that any federation has to beat, and FedSplitNN with K = 1, bit for bit. By default it
gets the labels that the federation gets; with `own_labels` all that the active party has, aligned
or not ("Local-A").

Source: the "Local" reference row of the vertical federated learning literature, for example
Kang, Liu, Liang, "FedCVT: Semi-supervised vertical federated learning with cross-view training",
arXiv:2008.10838 (2020); "VFLHLP: vertical federated learning with hybrid local pre-training", arXiv
(May 2024), for Local-A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.federation import Federation, Phase
from vflsec.core.party import Party
from vflsec.errors import DataError
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class Local(SplitNN):
    """The same hyper-parameters as FedSplitNN; only the active party's count.

    Attributes:
        own_labels: True trains on all rows the active party has a label for, aligned or not.
    """

    own_labels: bool = False

    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset()
    modules: ClassVar[frozenset[str]] = frozenset({"active"})
    label_holder: ClassVar[bool] = False
    world = {"task": {"signal": 0.0}}

    def passive(self, fed: Federation) -> list[Party]:
        return []

    def phases(self, fed: Federation) -> list[Phase]:
        (phase,) = super().phases(fed)
        return [replace(phase, rows=own_labelled(fed)) if self.own_labels else phase]


def own_labelled(fed: Federation) -> Tensor:
    """All training rows that the active party has a label for, (R, n).

    Raises:
        DataError: their number differs between seeds.
    """
    found = [t.active_labelled for t in fed.stack.tasks]
    if len({len(rows) for rows in found}) > 1:
        what, got = f"{fed.stack.first.name}: labelled rows", sorted({len(rows) for rows in found})
        raise DataError.must(what, "have one size for all seeds", got)
    return torch.stack(found).to(fed.stack.device)[fed.stack.of]
