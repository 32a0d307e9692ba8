"""Solves a party's own gradient in a linear model for the derivative of each row's loss.

Where a coordinator decrypts the gradients of a linear, logistic or Poisson regression, a passive
party gets its own in plain. Of a batch of b rows with its columns X (b, p) and derivatives d (b, k)

    g = X^T d / b,    of which  d = b (X^T)^+ g  has the least norm.

It is exact where X has rank b: batches of at most as many rows as columns that do not depend on
each other. Beyond that it is the least-squares fit of d on X: at coefficients 0 a classifier of own
columns that was fitted to all labels of the batch. With e(f) the answer at score f, the label is

    y = e(f) - d,

of which the party knows its own part X w of f, with w from its gradients so far where it is told
the rate, and leaves out the others'. The first pass over the rows is read.

The coordinator has no column, but one is known to all: the active party's intercept is a column of
ones, whose gradient is the mean of d. So where it is told which rows a batch has
(``coordinator_knows = "rows"``) it learns the mean label of each batch by itself, and each label of
a batch of one row. Together with a passive party it opens Enc(d), and d is exact in any batch.

Attacker: any passive party of a regression with a coordinator (FATE's hetero LR), or several; the
coordinator, alone or with them. Needs no known row and no training.
Known failure cases: columns that say nothing of the label in batches that are much larger than
their number; the coordinator alone where batches are large; scores beyond 2, as after many steps
of small batches, by which d changes its sign. Masks (masked_gradient) stop the
coordinator alone, and no passive party: an owner takes its own mask off, and d has none.

Source: the protocol itself, Hardy et al., arXiv:1711.10677 (2017), as FATE 2.x runs it; least norm:
this package's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vflsec.inference.coordinator import find_block, find_server
from vflsec.plugin import Attack, Guess, View, registry

ALIASES = ("own_gradient", "hetero_lr_gradient")
FAMILY = "linear_models"
TOLERANCE = 1e-9
"""Singular values of the columns below this share of the largest count as zero."""


@registry.attack
@dataclass(frozen=True)
class GlmGradient(Attack):
    """No hyper-parameters."""

    needs = frozenset({"model_gradient:all", "ids:all"})
    optional = frozenset({"woe_value:all", "derivative:all"})
    quantities: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    world = {"algorithm": "vertical_glm"}

    def declines(self, view: View) -> str:
        alone = view.adversary == (find_server(view),)
        if alone and find_block(view, view.facts.active) is None:
            return self.explain_need("the gradient of the active party, which masks it")
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        batches = list(_read_batches(view))
        solved = torch.cat(list(_find_labels(view, batches)))
        rows = torch.cat([b.rows for b in batches])
        order = rows.argsort()
        order = order[torch.isin(rows[order], view.targets["train"])]
        scores = solved[order].squeeze(1) if solved.shape[1] == 1 else solved[order]
        exact = sum(len(b.rows) <= b.x.shape[1] for b in batches)
        notes = {"batches": len(batches), "no_larger_than_columns": exact}
        return Guess(self.target, rows[order], scores, notes=notes)


class _Batch(NamedTuple):
    """Rows (b,), known columns (b, p), their gradient (p, k) and, if it is opened, d (b, k)."""

    rows: Tensor
    x: Tensor
    g: Tensor
    d: Tensor | None


def _read_batches(view: View) -> Iterator[_Batch]:
    """Batches of the first pass, in their order, with all columns that the adversary knows."""
    server, active = find_server(view), view.facts.active
    parties = [p for p in view.adversary if p not in (active, server)]
    ids = view.received("ids", "all", parties[0] if parties else server)
    got = [view.received("model_gradient", "all", p) for p in parties]
    ones = None if parties else find_block(view, active)
    opened = view.tables.get(("received", "derivative", "all", parties[0] if parties else ""))
    for step in ids.step.unique(sorted=True):
        rows = ids.rows[ids.step == step]
        x = [_take_columns(view, p, rows) for p in parties]
        each = [t.tensor[t.step == step][0].double() for t in got]
        if ones is not None:
            x.append(torch.ones(len(rows), 1, dtype=torch.float64, device=rows.device))
            each.append(ones(int(step))[-1:])
        g = torch.cat(each)
        d = None if opened is None else opened.tensor[opened.step == step].double()
        if "of_label" in view.facts.extra:
            k = int(view.facts.extra["of_label"])
            g, d = g[:, [k]], None if d is None else d[:, [k]]
        yield _Batch(rows, torch.cat(x, dim=1), g, d)


def _take_columns(view: View, party: str, rows: Tensor) -> Tensor:
    """Own columns (b, p) of these rows as the model has them: of a scorecard their WOE."""
    woe = view.tables.get(("received", "woe_value", "all", party))
    if woe is None:
        return view.schema[party].design(view.columns[party][rows]).double()
    order = woe.rows.argsort()
    at = order[torch.searchsorted(woe.rows[order], rows)]
    return woe.tensor[at].double().flatten(1)


def _find_labels(view: View, batches: Iterable[_Batch]) -> Iterator[Tensor]:
    """Labels (b, k) of each batch but for a constant."""
    extra, w = view.facts.extra, torch.zeros((), dtype=torch.float64)
    for _, x, g, opened in batches:
        d = opened
        if d is None:
            d = len(x) * torch.linalg.pinv(x.T, rtol=TOLERANCE) @ g
        w = w.expand_as(g)
        yield _answer(view, x @ w) - d
        w = w - extra.get("rate", 0.0) * (g + extra.get("l2", 0.0) * w)


def _answer(view: View, scores: Tensor) -> Tensor:
    """The answers e(f) at scores (b, k), less those at 0."""
    label, f = view.facts.label, scores.cpu().numpy()
    y = np.zeros(len(f), dtype=np.int64) if label.code > 1 else np.zeros(f.shape)
    taylor = view.facts.extra.get("derivative", "taylor") == "taylor"
    here, start = (label.compute_derivative(at, y, taylor=taylor) for at in (f, 0 * f))
    return torch.from_numpy(here - start).to(scores)
