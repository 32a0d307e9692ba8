"""What algorithms share that train on rows whose parties are not all there, and answer so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.party import Party
from vflsec.errors import PolicyError


@dataclass(frozen=True)
class AnyParties(SplitNN):
    """Hyper-parameters beside those of FedSplitNN.

    Attributes:
        aggregation: always the mean.
        own_labels: False trains on the aligned rows alone, as FedSplitNN does.
        absent: parties whose columns are missing at inference, and when an epoch is chosen on
            validation rows.
    """

    aggregation: Annotated[str, check.among("mean")] = "mean"
    own_labels: bool = True
    absent: tuple[str, ...] = ()

    own_top: ClassVar[bool] = False
    world = {"task": {"unaligned": 40}}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_head()

    def build(self, fed: Federation) -> None:
        for b in fed.active.bindings:
            if b.policy.overrides("model") and b.policy.overrides("penalty"):
                raise PolicyError(
                    f"{self.name}: {b.policy.name} would press on the last use of a model only. "
                    "Leave the defense out, or take splitnn."
                )
        names = [p.name for p in self.holders(fed)]
        for name in self.absent:
            check.one_of(f"{self.name}.absent: the party", name, names)
        if not set(names) - set(self.absent):
            raise check.fail(f"{self.name}.absent", "some of the parties", list(self.absent))
        super().build(fed)

    def present(self, fed: Federation) -> list[Party]:
        return [p for p in self.holders(fed) if p.name not in self.absent]

    def phases(self, fed: Federation) -> list[Phase]:
        (train,) = super().phases(fed)
        own = fed.stack.unaligned_labelled()
        if not self.own_labels or fed.active not in self.holders(fed) or not own.shape[1]:
            return [train]
        alone = Pass("own", own, self.batch_size, partial(self.own_step, fed), self.smallest)
        return [replace(train, passes=(alone, *train.walks()))]

    def own_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of the active party on labelled rows (R, b) that it has alone."""
        raise NotImplementedError("abstract")
