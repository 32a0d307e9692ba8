"""Votes of the labelled rows that share leaves: training rows of one leaf tend to be of one class.

With l_it the node of row i in tree t, as deep as the attacker was told it,

    k(i, j) = (1 / T) sum_t 1[l_it = l_jt]
    s_ic = sum over known j of class c of k(i, j) / sum over known j of k(i, j)

A quantity is the mean of the known values with the same weights. With ``by = "model"`` logistic
regression on one-hot leaves takes the place of the vote, beside own columns with ``beside``.

Attacker: any passive party of boosted trees that is told which rows are at which node: all nodes
(FATE), those that it helps to split (SecureBoost, SecretFlow), or its own splits. Needs known rows.
Known failure cases: trees grown without the passive parties; row sets that the active party checked
before it showed them (id_lmid), unless its own splits are shown too. Training on randomised labels
does not stop it: what groups the rows is mostly the active party's columns.

Source: this package's own; the instance space is that of Takahashi, Liu, Liu, "Eliminating label
leakage in tree-based vertical federated learning", arXiv:2307.10318 (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vflsec.inference.completion import SHRINKAGE, logistic_cv
from vflsec.inference.leaf_groups import Leaves, find_leaves
from vflsec.plugin import Attack, Facts, Guess, Known, View, check, registry

ALIASES = ("instance_space",)
FAMILY = "leaves"


@registry.attack
@dataclass(frozen=True)
class LeafVote(Attack):
    """Hyper-parameters.

    Attributes:
        by: ``vote``, or ``model`` for logistic regression on one-hot leaves.
        beside: with ``model``: own columns stand beside the leaves.
    """

    by: Literal["vote", "model"] = "vote"
    beside: bool = False
    needs = frozenset({"partition:all", "known_rows"})
    optional = frozenset({"sent.partition:all"})
    reads_others = False
    quantities: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    world = {"algorithm": "secureboost", "trees": 20}
    tries = (
        {"by": "model"}, {"by": "model", "beside": True},
    )  # fmt: skip
    seconds: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beside and self.by != "model":
            raise check.fail("leaf_vote.beside", "false for by = 'vote'", self.beside)

    def applicable(self, facts: Facts) -> str:
        if self.by == "model" and facts.label.numeric:
            return self.explain_need("classes", "Take by = 'vote'.")
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, rows = view.require_known(), view.targets["train"]
        leaves = find_leaves(view).among(known.rows, rows)
        known = known.among(leaves.rows)
        rows = rows[torch.isin(rows, leaves.rows)]
        notes = {"trees": len(leaves.trees)}
        if self.by == "model":
            x = _place(leaves, rows, known.rows, view if self.beside else None)
            fit = logistic_cv(x[1], known, x[0], view.facts.classes, self.by, SHRINKAGE)
            scores = fit.scores[:, 1] - fit.scores[:, 0] if fit.scores.shape[1] == 2 else fit.scores
            return Guess(self.target, rows, scores, notes={**notes, "cv": round(fit.cv, 4)})
        return Guess(self.target, rows, _vote(view, leaves, rows, known), notes=notes)


def _vote(view: View, leaves: Leaves, rows: Tensor, known: Known) -> Tensor:
    """Scores of `rows`: (n,) for two classes or a number, else (n, C)."""
    labels, classes = known.labels, view.facts.classes
    if labels.is_floating_point():
        each = labels.double().reshape(-1, 1)
    else:
        each = torch.nn.functional.one_hot(labels, classes).double()
    of = torch.zeros(len(leaves.rows), each.shape[1] + 1, dtype=torch.float64, device=rows.device)
    of[leaves.find(known.rows)] = torch.cat([each, torch.ones_like(each[:, :1])], dim=1)
    met = leaves.count_company(of)[leaves.find(rows)]
    share = met[:, :-1] / met[:, -1:].clamp_min(1e-12)
    if labels.is_floating_point():
        return share.squeeze(1)
    return share[:, 1] - share[:, 0] if classes == 2 else share


def _place(
    leaves: Leaves, rows: Tensor, known: Tensor, view: View | None
) -> tuple[np.ndarray, np.ndarray]:
    """Leaves that a known row is at as 0 and 1 for `rows` and `known`, and own columns beside."""
    group, groups = leaves.code()
    here = group[leaves.find(known)].unique()
    column = torch.full((groups,), len(here), device=group.device)
    column[here] = torch.arange(len(here), device=group.device)
    out = []
    for ids in (rows, known):
        at = column[group[leaves.find(ids)]]
        x = torch.zeros(len(ids), len(here) + 1, dtype=torch.float64, device=ids.device)
        x = x.scatter(1, at, 1.0)[:, :-1]
        if view is not None:
            x = torch.cat([x, view.design(ids).double()], dim=1)
        out.append(x.cpu().numpy())
    return out[0], out[1]
