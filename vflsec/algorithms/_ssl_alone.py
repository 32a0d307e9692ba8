"""What a party of the self-supervised family could pre-train without the federation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from vflsec.algorithms._ssl import SelfSupervised
from vflsec.algorithms._ssl_options import Averaging, LocalViews
from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation, Phase


class OwnControl(SelfSupervised):
    """Gives an algorithm of the family the control of the prior attacker."""

    def local_training(self, party: str) -> Algorithm | None:
        if not (self.own_control and self.pretrain_iterations):
            return None
        return Alone.of(self, party)


@dataclass(frozen=True)
class Alone(Averaging, LocalViews):
    """Pre-training by one party, and nothing else: the attacker without the federation.

    Attributes:
        only: that party.
    """

    only: str = ""

    name: ClassVar[str] = "fedlocal_ssl"
    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset()

    @classmethod
    def of(cls, algorithm: SelfSupervised, party: str) -> Alone:
        """With the encoder and the pre-training settings of another algorithm of the family."""
        same = {
            f.name: getattr(algorithm, f.name) for f in fields(cls) if hasattr(algorithm, f.name)
        }
        batch = algorithm.pretrain_batch_size
        if not algorithm.has_local and algorithm.ssl == "moco":
            same["queue"] = max(1, cls.queue // batch) * batch
        return cls(**same | {"average": (), "own_control": False, "only": party})

    def members(self, fed: Federation) -> list[str]:
        return [self.only]

    def phases(self, fed: Federation) -> list[Phase]:
        return [self.pretraining(fed)]
