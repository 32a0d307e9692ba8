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

from dataclasses import dataclass

from vflsec.algorithms._ssl_alone import OwnControl
from vflsec.algorithms._ssl_options import Averaging, LocalViews
from vflsec.plugins import registry

ALIASES = ("fedlocalssl",)


@registry.algorithm
@dataclass(frozen=True)
class FedLocalSSL(OwnControl, Averaging, LocalViews):
    """Hyper-parameters: those of its ingredients; nothing is averaged by default."""

    average: tuple[str, ...] = ()
