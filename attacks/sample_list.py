"""Reads labels off the lists of rows on which trees are grown: large gradients are named first.

GOSS grows a tree on the rows of the largest |g| and on a few of the others, and every party is told
which rows these are. With g = p - y and a public first score, p0 < 1/2, the first tree has |g| =
1 - p0 for class 1 and p0 for class 0: as long as there are no more of them than rows of class 1,
the largest are of class 1 alone. Later p stays nearer to the more frequent class, so that rows of
the rarer one are named more often. Score of a row: the share of trees that named it, turned by the
class shares.

Attacker: any passive party of boosted trees with sampled rows; where all are used, no such list is
sent. Needs the class shares, to know which class is rarer, and no known row.
Known failure cases: rows drawn without regard to gradients; classes of equal shares; a first score
of 1/2, where the first list tells nothing.

Source: Ke et al., "LightGBM", NeurIPS 2017, section 3, for the lists; what they tell: this
package's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vflsec.plugin import Attack, Guess, View, registry

ALIASES = ("goss_list", "sampled_rows")
FAMILY = "leaves"


@registry.attack
@dataclass(frozen=True)
class SampleList(Attack):
    """No hyper-parameters."""

    needs = frozenset({"sample_list:all", "prior"})
    reads_others = False
    binary_only = True
    world = {"algorithm": "secureboost", "trees": 10, "top": 0.2, "other": 0.1, "base": "prior"}

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        named, rows = view.received("sample_list", "all").rows, view.targets["train"]
        size = 1 + int(torch.cat([named, rows]).max())
        times = torch.bincount(named, minlength=size)[rows].double()
        rare = float(view.require_prior()[1]) <= 0.5
        return Guess(self.target, rows, times if rare else -times)
