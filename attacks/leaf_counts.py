"""Reads labels off the sizes of leaves, without any known label: the rare class is set apart.

Trees part a rare class from all others, so rows of it stand in small nodes. With n_it the training
rows at the node of row i in tree t, as deep as the attacker was told it, and n of them in all,

    s_i = sum_t gamma^t log(n / n_it)

which is the score of the rarer of two classes. Of more classes each has trees of its own, in which
it is set apart, and its score is the sum over these.

Attacker: any passive party of boosted trees that is told which rows are at which node. Needs the
class shares, and no label.
Known failure cases: two classes of equal shares, which sizes do not name.

Source: this package's own; the instance space is that of Takahashi, Liu, Liu, "Eliminating label
leakage in tree-based vertical federated learning", arXiv:2307.10318 (2023), and gamma as in its
code (github.com/Koukyosyumei/ID2Graph).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec.inference.leaf_groups import count_trees_a_round, find_leaves
from vflsec.plugin import Attack, Guess, View, check, registry

FAMILY = "leaves"


@registry.attack
@dataclass(frozen=True)
class LeafCounts(Attack):
    """Hyper-parameters.

    Attributes:
        gamma: weight of a tree as a share of the weight of the one before.
    """

    gamma: check.AboveZero = 0.6
    needs = frozenset({"partition:all", "prior"})
    optional = frozenset({"sent.partition:all"})
    world = {"algorithm": "secureboost", "trees": 10}
    tries = ({"gamma": 0.9},)
    seconds: ClassVar[float] = 0.05

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        prior, leaves = view.require_prior().cpu(), find_leaves(view)
        rows = view.targets["train"]
        rows = rows[torch.isin(rows, leaves.rows)]
        group, groups = leaves.code()
        size = torch.bincount(group.flatten(), minlength=groups)[group]
        apart = torch.where(leaves.nodes > 0, (len(leaves.rows) / size.double()).log(), 0.0)
        each = count_trees_a_round(view)
        turn = torch.arange(len(leaves.trees), device=apart.device) // each
        apart *= self.gamma**turn
        of = leaves.trees % each
        scores = torch.stack([apart[:, of == c].sum(1) for c in range(each)], dim=1)
        if view.facts.classes == 2:
            scores = scores[:, 0] * (1.0 if prior[1] < prior[0] else -1.0)
        scores = scores[leaves.find(rows)]
        return Guess(self.target, rows, scores, notes={"trees": len(leaves.trees)})
