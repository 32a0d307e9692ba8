"""SecureBoost: boosted trees on columns of several parties, level by level.

The active party holds the labels. Each round it computes the derivatives g, h of every row's loss
and sends them to the passive parties, encrypted. These add them up by node, column and bin; the
active party decrypts the sums, takes the split with the largest gain

    G_L^2 / (H_L + l2) + G_R^2 / (H_R + l2) - G^2 / (H + l2)

and tells its owner, who answers which rows of the node go left. A leaf weighs -rate G / (H + l2).
The trees are those of pooled boosting, bit for bit. What else is shown to whom differs between
systems: ``profile`` names one (`vflsec.trees.profiles`). Ciphers are emulated: sizes in the ledger
are those of the numbers before encryption.

Messages a tree and passive party: ids of the rows used and their gradient pairs, down; for each
level sums (or, in the open profile, offered splits) up, chosen splits down, the sides of rows at
own splits up, the nodes of rows down as far as the profile shows them.

Which way rows with a missing value go at a split is learnt, of numbers and of categories.

Source: Cheng, Fan, Jin, Liu, Chen, Papadopoulos, Yang, "SecureBoost: a lossless federated learning
framework", arXiv:1901.08755 (2019); GOSS: Ke et al., "LightGBM", NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from vflsec.core import check
from vflsec.core.rounds import Learner, Rounds, Wire
from vflsec.core.view import Facts
from vflsec.label import make_label
from vflsec.plugins import registry
from vflsec.trees.bins import cut_columns
from vflsec.trees.boosting import Boosting, Rules
from vflsec.trees.histograms import Limits
from vflsec.trees.profiles import PROFILES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vflsec.core.federation import Federation

ALIASES = ("sgb", "hetero_secureboost", "vertical_xgboost")


@registry.algorithm
@dataclass(frozen=True)
class SecureBoost(Rounds):
    """Hyper-parameters.

    Attributes:
        profile: which system decides who is shown what: ``paper``, ``fate-2``, ``secretflow`` or
            ``xgboost-open``.
        trees: rounds; several classes or labels have one tree each a round.
        depth: most splits from the root to a leaf.
        rate: shrinkage of leaf weights.
        l2: added to sums of second derivatives.
        bins: of a column.
        min_rows, min_hessian, min_gain: what each side of a split must have, and what it must gain.
        top, other: GOSS: shares of rows with the largest gradients, and of the others, that a tree
            is grown on; 1 and 0 for all rows.
        base: the first score: ``half`` (0) or ``prior`` (the constant that fits best).
    """

    profile: Annotated[str, check.among(*PROFILES)] = "fate-2"
    trees: check.Count = 20
    depth: Annotated[int, partial(check.integer, high=13)] = 3
    rate: check.Positive = 0.3
    l2: check.NonNegative = 0.1
    bins: Annotated[int, partial(check.integer, low=2, high=1024)] = 32
    min_rows: check.Count = 1
    min_hessian: check.NonNegative = 1e-3
    min_gain: check.NonNegative = 0.0
    top: check.AboveZero = 1.0
    other: check.Unit = 0.0
    base: Literal["half", "prior"] = "half"

    quantities: ClassVar[bool] = True
    label_holder: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top + self.other > 1:
            raise check.fail("secureboost: top + other", "at most 1", self.top + self.other)

    @property
    def sends(self) -> frozenset[tuple[str, str, str]]:  # type: ignore[override]
        found = PROFILES[self.profile].sends
        if self.top >= 1:
            return found
        return frozenset(("sample_list", *s[1:]) if s[0] == "ids" else s for s in found)

    @property
    def rounds(self) -> int:
        return self.trees

    def start(self, wire: Wire) -> Learner:
        task = wire.task
        codes = wire.share("bins", lambda: {p: self._cut(wire, p) for p in task.parties})
        limits = Limits(self.l2, self.min_rows, self.min_hessian, self.min_gain)
        rules = Rules(
            self.depth, self.rate, self.bins, limits, self.top, self.other, self.base == "half"
        )
        return Boosting(
            task.parties, codes, task.label, wire.labels, wire.rows, rules, PROFILES[self.profile],
            wire, wire.regrown,
        )  # fmt: skip

    def _cut(self, wire: Wire, party: str) -> NDArray[np.int32]:
        """The bins of a party's columns, (d, N)."""
        kinds = wire.task.schema[party].cardinalities
        return cut_columns(wire.columns(party, gaps=True), wire.rows, self.bins, kinds)[0]

    def facts(self, fed: Federation) -> Facts:
        """With the number of trees a round, which the code of a kind of label does not tell."""
        found, trees = super().facts(fed), fed.stack.first.label.trees
        return replace(found, extra={**found.extra, "trees_a_round": trees})

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        shown = {
            k: getattr(self, k) for k in ("profile", "depth", "rate", "l2", "bins", "base", "trees")
        }
        return Facts(
            self.name, "train", active, parties, classes, aggregation="trees", top=False,
            epochs=self.trees, extra={**shown, "trees_a_round": make_label(classes).trees},
        )  # fmt: skip

    def settled(self) -> str:
        profile = PROFILES[self.profile]
        off = f" Its own protection: {profile.default}." if profile.default else ""
        return f"Profile {self.profile} ({profile.source}).{off}"
