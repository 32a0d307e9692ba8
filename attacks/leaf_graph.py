"""Groups rows that share leaves, without any known label (ID2Graph).

Rows are joined by the trees in which they share a node, earlier trees more:

    W_ij = sum_t gamma^t 1[l_it = l_jt]

Louvain's method finds communities of this graph; whole groups of rows that share every node move
together, and only as many trees are used as leave at most `most` such groups. K-means splits the
rows by their communities, one-hot, and with `columns` by own columns beside them into as many
clusters as there are classes. These get their names by size: the largest is the class with the
largest granted share. Score of class c: minus the squared distance to the centre of its cluster.

Attacker: any passive party of boosted trees that is told which rows are at which node. Needs the
class shares, and no label.
Known failure cases: classes of equal shares, which sizes do not name; leaves that are not pure.

Source: Takahashi, Liu, Liu, "Eliminating label leakage in tree-based vertical federated learning",
arXiv:2307.10318 (2023), gamma as in its code (github.com/Koukyosyumei/ID2Graph: 0.6 for boosting);
Blondel, Guillaume, Lambiotte, Lefebvre, "Fast unfolding of communities in large networks",
arXiv:0803.0476 (2008). Names by size: this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.inference.clustering_points import assign, k_means
from vflsec.inference.leaf_groups import Leaves, find_leaves
from vflsec.plugin import Attack, Guess, View, check, registry

ALIASES = ("id2graph",)
FAMILY = "leaves"

Floats = NDArray[np.float64]


@registry.attack
@dataclass(frozen=True)
class LeafGraph(Attack):
    """Hyper-parameters.

    Attributes:
        gamma: weight of a tree as a share of the weight of the one before.
        columns: weight of own columns beside communities; 0 for communities alone.
        most: groups of rows at most; further trees are left out.
        restarts: starts of k-means.
    """

    gamma: check.AboveZero = 0.6
    columns: check.NonNegative = 0.0
    most: Annotated[int, check.at_least(2)] = 1500
    restarts: check.Count = 8
    needs = frozenset({"partition:all", "prior"})
    optional = frozenset({"sent.partition:all"})
    world = {"algorithm": "secureboost", "trees": 10, "depth": 5}
    tries = ({"columns": 1.0}, {"gamma": 1.0})
    seconds: ClassVar[float] = 2.0

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        prior, leaves = view.require_prior().cpu().numpy(), find_leaves(view)
        rows = view.targets["train"]
        rows = rows[torch.isin(rows, leaves.rows)]
        leaves, group, nodes = _merge(leaves, self.most)
        member = find_communities(_join(nodes, group, self.gamma))
        at = torch.from_numpy(member)[group]
        x = torch.nn.functional.one_hot(at, int(member.max()) + 1).double()
        if self.columns:
            own = view.design(leaves.rows).double().cpu()
            own = (own - own.mean(0)) / own.std(0).clamp_min(1e-12)
            x = torch.cat([x, self.columns * own / max(own.shape[1], 1) ** 0.5], dim=1)
        made = k_means(x, view.facts.classes, rng, restarts=self.restarts)
        sizes = torch.bincount(made.member, minlength=view.facts.classes).numpy()
        of_class = assign(sizes[:, None] * prior[None, :])
        scores = -made.distances(x)[leaves.find(rows).cpu()][:, of_class]
        notes = {"trees": len(leaves.trees), "communities": int(member.max()) + 1}
        if view.facts.classes == 2:
            scores = scores[:, 1] - scores[:, 0]
        return Guess(self.target, rows, scores, notes=notes)


def _merge(leaves: Leaves, most: int) -> tuple[Leaves, Tensor, NDArray[np.int64]]:
    """(leaves of the trees used, group of each row (n,), nodes of each group (S, T))."""
    used = len(leaves.trees)
    while True:
        values, group = leaves.nodes[:, :used].unique(dim=0, return_inverse=True)
        if len(values) <= most or used == 1:
            return leaves.take(used), group.cpu(), values.cpu().numpy()
        used -= 1


def _join(nodes: NDArray[np.int64], group: Tensor, gamma: float) -> Floats:
    """Weights between all rows of one group and all rows of another, (S, S)."""
    size = torch.bincount(group).numpy().astype(np.float64)
    out = np.zeros((len(nodes), len(nodes)))
    for t in range(nodes.shape[1]):
        out += gamma**t * (nodes[:, t, None] == nodes[None, :, t])
    found: Floats = out * size[:, None] * size[None, :]
    return found


def find_communities(weights: Floats, levels: int = 10) -> NDArray[np.int64]:
    """The community of each node of a graph (S, S) by Louvain's method, numbered from 0."""
    member = np.arange(len(weights))
    for _ in range(levels):
        moved = _move_nodes(weights)
        names, moved = np.unique(moved, return_inverse=True)
        member = moved[member]
        if len(names) == len(weights):
            break
        hot = np.eye(len(names))[moved]
        weights = hot.T @ weights @ hot
    return np.asarray(member, dtype=np.int64)


def _move_nodes(weights: Floats, passes: int = 20) -> NDArray[np.int64]:
    """Move each node to the neighbouring community that raises modularity most, until none does."""
    n, strength = len(weights), weights.sum(axis=1)
    total = max(float(strength.sum()), 1e-300)
    member, inside = np.arange(n), strength.copy()
    for _ in range(passes):
        changed = False
        for i in range(n):
            links = np.bincount(member, weights[i], n)
            links[member[i]] -= weights[i, i]
            inside[member[i]] -= strength[i]
            gain = links - strength[i] * inside / total
            best = int(gain.argmax())
            if gain[best] <= gain[member[i]] + 1e-12 * total:
                best = int(member[i])
            changed |= best != member[i]
            member[i] = best
            inside[best] += strength[i]
        if not changed:
            break
    return member
