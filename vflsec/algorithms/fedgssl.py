"""FedGSSL: cross-party self-supervision guides the local one; then FedSplitNN fine-tuning.

Every global iteration is an epoch of FedCSSL's step on the aligned rows, and an epoch of local
steps on all rows of each party, whose loss adds gamma [l(p1_l, z1_c) + l(p2_l, z2_c)]: on the same
view, the local tower is pulled towards the party's own cross tower, which is frozen (eq. 6). The
local step sends nothing. In fine-tuning the two towers are pooled.

Source: He, Kang et al., arXiv:2208.08934 (2022), section IV-C, table V, figures 6 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vflsec.algorithms._ssl_alone import OwnControl
from vflsec.algorithms._ssl_options import CrossParty, Guided, LocalViews
from vflsec.algorithms.fedcssl import FedCSSL
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FedGSSL(OwnControl, Guided, CrossParty, LocalViews):
    """Hyper-parameters: those of its ingredients."""

    sends: ClassVar[frozenset[tuple[str, str, str]]] = FedCSSL.sends
