"""Grows boosted trees level by level on columns of several parties, and sends what crosses.

With all columns at one party it is ordinary boosting; with more it finds the same trees, bit for
bit: totals of nodes come from the active party's own sums, and of equal splits the lower party's,
column's and bin's is taken.

Nodes are numbered as in a heap: 0 is the root, 2 i + 1 and 2 i + 2 are the children of i. A message
about a level of a tree has the step ``tree * depth + level``.

Source: Cheng, Fan, Jin, Liu, Chen, Papadopoulos, Yang, "SecureBoost: a lossless federated learning
framework", arXiv:1901.08755; Chen and Guestrin, "XGBoost", KDD 2016, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflsec.core.message_kinds import Kind
from vflsec.core.policy import RowSets
from vflsec.label import Label
from vflsec.trees.histograms import (
    Best,
    Floats,
    Ints,
    Limits,
    add_up,
    add_up_nodes,
    find_best,
    take_left,
)
from vflsec.trees.profiles import FIELDS, Profile

if TYPE_CHECKING:
    from vflsec.core.rounds import Wire

NONE = -1
"""Owner of a node that is not split."""


@dataclass(frozen=True)
class Rules:
    """Hyper-parameters of a training.

    Attributes:
        depth: most splits from the root to a leaf.
        rate: shrinkage of leaf weights.
        bins: of a column, without the one for missing values.
        limits: when a node may be split.
        top, other: GOSS: shares of rows with the largest gradients, and of the others, on which a
            tree is grown; 1 and 0 for all.
        half: the first score is 0; else the constant that fits best.
    """

    depth: int = 3
    rate: float = 0.3
    bins: int = 32
    limits: Limits = field(default_factory=Limits)
    top: float = 1.0
    other: float = 0.0
    half: bool = True

    @property
    def is_sampled(self) -> bool:
        """Whether a tree is grown on some of the rows."""
        return self.top < 1


@dataclass
class Tree:
    """One tree as arrays over heap nodes.

    Attributes:
        owner: place of the party whose column splits the node, or :data:`NONE`.
        column, cut, missing_left, gain: of the split.
        weight: of a leaf, shrunk.
        is_shared: whether the passive parties took part.
    """

    owner: Ints
    column: Ints
    cut: Ints
    missing_left: NDArray[np.bool_]
    gain: Floats
    weight: Floats
    is_shared: bool

    @classmethod
    def plant(cls, depth: int, is_shared: bool) -> Tree:
        """A tree of one leaf with room for `depth` levels of splits."""
        size = 2 ** (depth + 1) - 1
        zero = np.zeros(size, dtype=np.int64)
        return cls(
            zero + NONE, zero.copy(), zero.copy(), zero.astype(bool), np.full(size, np.nan),
            np.zeros(size), is_shared,
        )  # fmt: skip

    def find_right(self, nodes: Ints, codes: NDArray[np.int32], bins: int) -> NDArray[np.bool_]:
        """Whether rows at split nodes (n,) of one party go right.

        Args:
            nodes: of the rows.
            codes: that party's bins of these rows, (d, n).
            bins: number of the bin for missing values.
        """
        code = codes[self.column[nodes], np.arange(len(nodes))]
        left = np.where(code == bins, self.missing_left[nodes], code <= self.cut[nodes])
        return ~left


@dataclass
class Boosting:
    """A training: give it rounds with :meth:`take_round`.

    Attributes:
        parties: names, the active one first.
        codes: bins of all N rows by party, (d, N).
        label: kind of label.
        y: labels of the training rows, as `label` boosts them.
        rows: (n,) sample ids of the training rows.
        rules, profile: how, and who is shown what.
        sender: the way to send.
        own_y: labels by which the active party regrows branches that have no split of another
            party, and weighs leaves; None if `y` is what it has.
        trees: grown so far, and regrown.
        scores: (n, trees a round) of the training rows, of trees as they were grown, on which
            alone depends what others are shown.
    """

    parties: Sequence[str]
    codes: Mapping[str, NDArray[np.int32]]
    label: Label
    y: Floats | Ints
    rows: Ints
    rules: Rules
    profile: Profile
    sender: Wire
    own_y: Floats | Ints | None = None
    trees: list[Tree] = field(default_factory=list)

    def __post_init__(self) -> None:
        k = self.label.trees
        self.start = np.zeros(k) if self.rules.half else self.label.compute_start(self.y)
        self.scores = np.tile(self.start, (len(self.rows), 1))
        self.own_scores = self.scores.copy()
        self._own = {p: np.ascontiguousarray(c[:, self.rows]) for p, c in self.codes.items()}
        self._classes = self._count_classes()

    def _count_classes(self) -> Floats:
        """What row sets are counted by: classes of each row (n, C), or 1 where there are none."""
        if self.y.ndim == 1:
            return np.eye(self.label.sides)[self.y.astype(np.int64)]
        if self.label.floating:
            return np.ones((len(self.y), 1))
        return np.asarray(self.y, dtype=np.float64)

    @property
    def guest(self) -> str:
        """The active party."""
        return self.parties[0]

    @property
    def hosts(self) -> Sequence[str]:
        """The passive parties."""
        return self.parties[1:]

    def take_round(self) -> None:
        """Grow one tree for each score."""
        g, h = self.label.compute_newton(self.scores, self.y)
        weight = self._sample(g)
        own = self.own_y
        mine = None if own is None else self.label.compute_newton(self.own_scores, own)
        for k in range(self.label.trees):
            pairs = np.stack([g[:, k] * weight, h[:, k] * weight, (weight > 0) * 1.0], axis=1)
            tree, node = _Growth(self, pairs).grow()
            self.scores[:, k] += tree.weight[node]
            if mine is not None:
                tree = self._regrow(
                    tree, np.stack([x[:, k] for x in (*mine, np.ones_like(g))], axis=1)
                )
            self.trees.append(tree)

    def _regrow(self, tree: Tree, pairs: Floats) -> Tree:
        """A tree with the branches below the last splits of other parties grown on pairs (n, 3)."""
        holds = tree.owner > 0
        for child in range(len(holds) - 1, 0, -1):
            holds[(child - 1) // 2] |= holds[child]
        cut = replace(tree, owner=np.where(holds, tree.owner, NONE), is_shared=False)
        growth = _Growth(self, pairs, cut)
        grown, node = growth.grow()
        self.own_scores[:, len(self.trees) % self.label.trees] += grown.weight[node]
        if tree.is_shared:
            growth.tell_all()
        return grown

    def _sample(self, g: Floats) -> Floats:
        """GOSS: the weight of each row in this round, 0 for rows that are left out, (n,)."""
        n, rules = len(g), self.rules
        if not rules.is_sampled:
            return np.ones(n)
        order = np.argsort(-np.abs(g).sum(axis=1), kind="stable")
        top, other = int(np.ceil(rules.top * n)), int(np.ceil(rules.other * n))
        rng = self.sender.rng("goss", len(self.trees))
        weight = np.zeros(n)
        weight[order[:top]] = 1.0
        weight[rng.permutation(order[top:])[:other]] = (1 - rules.top) / max(rules.other, 1e-12)
        return weight

    def predict(self, rows: Ints) -> Floats:
        """Answers (b, outputs) for sample ids (b,); passive parties send which way rows go."""
        own = {p: c[:, rows] for p, c in self.codes.items()}
        for k, host in enumerate(self.hosts, 1):
            bits = [self._list_bits(tree, k, own[host]) for tree in self.trees]
            if bits := [b for b in bits if b.shape[1]]:
                self.sender.send(
                    "partition", host, self.guest, np.concatenate(bits, axis=1), rows,
                    name="bits", phase="predict",
                )  # fmt: skip
        scores = np.tile(self.start, (len(rows), 1))
        for t, tree in enumerate(self.trees):
            scores[:, t % self.label.trees] += tree.weight[self.find_leaves(tree, own)]
        return self.label.form_answers(scores)

    def _list_bits(self, tree: Tree, k: int, codes: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Which way rows go at each node of party `k`, (b, nodes)."""
        nodes = np.flatnonzero(tree.owner == k)
        at = [tree.find_right(np.full(codes.shape[1], i), codes, self.rules.bins) for i in nodes]
        return np.array(at, dtype=np.uint8).reshape(len(nodes), codes.shape[1]).T

    def find_leaves(self, tree: Tree, codes: Mapping[str, NDArray[np.int32]]) -> Ints:
        """The leaf of each row, (b,), by the bins (d, b) of each party."""
        node = np.zeros(next(iter(codes.values())).shape[1], dtype=np.int64)
        for _ in range(self.rules.depth):
            self.move(tree, node, codes)
        return node

    def move(self, tree: Tree, node: Ints, codes: Mapping[str, NDArray[np.int32]]) -> Ints:
        """Move rows at split nodes one level down, in place; returns who owned each one's split."""
        owner = tree.owner[node]
        for k, party in enumerate(self.parties):
            at = np.flatnonzero(owner == k)
            if len(at):
                right = tree.find_right(node[at], codes[party][:, at], self.rules.bins)
                node[at] = 2 * node[at] + 1 + right
        return owner


class _Growth:
    """One tree while it grows."""

    def __init__(self, of: Boosting, pairs: Floats, start: Tree | None = None) -> None:
        """`pairs`: g, h and 1 of each row, (n, 3); zeros for rows that GOSS leaves out.

        `start`: a tree to grow on, by the active party alone.
        """
        self.of, self.pairs = of, pairs
        self.sent: dict[str, Floats] = {}
        self.is_probe = False
        self.number = len(of.trees)
        self.name = str(self.number % of.label.trees) if of.label.trees > 1 else ""
        self.total = of._classes.sum(axis=0)
        used = of._classes[pairs[:, 2] > 0].sum(axis=0)  # GOSS names these rows
        may = bool(self._ask(np.stack([self.total, used])).all())
        self.tree = start or Tree.plant(of.rules.depth, may and len(of.hosts) > 0)
        self.shared = np.zeros(len(self.tree.owner), dtype=bool)
        self.shared[0] = self.tree.is_shared
        self.node = np.zeros(len(of.rows), dtype=np.int64)

    def _ask(self, counts: Floats) -> NDArray[np.bool_]:
        """Which row sets with these class counts (..., C) passive parties may learn."""
        return self.of.sender.shows(RowSets(self.number, counts, self.total))

    def _send(self, kind: Kind, host: str, payload: ArrayLike, level: int, **about: object) -> None:
        """Send to a host, or from it with ``up=True``."""
        ends = (self.of.guest, host)
        sender, receiver = ends[::-1] if about.pop("up", False) else ends
        step = self.number * self.of.rules.depth + level
        self.of.sender.send(kind, sender, receiver, payload, step=step, **about)  # type: ignore[arg-type]

    def grow(self) -> tuple[Tree, Ints]:
        """The tree, and the leaf of each training row."""
        of, tree = self.of, self.tree
        if tree.is_shared:
            self._send_pairs()
        for level in range(of.rules.depth):
            first = 2**level - 1
            nodes = np.arange(first, 2 * first + 1)
            alive = np.bincount(self.node, minlength=len(tree.owner))[nodes] > 1
            nodes = nodes[alive & ((level == 0) | (tree.owner[(nodes - 1) // 2] != NONE))]
            free = nodes[tree.owner[nodes] == NONE]
            if len(free) and self._split(free, level):
                continue
            if len(free) == len(nodes):
                break
            of.move(tree, self.node, of._own)
        sums = add_up_nodes(self.node, self.pairs, len(tree.owner))
        weight = -of.rules.rate * sums[:, 0] / (sums[:, 1] + of.rules.limits.l2 + 1e-15)
        tree.weight = np.where(sums[:, 2] > 0, weight, 0.0)
        if tree.is_shared and "weight" in of.profile.tree:
            self._show_nodes(np.unique(self.node), of.rules.depth - 1)
        return tree, self.node

    def _send_pairs(self) -> None:
        """Gradient pairs of the rows that the tree is grown on.

        Where the active party sends others than its own, it takes no split that follows from them.
        """
        of, used = self.of, self.pairs[:, 2] > 0
        ids, first = of.rows[used], self.number * self.of.rules.depth
        pairs = of.sender.change_pairs(of.guest, self.pairs)
        self.is_probe = pairs is not self.pairs
        for host in of.hosts:
            self._send("sample_list" if of.rules.is_sampled else "ids", host, ids, 0, rows=ids)
            self.sent[host] = of.sender.change_pairs(host, pairs)
            told = self.sent[host][used, :2]
            if of.profile.gradients:
                self._send("gradient_pair", host, told, 0, rows=ids)
            else:  # both derivatives packed into one cipher
                cipher = np.zeros(len(ids), dtype=np.int64)
                self._send("ciphertext", host, cipher, 0, name="gradient_pair")
                of.sender.derive("own_pair", host, of.guest, told, ids, step=first)

    def _split(self, nodes: Ints, level: int) -> bool:
        """Split what can be split of the nodes of a level; False if none can."""
        of, tree = self.of, self.tree
        slots = np.full(len(tree.owner), NONE)
        slots[nodes] = np.arange(len(nodes))
        at = np.flatnonzero(slots[self.node] != NONE)
        slot = slots[self.node[at]]
        total = add_up_nodes(slot, self.pairs[at], len(nodes))
        best = [self._find(0, at, slot, total)]
        for k, host in enumerate(of.hosts, 1):
            best.append(self._find_at_host(k, host, nodes, at, slot, total, level))
        gains = np.stack([b.gain for b in best])
        winner = gains.argmax(axis=0)
        gain = gains.max(axis=0)
        taken = gain > max(of.rules.limits.min_gain, 1e-12)
        for k, b in enumerate(best):
            here = taken & (winner == k)
            mine = nodes[here]
            tree.owner[mine], tree.gain[mine] = k, gain[here]
            tree.column[mine], tree.cut[mine] = b.column[here], b.cut[here]
            tree.missing_left[mine] = b.missing_left[here]
        if not taken.any():
            return False
        self._move(nodes[taken], level)
        return True

    def _find(
        self, k: int, at: Ints, slot: Ints, total: Floats, sums: Floats | None = None
    ) -> Best:
        """The best split of each node on columns of party `k`, of rows `at` in nodes `slot`."""
        of, party = self.of, self.of.parties[k]
        codes, bins = of._own[party][:, at], of.rules.bins + 1
        if sums is None:
            sums = add_up(codes, slot, self.pairs[at], len(total), bins)
        allowed = None
        if k and of.sender.is_guarded:
            classes = add_up(codes, slot, of._classes[at], len(total), bins)
            left = take_left(classes)
            whole = classes[:, :1].sum(axis=2, keepdims=True)[:, :, :, None]
            allowed = self._ask(left) & self._ask(whole - left)
        return find_best(take_left(sums), total, of.rules.limits, allowed)

    def _find_at_host(
        self, k: int, host: str, nodes: Ints, at: Ints, slot: Ints, total: Floats, level: int
    ) -> Best:
        """The best split of each node on a passive party's columns, where it may take part."""
        of, shared = self.of, self.shared[nodes]
        empty = np.zeros(len(nodes), dtype=np.int64)
        out = Best(np.full(len(nodes), -np.inf), empty, empty.copy(), empty.astype(bool))
        if not shared.any():
            return out
        place = np.cumsum(shared) - 1
        rows = shared[slot]
        at, slot = at[rows], place[slot[rows]]
        codes, bins = of._own[host][:, at], of.rules.bins + 1
        sums = add_up(codes, slot, self.sent[host][at], int(shared.sum()), bins)
        if not of.profile.gradients:
            sums = of.sender.change_sums(host, sums, self.number, level)
            self._send("histogram", host, self._prepare(sums, host, level), level, up=True)
        if self.is_probe:
            return out
        found = self._find(k, at, slot, total[shared], sums)
        if of.profile.gradients:
            asked = self._describe(nodes[shared], k, found)
            self._send("tree", host, asked, level, name="candidates", up=True)
        for mine, got in (
            (out.gain, found.gain), (out.column, found.column), (out.cut, found.cut),
            (out.missing_left, found.missing_left),
        ):  # fmt: skip
            mine[shared] = got
        return out

    def _prepare(self, sums: Floats, host: str, level: int) -> Floats:
        """Sums as a host sends them, (S, d, B + 1, 2 or 3): those up to a bin, if shuffled."""
        out = sums if self.of.profile.counts else sums[..., :2]
        if not self.of.profile.shuffled:
            return out
        rng = self.of.sender.rng("shuffle", host, self.number, level)
        order = rng.permuted(np.broadcast_to(np.arange(out.shape[2]), out.shape[:3]), axis=2)
        return np.take_along_axis(out.cumsum(axis=2), order[..., None], axis=2)

    @staticmethod
    def _describe(nodes: Ints, owner: int, best: Best) -> Floats:
        """Splits that a party offers, as rows of :data:`FIELDS`."""
        out = np.full((len(nodes), len(FIELDS)), np.nan)
        for name, values in (("node", nodes), ("owner", owner), ("column", best.column),
                             ("cut", best.cut), ("gain", best.gain)):  # fmt: skip
            out[:, FIELDS.index(name)] = values
        return out

    def _move(self, split: Ints, level: int) -> None:
        """Move rows of split nodes to their children, and send what a profile shows of it."""
        of, tree = self.of, self.tree
        owner = of.move(tree, self.node, of._own)
        for k, host in enumerate(of.hosts, 1):
            mine = split[tree.owner[split] == k]
            if len(mine):
                here = owner == k
                self._send("signal", host, tree.column[mine] * of.rules.bins + tree.cut[mine],
                           level, name="split")  # fmt: skip
                self._send("partition", host, self.node[here].astype(np.int16), level,
                           rows=of.rows[here], name=self.name, up=True)  # fmt: skip
        children = np.concatenate([2 * split + 1, 2 * split + 2])
        counts = add_up_nodes(self.node, of._classes, len(tree.owner))[children]
        both = self._ask(counts).reshape(2, -1).all(axis=0)  # each is what is left of the other
        self.shared[children] = np.tile(self.shared[split] & both, 2)
        if tree.is_shared:
            self._tell(np.sort(children), level)
            if of.profile.tree:
                self._show_nodes(split, level)

    def _tell(self, children: Ints, level: int) -> None:
        """The node of each row, as far as passive parties are told it after a level."""
        of = self.of
        told = np.ones(len(self.node), dtype=bool)
        if of.profile.nodes == "split":
            sizes = np.bincount(self.node, minlength=len(self.shared))
            searched = np.zeros(len(self.shared), dtype=bool)
            if level + 1 < of.rules.depth:
                searched[children] = self.shared[children] & (sizes[children] > 1)
            told = searched[self.node]
        if told.any():
            payload = self.node[told].astype(np.int16)
            ids = of.rows if told.all() else of.rows[told]  # shared by all messages about all rows
            for host in of.hosts:
                self._send("partition", host, payload, level, rows=ids, name=self.name)

    def tell_all(self) -> None:
        """What passive parties are told of a tree that is regrown."""
        of, level = self.of, self.of.rules.depth - 1
        self._tell(np.empty(0, dtype=np.int64), level)
        if "weight" in of.profile.tree:
            self._show_nodes(np.unique(self.node), level)

    def _show_nodes(self, nodes: Ints, level: int) -> None:
        """What a profile shows of nodes, as rows of :data:`FIELDS`; NaN for what it does not."""
        tree = self.tree
        sizes = np.bincount(self.node, minlength=len(tree.owner))
        for node in range(len(sizes) - 1, 0, -1):  # rows of a split node are in its children
            sizes[(node - 1) // 2] += sizes[node]
        leaf = tree.owner[nodes] == NONE
        every = {
            "node": nodes, "owner": tree.owner[nodes], "rows": sizes[nodes],
            "column": tree.column[nodes], "cut": tree.cut[nodes], "gain": tree.gain[nodes],
            "weight": np.where(leaf, tree.weight[nodes], np.nan),
        }  # fmt: skip
        out = np.full((len(nodes), len(FIELDS)), np.nan)
        for name in self.of.profile.tree:
            out[:, FIELDS.index(name)] = every[name]
        for host in self.of.hosts:
            self._send("tree", host, out, level)
