"""Reads labels off weights of evidence: each says which share of a bin is of class 1.

A party that puts WOE in the place of its values holds, of each of its rows i and columns j,

    WOE_ij = ln( (pos / P) / (neg / N) )    of the bin of row i in column j

with P ones and N zeros in all. The share of ones in the bin is P e^WOE / (P e^WOE + N), exactly,
and this times its rows is how many there are, which is kept as a note. Score of a row: the sum of
its WOE, the log odds of class 1 if columns were independent given the label. It is a classifier of
own columns that was fitted to all labels.

Attacker: any passive party of a scorecard that transforms its own columns (FATE's hetero feature
binning). Needs no known row; for the note the class shares, if they are granted.
Known failure cases: columns that say nothing of the label; WOE that stays with the label holder.

Source: the definition of WOE, Siddiqi, "Credit risk scorecards", Wiley (2006), solved for the
labels of a bin.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.plugin import Attack, Guess, View, registry

FAMILY = "weights_of_evidence"


@registry.attack
@dataclass(frozen=True)
class WoeInversion(Attack):
    """No hyper-parameters."""

    needs = frozenset({"woe_value:all"})
    binary_only = True
    world = {"algorithm": "scorecard"}

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        table = view.received("woe_value", "all")
        order = table.rows.argsort()
        rows, woe = table.rows[order], table.tensor[order].double().flatten(1)
        notes = {}
        if view.prior is not None:
            counts = [count_ones(column, float(view.prior[1])) for column in woe.T]
            notes = {"bins": sum(map(len, counts)), "ones": [list(c.values()) for c in counts[:20]]}
        mine = torch.isin(rows, view.targets["train"])
        return Guess(self.target, rows[mine], woe[mine].sum(1), notes=notes)


def count_ones(woe: Tensor, share: float) -> dict[float, float]:
    """How many rows of each bin are of class 1, by its WOE.

    Args:
        woe: of all training rows in one column, (n,).
        share: of class 1 among them.
    """
    values, sizes = woe.unique(return_counts=True)
    odds = share / (1 - share) * values.exp()
    ones = sizes * odds / (1 + odds)
    return dict(zip(values.tolist(), [round(v, 6) for v in ones.tolist()], strict=True))
