"""Reads another party's columns off the ways that rows took at the splits of trees.

Of each split on the way to the node that is known of row i in a tree, the side is known,

    s_ik = -1 (left), 1 (right), 0 (row i never came there),

and every split on a column of the victim tells on which side of one cut a value is: S cuts of one
column sort its rows into S + 1 groups in order. Ridge regression of the victim's columns on sides
and own columns, fitted to auxiliary rows, answers where it is better by cross-validation than own
columns alone.

Attacker: the active party, to whom the owner of a split sends the sides of rows in plain under
every profile; any passive party that is told which rows are at which node. Needs ``aux_rows``.
Known failure cases: columns that no tree splits; trees grown without the other party; noise on sums
(histogram_noise) and shuffled bins leave the sides as they are.

Source: Luo, Wu, Xiao, Ooi, "Feature inference attack on model predictions in vertical federated
learning", ICDE 2021, arXiv:2010.10152, section IV-B, which restricts paths by the answer; here the
path of each training row is known, and the regression is this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec.inference.leaf_groups import find_leaves, list_sides
from vflsec.inference.ridge_regression import choose_best, fit_ridges, of_columns
from vflsec.plugin import Attack, Guess, View, registry

ALIASES = ("path_columns", "split_sides")
FAMILY = "features"


@registry.attack
@dataclass(frozen=True)
class LeafColumns(Attack):
    """No hyper-parameters."""

    needs = frozenset({"partition:all", "aux_rows"})
    optional = frozenset({"sent.partition:all"})
    reads_others = False
    target: ClassVar[str] = "feature"
    world = {"algorithm": "secureboost", "trees": 20}
    seconds: ClassVar[float] = 0.1

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        aux, values = view.require_aux()
        rows = view.targets["train"]
        leaves = find_leaves(view).among(aux, rows)
        told = torch.isin(aux, leaves.rows)
        aux, values = aux[told], values[told].double()
        rows = rows[torch.isin(rows, leaves.rows)]
        sides = list_sides(leaves)
        own, asked = view.own(aux).double(), view.own(rows).double()
        fits = fit_ridges("own", own, values, asked) if own.shape[1] else []
        both = [torch.cat([sides[leaves.find(i)], x], 1) for i, x in ((aux, own), (rows, asked))]
        fits += fit_ridges("sides", both[0], values, both[1])
        of = view.aux_columns
        found, names = choose_best(of_columns(fits, values, of), values, of)
        notes = {"variant": max(names, key=names.count), "splits": sides.shape[1],
                 "victim": "+".join(view.victims)}  # fmt: skip
        return Guess(self.target, rows, found.values, notes=notes)
