"""Reads another party's columns off sums over single rows: a bin of one row holds its g and h.

The active party knows g and h of every row: from its labels and the trees so far, whose nodes it
told the others. Of a node it decrypts the sums of each column and bin. A bin of one row holds
(g_i, h_i) of that row, and names it where no other row of the node has the same pair. So the bin of
row i in that column is known with certainty, and with it the value but for the width of the bin:

    x_ij = the normal quantile of (b + 1/2) / B    for bin b of B

Other cells are what own columns say of them, by ridge regression on the auxiliary rows. In the
first tree all rows of a class have the same pair; the further trees grow, the more pairs differ.

Attacker: the active party, where counts come with the sums and bins in their order (FATE). Needs
``aux_rows``. One passive party.
Known failure cases: shuffled bins (paper, SecretFlow), sums over k rows (k_anonymous), noise on
sums; large nodes.

Source: the protocol itself, Cheng et al., "SecureBoost", arXiv:1901.08755 (2019), whose active
party decrypts every sum; single rows: this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.inference.leaf_groups import find_leaves, find_trees
from vflsec.inference.ridge_regression import best_of, ridges
from vflsec.plugin import Attack, Facts, Guess, View, registry
from vflsec.trees.profiles import PROFILES

ALIASES = ("single_row_bins",)
FAMILY = "Features of another party"

Floats = NDArray[np.float64]


@registry.attack
@dataclass(frozen=True)
class BinSums(Attack):
    """No hyper-parameters."""

    needs = frozenset(
        {"histogram:all", "partition:all", "sent.partition:all", "labels", "aux_rows"}
    )
    target: ClassVar[str] = "feature"
    world = {"algorithm": "secureboost", "depth": 5}
    seconds: ClassVar[float] = 0.5

    def applicable(self, facts: Facts) -> str:
        profile = PROFILES.get(str(facts.extra.get("profile", "")))
        if profile is None or profile.shuffled or profile.gradients:
            return "bin_sums needs sums with counts in order, as in profile fate-2."
        if len(facts.parties) != 2 or facts.classes != 2 or facts.extra["base"] != "half":
            return "bin_sums needs one passive party, two classes and base = 1/2."
        return ""

    def declines(self, view: View) -> str:
        coded = [p for p in view.victims if view.schema[p].categorical]
        return f"{self.name} needs numeric columns, unlike {coded[0]}'s." if coded else ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        aux, values = view.require_aux()
        rows, bins = view.targets["train"], int(view.facts.extra["bins"])
        ids, found = pin_bins(view)
        own = view.own(aux).double()
        guess, notes = torch.zeros(len(rows), values.shape[1], dtype=torch.float64), {}
        if own.shape[1]:
            fit, _ = best_of(ridges("own", own, values.double(), view.own(rows).double()), values)
            guess = fit.values.clone()
        at = np.searchsorted(ids, rows.cpu().numpy())
        pinned = torch.from_numpy(found[at]).to(guess.device)
        told = torch.special.ndtri((pinned.double() + 0.5) / bins)
        notes = {"pinned": round(float((pinned >= 0).double().mean()), 4)}
        return Guess(self.target, rows, torch.where(pinned >= 0, told, guess), notes=notes)


def pin_bins(view: View) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(sample ids (n,), the bin of each row in each column of the victim (n, d), -1 if unknown)."""
    leaves, table = find_leaves(view), view.received("histogram", "all")
    extra, width = view.facts.extra, 3 * (int(view.facts.extra["bins"]) + 1)
    y = view.require_labels()[leaves.rows].cpu().numpy()
    ids, trees = leaves.rows.cpu().numpy(), find_trees(view, table).cpu().numpy()
    sent, level = table.tensor.flatten(1).cpu().numpy(), table.step.cpu().numpy() % extra["depth"]
    blocks = [int(np.flatnonzero(x)[-1]) // width + 1 for x in sent]
    found = np.full((len(ids), blocks[int(np.flatnonzero(level == 0)[0])]), -1)
    scores = np.zeros((len(ids), 1))
    for k, tree in enumerate(leaves.trees.tolist()):
        g, h = (x[:, 0] for x in view.facts.label.compute_newton(scores, y))
        node = leaves.nodes[:, k].cpu().numpy()
        for m in np.flatnonzero(trees == tree):
            here = climb(node, int(level[m]))
            searched, size = np.unique(here[here >= 0], return_counts=True)
            searched = searched[size > 1]
            sums = sent[m, : blocks[m] * width].reshape(-1, found.shape[1], width // 3, 3)
            if len(searched) == len(sums):
                for place, of in zip(searched, sums, strict=True):
                    _pin(found, np.flatnonzero(here == place), g, h, of)
        total = np.stack([np.bincount(node, x, node.max() + 1) for x in (g, h)])
        weight = -extra["rate"] * total[0] / (total[1] + extra["l2"] + 1e-15)
        scores[:, 0] += weight[node]
    return ids, found


def climb(node: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """The node of each row at a level of its way down to `node`, -1 where it is not so deep."""
    depth = np.floor(np.log2(node + 1)).astype(np.int64)
    up = np.maximum(depth - level, 0)
    return np.where(depth >= level, ((node + 1) >> up) - 1, -1)


def _pin(
    found: NDArray[np.int64], rows: NDArray[np.int64], g: Floats, h: Floats, sums: Floats
) -> None:
    """Write the bins of rows of a node that are alone in one and have a pair of their own."""
    pairs = np.round(np.stack([g[rows], h[rows]], axis=1), 9)
    values, at, count = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    alone = {tuple(v): rows[i] for v, i, c in zip(values, at, count, strict=True) if c == 1}
    for column, b in np.argwhere(sums[:, :-1, 2] == 1):
        row = alone.get(tuple(np.round(sums[column, b, :2], 9)))
        if row is not None:
            found[row, column] = b
