"""Reads labels off leaf weights that are sent in plain: they are the model's own answers.

The weights w_t(i) of the leaves of row i add up to the score that the system gives it,

    s_i = sum_t w_t(i),

and a leaf of the first tree tells how many of its n rows are positive, exactly, if the first score
and its probability p0 are public:

    n+ = n p0 + w (n p0 (1 - p0) + l2) / rate

which is kept as a note. With several classes the sums of each class's trees are compared.

Attacker: any passive party of a system that shows every party the whole model and which rows are at
which node (XGBoost's vertical mode). Needs no known row.
Known failure cases: weights that stay with the label holder. On rows that the system itself
predicts badly it is as bad, so it tells less than open gradients do.

Source: the protocol itself; counts by leaf: XGBoost's weight -rate G / (H + l2), Chen and Guestrin,
KDD 2016, eq. 5, solved for the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.inference.leaf_groups import count_trees_a_round, find_leaves, find_trees
from vflsec.plugin import Attack, Facts, Guess, View, registry
from vflsec.trees.profiles import FIELDS, PROFILES

FAMILY = "open_trees"
_HIDDEN = "no leaf weight is shown to this party under this profile."
NODE, WEIGHT = FIELDS.index("node"), FIELDS.index("weight")


@registry.attack
@dataclass(frozen=True)
class LeafWeight(Attack):
    """No hyper-parameters."""

    needs = frozenset({"tree:all", "partition:all"})
    quantities: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    world = {"algorithm": "secureboost", "profile": "xgboost-open", "trees": 10}

    def applicable(self, facts: Facts) -> str:
        profile = PROFILES.get(str(facts.extra.get("profile", "")))
        return "" if profile is None or "weight" in profile.tree else _HIDDEN

    def declines(self, view: View) -> str:
        return "" if read_weights(view) else _HIDDEN

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        leaves, weights = find_leaves(view), read_weights(view)
        rows, outputs = view.targets["train"], count_trees_a_round(view)
        rows = rows[torch.isin(rows, leaves.rows)]
        nodes = leaves.nodes[leaves.find(rows)]
        scores = torch.zeros(len(rows), outputs, dtype=torch.float64, device=rows.device)
        for k, tree in enumerate(leaves.trees.tolist()):
            if tree in weights:
                scores[:, tree % outputs] += weights[tree][nodes[:, k]]
        if "of_label" in view.facts.extra:
            scores = scores[:, [int(view.facts.extra["of_label"])]]
        notes = {}
        if view.facts.classes == 2 and outputs == 1 and 0 in weights:
            every = leaves.nodes[:, leaves.trees.tolist().index(0)]
            notes = {"positives": count_positives(view, every, weights[0])}
        final = scores.squeeze(1) if scores.shape[1] == 1 else scores
        return Guess(self.target, rows, final, notes=notes)


def read_weights(view: View) -> dict[int, Tensor]:
    """The weight of each leaf, by tree, 0 for nodes that are none."""
    table = view.received("tree", "all")
    tree = find_trees(view, table)
    size = 2 ** (int(view.facts.extra["depth"]) + 1)
    out: dict[int, Tensor] = {}
    for t in tree.unique().tolist():
        told = table.tensor[tree == t].reshape(-1, len(FIELDS)).double()
        told = told[told[:, WEIGHT].isfinite() & (told[:, NODE] > 0)]
        if len(told):
            out[t] = torch.zeros(size, dtype=torch.float64, device=told.device)
            out[t][told[:, NODE].long()] = told[:, WEIGHT]
    return out


def count_positives(view: View, nodes: Tensor, weight: Tensor) -> dict[str, float]:
    """How many rows of each leaf of the first tree are positive, by node."""
    extra = view.facts.extra
    p0 = 0.5
    if extra["base"] == "prior":
        p0 = float(view.require_prior()[1])
    out: dict[str, float] = {}
    for node, n in zip(*nodes.unique(return_counts=True), strict=True):
        curve = float(n) * p0 * (1 - p0) + extra["l2"]
        found = float(n) * p0 + float(weight[node]) * curve / extra["rate"]
        out[str(int(node))] = round(found, 6)
    return out
