"""Grafting-LDP: trees are grown on randomised labels, and the active party's branches on true ones.

Each label is kept with probability q = e^eps / (e^eps + C - 1), once, as in label_dp, and trees are
grown on what comes out. Of each tree the active party then cuts what is below the last splits of
other parties, grows it anew on the true labels with its own columns, without a message, and weighs
all leaves by the true labels. The next tree is grown on scores of the trees as they were before, so
that nothing that crosses depends on a true label but through its randomised one.

Hook: labels, regrow. Owner: the active party.
Guarantee: epsilon-label-DP of what passive parties see in the profiles ``paper`` and
``secretflow``: regrown branches come after it and are not shown. None in ``fate-2`` and
``xgboost-open``, which show the node of every row, of regrown branches too. Does not stop:
inference of what row sets grown on randomised labels say, as label_dp; predictions of the active
party, which follow the true labels.

Source: Takahashi, Liu, Liu, "Eliminating label leakage in tree-based vertical federated learning",
arXiv:2307.10318 (2023), the defense Grafting-LDP; scores before grafting: this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vflsec.defenses.id_lmid import find_hidden, find_open_nodes
from vflsec.defenses.label_dp import LabelDP, Released
from vflsec.plugin import Guarantee, Own, RunFacts, registry

ALIASES = ("grafting_ldp",)


@registry.defense
@dataclass(frozen=True)
class Grafting(Released):
    """No hyper-parameters."""

    accountant = "closed form of randomised response"
    by_row = True
    world = {"algorithm": "secureboost", "profile": "paper"}

    def labels(self, y: Tensor, own: Own) -> Tensor:
        own.memory["truth"] = y
        return LabelDP().labels(y, own)

    def regrow(self, own: Own) -> Tensor | None:
        truth: Tensor = own.memory["truth"]
        return truth

    def acts_in(self, profile: str) -> frozenset[str]:
        return find_hidden(self.acts_on, profile)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if shown := find_open_nodes(facts):
            return Guarantee(reason=f"{shown}, also of branches regrown on true labels")
        found = super().guarantee(strength, facts)
        if found.epsilon is None:
            return found
        return replace(
            found,
            answers=False,
            against="the passive parties, who see what trees on randomised labels send",
            leaves=f"predictions, and whatever else follows from regrown branches, {found.leaves}",
        )
