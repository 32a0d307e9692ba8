"""What each party of a system in use sees of vertical boosting, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

FIELDS = ("node", "owner", "rows", "column", "cut", "gain", "weight")
"""What a ``tree`` message says of each node, in this order; NaN where the receiver is not told. The
owner of a split is the place of the party in the list of all parties."""


@dataclass(frozen=True)
class Profile:
    """Who is shown what while trees grow.

    Attributes:
        nodes: of which nodes every passive party is told the rows: those that are to be ``split``
            with its columns, or ``all`` of them, splits of other parties included.
        gradients: gradient pairs reach the passive parties in plain.
        counts: the active party learns how many rows each bin of a node has.
        shuffled: a passive party sends the sums up to each bin of a column, in an order of its own.
        tree: which of :data:`FIELDS` every passive party learns of each node.
        default: its own protection against this, with its default, in words.
        source: which system and version it describes.
    """

    nodes: Literal["split", "all"]
    gradients: bool = False
    counts: bool = False
    shuffled: bool = True
    tree: tuple[str, ...] = ()
    default: str = ""
    source: str = ""

    @property
    def sends(self) -> frozenset[tuple[str, str, str]]:
        """(kind, sender role, receiver role) of all messages of training on all rows."""
        down = {"ids", "partition", "signal", "gradient_pair" if self.gradients else "ciphertext"}
        up = {"partition", *(("tree",) if self.gradients else ("histogram", "own_pair"))}
        down |= {"tree"} if self.tree else set()
        return frozenset(
            {(kind, "active", "passive") for kind in down}
            | {(kind, "passive", "active") for kind in up}
        )


PROFILES: Mapping[str, Profile] = MappingProxyType({
    "paper": Profile(
        "split",
        source="Cheng et al., SecureBoost, arXiv:1901.08755",
    ),
    "fate-2": Profile(
        "all", counts=True, shuffled=False, tree=("node", "owner", "rows"),
        default="complete_secure = k (default 0) grows the first k trees at the active party alone",
        source="FATE 2.x, hetero SecureBoost, sync_nodes and new_sample_pos",
    ),
    "secretflow": Profile(
        "split", tree=("node", "gain"),
        default="first_tree_with_label_holder_feature (default False) grows the first tree at "
        "the label holder alone",
        source="SecretFlow SGB, July 2025",
    ),
    "xgboost-open": Profile(
        "all", gradients=True, counts=True, shuffled=False, tree=FIELDS,
        default="none; gradients, thresholds and leaf weights of all parties reach every party",
        source="XGBoost 1.7 to 3.3, vertical federated mode without the encryption plug-in",
    ),
})  # fmt: skip
"""By the value of ``profile``."""
