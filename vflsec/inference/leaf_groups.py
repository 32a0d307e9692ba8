"""Which rows came to the same leaf, as far as an adversary was told: what tree attacks read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.core.view import Table, View
from vflsec.errors import ThreatModelError

_ROUNDS = 2**20
"""More rounds than any training has."""
_PIECE = 2**18  # messages that are looked at together


@dataclass(frozen=True)
class Leaves:
    """The deepest node that is known of each row in each tree.

    Attributes:
        rows: (n,) sample ids, ascending.
        nodes: (n, T) node in a heap, 0 where nothing of a row is known; only trees of which
            something is.
        trees: (T,) number of each tree, see :func:`find_trees`.
    """

    rows: Tensor
    nodes: Tensor
    trees: Tensor

    def find(self, rows: Tensor) -> Tensor:
        """Places of sample ids that are all there."""
        return torch.searchsorted(self.rows, rows)

    def among(self, *rows: Tensor) -> Leaves:
        """The same of those of these rows that are there."""
        there = torch.isin(self.rows, torch.cat(rows))
        return Leaves(self.rows[there], self.nodes[there], self.trees)

    def code(self) -> tuple[Tensor, int]:
        """(group (n, T), number of groups): rows at one node of one tree are of one group."""
        wide = int(self.nodes.max()) + 1
        each = self.nodes + wide * torch.arange(len(self.trees), device=self.nodes.device)
        values, group = each.unique(return_inverse=True)
        return group, len(values)

    def count_company(self, weight: Tensor) -> Tensor:
        """Of each row the mean over trees of the weights (n, k) of all rows at its node, (n, k)."""
        group, groups = self.code()
        out = torch.zeros(len(self.rows), weight.shape[1], dtype=weight.dtype, device=weight.device)
        for t in range(group.shape[1]):
            sums = torch.zeros(groups, weight.shape[1], dtype=weight.dtype, device=weight.device)
            out += sums.index_add_(0, group[:, t], weight)[group[:, t]]
        return out / group.shape[1]

    def take(self, most: int) -> Leaves:
        """The same of the first `most` trees."""
        return Leaves(self.rows, self.nodes[:, :most], self.trees[:most])


def list_sides(leaves: Leaves) -> Tensor:
    """Which way each row went at each split on its way, (n, splits): -1 left, 1 right, 0 not there.

    The splits of all trees stand beside each other, by tree and node.
    """
    wide = int(leaves.nodes.max()) + 1
    at, keys, sides = [], [], []
    child = leaves.nodes.clone()
    while bool((child > 0).any()):
        row, tree = (child > 0).nonzero(as_tuple=True)
        here = child[row, tree]
        at.append(row)
        keys.append(tree * wide + (here - 1).div(2, rounding_mode="floor"))
        sides.append(1.0 - 2.0 * (here % 2).double())
        child = (child - 1).div(2, rounding_mode="floor").clamp_min(0)
    splits, column = torch.cat(keys).unique(return_inverse=True)
    out = torch.zeros(len(leaves.rows), len(splits), dtype=torch.float64, device=child.device)
    out[torch.cat(at), column] = torch.cat(sides)
    return out


def find_leaves(view: View) -> Leaves:
    """What a view tells of the leaves of training rows: nodes received, and sides of own splits.

    Raises:
        ThreatModelError: no ``partition`` was received.
    """
    tables = [
        t for (_, kind, form, _), t in view.tables.items() if kind == "partition" and form == "all"
    ]
    if not any(k[:3] == ("received", "partition", "all") for k in view.tables):
        view.received("partition", "all")  # says what is missing
    parts = [t.take(slice(i, i + _PIECE)) for t in tables for i in range(0, len(t), _PIECE)]
    rows = torch.cat([p.rows.unique() for p in parts]).unique()
    trees = torch.cat([find_trees(view, p).unique() for p in parts]).unique()
    if not len(trees):
        raise ThreatModelError("no row of any tree is known in this view.")
    nodes = torch.zeros(len(rows) * len(trees), dtype=torch.int64, device=rows.device)
    for p in parts:
        tree = torch.searchsorted(trees, find_trees(view, p))
        at = torch.searchsorted(rows, p.rows) * len(trees) + tree
        nodes.scatter_reduce_(0, at, p.tensor.reshape(-1).long(), "amax")
    return Leaves(rows, nodes.reshape(len(rows), len(trees)), trees)


def count_trees_a_round(view: View) -> int:
    """How many trees a round has: one for each class beyond two, label or number."""
    return int(view.facts.extra.get("trees_a_round", 1))


def find_trees(view: View, table: Table) -> Tensor:
    """The number of the tree that each row of a table is of, (m,), which grows over the training.

    A step is a level of a tree, counted over all trees, and a tree is of one epoch: steps of two
    epochs are of two trees. The number modulo the trees of a round says which of them it is.
    """
    depth = int(view.facts.extra.get("depth", 1))
    most = _ROUNDS * count_trees_a_round(view)
    return table.epoch * most + table.step.div(depth, rounding_mode="floor")
