"""FedLocalSSL: every party pre-trains alone on all its rows, then FedSplitNN on the labelled ones.

With two views v1, v2 of a batch, z = projector(encoder(v)) and p = predictor(z):
L = 1/2 [l(p1, sg(z2)) + l(p2, sg(z1))]. SimSiam takes the targets from the network itself, BYOL
from its moving average; MoCo tells the key of the other view from a queue of earlier keys.

Messages: none in pre-training (unless `average` names parts: the ablation of table V); those of
FedSplitNN in fine-tuning.

Source: He, Kang et al., "A hybrid self-supervised learning framework for vertical federated
learning", arXiv:2208.08934 (2022), section IV, tables IV and V (FedLocalSimSiam, -BYOL, -MoCo).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from vflsec import registry
from vflsec.algorithms._ssl import SelfSupervised
from vflsec.algorithms._ssl_options import Averaging, LocalViews
from vflsec.federation import Federation, Phase

ALIASES = ("fedlocalssl",)


@registry.algorithm
@dataclass(frozen=True)
class FedLocalSSL(Averaging, LocalViews):
    """Hyper-parameters: those of its ingredients; nothing is averaged by default."""

    average: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alone(FedLocalSSL):
    """Pre-training by one party, and nothing else: the attacker without the federation.

    Attributes:
        only: that party.
    """

    only: str = ""

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
