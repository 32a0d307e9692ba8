"""Membership in another party's list: which of its own ids a party learns that the others have too.

Private set intersection hides ids that do not match, and what matches is who is a customer of the
other party. Of an id x of the own list S and the other list T, the score is

    list:   1 if x is on the list of what matched, else 0
    size:   |PSI(S + {x})| - |PSI(S)|, from two runs: 1 if x is in T, else 0
    ids:    1 if a message of training names x, as the rows of a batch

exactly. Sizes answer for ids that came between two runs, the others for all.

Attacker: any party that learns the list or the sizes (algorithm ``psi``), or that is told which
rows are trained on (``ids``). Needs no known row.
Known failure cases: a result that is withheld (``to``, ``reveals = "size"`` with one run); dummies
(``padding``), which blur sizes and no list; ids that are withheld here and named in training.

Source: the definition; differences of sizes: Guo et al., "Birds of a feather flock together: how
set bias helps to deanonymize you via revealed intersection sizes", USENIX Security 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vflsec.plugin import Attack, Guess, View, registry

ALIASES = ("list_membership", "intersection_differencing")
FAMILY = "list_membership"


@registry.attack
@dataclass(frozen=True)
class PsiMembership(Attack):
    """Hyper-parameters.

    Attributes:
        reads: what is learnt: the ``list``, its ``size`` in each run, or the ``ids`` of training.
    """

    reads: Literal["list", "size", "ids"] = "list"
    target: ClassVar[str] = "presence"
    absent: ClassVar[bool] = True
    world = {"algorithm": "psi"}

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        kinds = {"list": "match:last", "size": "match_count:all", "ids": "ids:last"}
        return frozenset({kinds[self.reads]})

    def declines(self, view: View) -> str:
        if self.reads == "size" and len(view.received("match_count", "all")) < 2:
            return self.explain_need("the sizes of two runs")
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        rows = view.targets["train"]
        if self.reads != "size":
            kind = "match" if self.reads == "list" else "ids"
            there = torch.isin(rows, view.received(kind, "last").rows)
            return Guess(self.target, rows, there.double())
        sizes = view.received("match_count", "all")
        return Guess(self.target, sizes.rows[1:], sizes.tensor[:, 0].double().diff())
