"""Reads another party's columns off its gradients, as the coordinator decrypts them: X^T d, again
and again.

The coordinator of a regression decrypts the gradient g_t = X^T d_t / b of every party in each
epoch t. Together with a party that gets Enc(d_t) it has d_t too, for it holds the key. Batches stay
the same, so that the T gradients of one batch of b rows, with d_t (b, k) side by side in D, give

    D^T X = b [g_1 ... g_T]^T,    of which  X = b (D^T)^+ [g_1 ... g_T]^T  has the least norm.

It is exact where D has rank b: at most as many rows as epochs, and at most the number of all
columns and 2, for d_t = (scores of the rows) / 4 + 1/2 - y. A batch of one row is exact in the
first epoch. Small singular values are left out below `tolerance` of the largest, for d_t changes
slowly.

Attacker: the coordinator of a regression together with one of its parties. Needs no known row.
Known failure cases: large batches and few epochs; masks (masked_gradient), without which there is
no gradient to read; shares (no coordinator).

Source: Weng, Zhang, Ma, Wang, Zheng, "Practical privacy attacks on vertical federated learning",
arXiv:2011.09290 (2020), the reverse multiplication attack; here on gradients, with d opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.inference.coordinator import find_block, find_server
from vflsec.plugin import Attack, Guess, Table, View, check, registry

ALIASES = ("gradient_products",)
FAMILY = "features"


@registry.attack
@dataclass(frozen=True)
class ReverseMultiplication(Attack):
    """Hyper-parameters.

    Attributes:
        tolerance: singular values of D below this share of the largest count as zero.
    """

    tolerance: check.Positive = 1e-7
    needs = frozenset({"derivative:all", "model_gradient:all"})
    target: ClassVar[str] = "feature"
    world = {"algorithm": "vertical_glm", "batch_size": 4}

    def declines(self, view: View) -> str:
        if all(find_block(view, p) for p in view.victims):
            return ""
        return self.explain_need("the gradients of its victims, which are masked")

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        party = next(p for p in view.adversary if p != find_server(view))
        opened = view.received("derivative", "all", party)
        steps = opened.step[opened.epoch == opened.epoch.min()].unique()
        parts = [self._solve(view, opened, int(s), len(steps)) for s in steps]
        rows = torch.cat([opened.rows[opened.step == s] for s in steps])
        x, order = torch.cat(parts), rows.argsort()
        order = order[torch.isin(rows[order], view.targets["train"])]
        return Guess(self.target, rows[order], x[order], notes={"batches": len(steps)})

    def _solve(self, view: View, opened: Table, first: int, batches: int) -> Tensor:
        """Columns (b, p) of all victims in the rows of a batch, whose first step this is."""
        steps = [int(s) for s in opened.step.unique() if (int(s) - first) % batches == 0]
        d = torch.cat([opened.tensor[opened.step == s].double().T for s in steps])
        inverse = torch.linalg.pinv(d, rtol=self.tolerance) * d.shape[1]
        return torch.cat([inverse @ _stack(view, p, steps) for p in view.victims], dim=1)


def _stack(view: View, party: str, steps: list[int]) -> Tensor:
    """Gradients of a party's columns in some steps, one output of one step after another."""
    block = find_block(view, party)
    assert block is not None
    g = torch.cat([block(s).T for s in steps])
    return g[:, :-1] if party == view.facts.active else g  # without the intercept
