"""FedCSSL: cross-party self-supervision on aligned rows, then FedSplitNN on the labelled ones.

On every aligned batch the active party sends its projections z_c^1 (b, D) to every passive party,
and each passive party k its z_c^k to the active one. Received projections are constants:
L^1 = 1/(K-1) sum_j l(p_c^1, z_c^j), L^k = l(p_c^k, z_c^1) (eq. 5). There is no moving average in
this step, also with BYOL and MoCo; "MoCo" here is the queue-free NT-Xent of the public code.

Messages a step and passive party: two tensors (b, D), one each way, and the batch's sample ids; the
number does not depend on `local_updates`. No label is used; the labels' indirect trace is what the
audit after the phase ``pretrain`` measures.

Source: He, Kang et al., arXiv:2208.08934 (2022), section IV-B; stands in for Li et al., "VFed-SSD",
arXiv:2205.15987 (2022), whose loss is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vflsec.algorithms._ssl_alone import OwnControl
from vflsec.algorithms._ssl_options import CrossParty
from vflsec.algorithms.splitnn import SplitNN
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FedCSSL(OwnControl, CrossParty):
    """Hyper-parameters: those of its ingredients."""

    sends: ClassVar[frozenset[tuple[str, str, str]]] = SplitNN.sends | {
        ("embedding", "active", "passive")
    }
