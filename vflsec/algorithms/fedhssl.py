"""FedHSSL: cross-party and guided local self-supervision with partial model aggregation.

FedGSSL, and at the end of every global iteration the parties' local tops, projectors and predictors
are replaced by their mean. All parties must share these shapes; the bottoms absorb what differs.
Momentum buffers and the moving-average towers stay as they are by default.

Messages: those of FedGSSL; a global iteration and party one state up and the averaged state down
(with MLP encoders of width 512 and SimSiam 1,185,536 parameters each way, and running statistics).
With the active party as the server its own state does not travel. With two parties each can solve
the average for the other's state: averaging hides nothing between two.

Source: He, Kang et al., "A hybrid self-supervised learning framework for vertical federated
learning", arXiv:2208.08934 (2022), algorithm 1, tables IV to X.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vflsec.algorithms._ssl_alone import OwnControl
from vflsec.algorithms._ssl_options import Averaging, CrossParty, Guided, LocalViews
from vflsec.algorithms.fedgssl import FedGSSL
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FedHSSL(OwnControl, Averaging, Guided, CrossParty, LocalViews):
    """Hyper-parameters: those of its ingredients."""

    sends: ClassVar[frozenset[tuple[str, str, str]]] = FedGSSL.sends | {
        ("state", "passive", "active"),
        ("state", "active", "passive"),
    }
