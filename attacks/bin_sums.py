"""Reads another party's columns off the sums that come back: by single rows, or by marks.

Of a node the active party decrypts the sums of each column and bin, and knows g and h of every row.
A bin of one row holds (g_i, h_i) of that row, and names it where no other row of the node has the
same pair. Without counts too: with g = p - y and h = p (1 - p) sums G, H of several rows have

    H > |G| (1 - |G|),    of one row H = |G| (1 - |G|).

Where bins come in an order of the other party's own (paper, SecretFlow), the sums are those of all
bins up to one; their H grows along bins, for h > 0, so that sorting by it gives the order back and
differences the bins. So the bin of row i in that column is known with certainty, and the value but
for the width of the bin:

    x_ij = the normal quantile of (b + 1/2) / B    for bin b of B

Other cells are what own columns say of them, by ridge regression on the auxiliary rows. In the
first tree all rows of a class have the same pair; the further trees grow, the more pairs differ.

With ``marks = k`` the party deviates. For its own pairs it sends g = 2^-i on k rows of each tree, i
from 0, and 0 on all others: the bits of a sum say which of them are in its bin. Its trees are then
those of its own columns, as splits that follow from such sums are worth nothing.

Attacker: the active party. Needs ``aux_rows``. One passive party.
Known failure cases: without marks sums over k rows (k_anonymous), noise on sums, large nodes; with
marks noise on sums, and grids of g so coarse that few marks fit (range_check).

Source: the protocol itself, Cheng et al., "SecureBoost", arXiv:1901.08755 (2019), whose active
party decrypts every sum; marks: Weng, Zhang, Xue, Wei, Ji, Zong, "Privacy leakage of real-world
vertical federated learning", arXiv:2011.09290 (2020), "reverse sum"; single rows and the order:
this package's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.inference.leaf_groups import find_leaves, find_trees
from vflsec.inference.ridge_regression import choose_best, fit_ridges
from vflsec.plugin import Attack, Facts, Guess, Own, Policy, View, check, registry
from vflsec.trees.profiles import PROFILES

ALIASES = ("single_row_bins", "reverse_sum")
FAMILY = "features"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@registry.attack
@dataclass(frozen=True)
class BinSums(Attack):
    """Hyper-parameters.

    Attributes:
        marks: rows that are marked in each tree; 0 for an honest party.
    """

    marks: Annotated[int, partial(check.integer, low=0, high=52)] = 0
    needs = frozenset({"histogram:all", "own_pair:all", "aux_rows"})
    optional = frozenset({"partition:all", "sent.partition:all"})
    target: ClassVar[str] = "feature"
    world = {"algorithm": "secureboost", "depth": 5}
    seconds: ClassVar[float] = 0.5
    numeric_only: ClassVar[bool] = True

    def policy(self) -> Policy | None:
        return Marks(self.marks) if self.marks else None

    def applicable(self, facts: Facts) -> str:
        profile = PROFILES.get(str(facts.extra.get("profile", "")))
        if profile is None or profile.gradients:
            return self.explain_need("encrypted gradients of trees")
        return "" if len(facts.parties) == 2 else self.explain_need("one passive party")

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        aux, values = view.require_aux()
        rows, bins = view.targets["train"], int(view.facts.extra["bins"])
        ids, found = pin_bins(view, marked=self.marks > 0)
        own = view.own(aux).double()
        guess = torch.zeros(len(rows), values.shape[1], dtype=torch.float64)
        if own.shape[1]:
            fit, _ = choose_best(
                fit_ridges("own", own, values.double(), view.own(rows).double()), values
            )
            guess = fit.values.clone()
        pinned = torch.full(guess.shape, -1)
        of = rows.cpu().numpy()
        there = np.isin(of, ids)
        pinned[torch.from_numpy(there)] = torch.from_numpy(found[np.searchsorted(ids, of[there])])
        pinned = pinned.to(guess.device)
        told = torch.special.ndtri((pinned.double() + 0.5) / bins)
        notes = {"pinned": round(float((pinned >= 0).double().mean()), 4)}
        return Guess(self.target, rows, torch.where(pinned >= 0, told, guess), notes=notes)


@dataclass(frozen=True)
class Marks(Policy):
    """Powers of two in the place of gradients, on other rows in each tree."""

    count: int

    def pairs(self, values: Floats, own: Own) -> Floats:
        used, key = np.flatnonzero(values[:, 2]), f"trees of {own.context['replica']}"
        tree = own.memory[key] = own.memory.get(key, -1) + 1
        at = np.roll(used, -tree * self.count)[: self.count]
        out = values.copy()
        out[:, 0] = 0.0
        out[at, 0] = 2.0 ** -np.arange(len(at))
        return out


class Node(NamedTuple):
    """What is known of a node that was searched: places of its rows (m,), their pairs (m, 2), and
    the sums (d, B + 1, 2 or 3) of g, h and perhaps rows by column and bin, missing values last."""

    rows: Ints
    pairs: Floats
    sums: Floats


def pin_bins(view: View, *, marked: bool = False) -> tuple[Ints, Ints]:
    """(sample ids (n,), the bin of each row in each column of the victim (n, d), -1 if unknown)."""
    ids = view.received("own_pair", "all").rows.unique().cpu().numpy()
    found = None
    for node in list_nodes(view, ids):
        if found is None:
            found = np.full((len(ids), len(node.sums)), -1)
        (read_marks if marked else read_single)(found, node)
    assert found is not None  # the root is searched first
    return ids, found


def list_nodes(view: View, ids: Ints) -> Iterator[Node]:
    """The nodes of all trees, the root of the first one first."""
    table, own = view.received("histogram", "all"), view.received("own_pair", "all")
    trees, of = (find_trees(view, t).cpu().numpy() for t in (table, own))
    place, pairs = np.searchsorted(ids, own.rows.cpu().numpy()), own.tensor.cpu().numpy()
    profile, depth = PROFILES[view.facts.extra["profile"]], int(view.facts.extra["depth"])
    bins, sent = int(view.facts.extra["bins"]) + 1, table.tensor.flatten(1).cpu().numpy()
    wide, level = 3 if profile.counts else 2, table.step.cpu().numpy() % depth
    blocks = [int(np.flatnonzero(x)[-1]) // (wide * bins) + 1 for x in sent]
    nodes = _find_nodes(view, ids)
    for m in np.lexsort((level, trees)):
        of_tree = of == trees[m]
        known = nodes.get(int(trees[m]), np.zeros(len(ids), dtype=np.int64))
        here = climb(known[place[of_tree]], int(level[m]))
        searched = [k for k in np.unique(here) if k >= 0 and (here == k).sum() > 1]
        sums = sent[m, : blocks[m] * wide * bins].reshape(-1, blocks[0], bins, wide)
        if profile.shuffled:
            sums = order_bins(sums)
        for k, each in zip(searched, sums if len(sums) == len(searched) else (), strict=False):
            yield Node(place[of_tree][here == k], pairs[of_tree][here == k], each)


def _find_nodes(view: View, ids: Ints) -> dict[int, Ints]:
    """The deepest node that is known of each row, 0 if none, (n,) by tree."""
    if ("received", "partition", "all", view.party) not in view.tables:
        return {}  # it owns every split
    leaves = find_leaves(view)
    at = np.searchsorted(ids, leaves.rows.cpu().numpy()).clip(max=len(ids) - 1)
    there, out = ids[at] == leaves.rows.cpu().numpy(), {}
    for k, tree in enumerate(leaves.trees.tolist()):
        out[tree] = np.zeros(len(ids), dtype=np.int64)
        out[tree][at[there]] = leaves.nodes[:, k].cpu().numpy()[there]
    return out


def order_bins(sums: Floats) -> Floats:
    """Sums of each bin in order, from those up to each bin in any order, (..., B + 1, 2)."""
    order = np.argsort(sums[..., 1], axis=-1, kind="stable")
    return np.diff(np.take_along_axis(sums, order[..., None], axis=-2), axis=-2, prepend=0.0)


def climb(node: Ints, level: int) -> Ints:
    """The node of each row at a level of its way down to `node`, -1 where it is not so deep."""
    depth = np.floor(np.log2(node + 1)).astype(np.int64)
    up = np.maximum(depth - level, 0)
    return np.where(depth >= level, ((node + 1) >> up) - 1, -1)


def read_single(found: Ints, node: Node) -> None:
    """Write the bins (n, d) of rows that are alone in one and have a pair of their own."""
    pairs, sums = np.round(node.pairs, 9), node.sums[:, :-1]
    values, at, count = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    alone = {tuple(v): node.rows[i] for v, i, c in zip(values, at, count, strict=True) if c == 1}
    for column, b in np.argwhere(sums[..., 2] == 1 if sums.shape[2] > 2 else sums[..., 1] > 0):
        row = alone.get(tuple(np.round(sums[column, b, :2], 9)))
        if row is not None:
            found[row, column] = b


def read_marks(found: Ints, node: Node) -> None:
    """Write the bins (n, d) of marked rows, largest mark first."""
    marked = np.flatnonzero(node.pairs[:, 0] > 0)
    marked = marked[np.argsort(-node.pairs[marked, 0])]
    rest, every = node.sums[..., 0].copy(), np.arange(len(node.sums))
    read = np.empty((len(marked), len(rest)), dtype=np.int64)
    for k, i in enumerate(marked):
        read[k] = rest.argmax(axis=1)
        rest[every, read[k]] -= node.pairs[i, 0]
    read[:, rest.any(axis=1)] = -1  # there is more in some sum than marks
    read[read == rest.shape[1] - 1] = -1  # no value
    found[node.rows[marked]] = read
