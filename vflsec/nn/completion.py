"""Fitting classifiers to a few labelled rows: shared by completion attacks and their controls.

Many small fits (replicas x cross-validation folds) run as one stacked model. Selection among
variants is by cross-validation on the known rows alone.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from vflsec.nn import optim
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas, apply, stacked
from vflsec.party import groups, step
from vflsec.rng import as_global
from vflsec.view import Known

__all__ = ["Fit", "cv_score", "fit_networks", "folds_of", "logistic", "logistic_cv"]


@dataclass(frozen=True)
class Fit:
    """One fitted variant: its name, cross-validated score on the known rows, answer on the targets.

    `scores` (n, C) log class shares of the target rows, larger = more certain.
    """

    variant: str
    cv: float
    scores: NDArray[np.float64]


def folds_of(labels: Tensor, most: int = 5) -> Tensor:
    """Stratified fold of each known row (q,), deterministic by grant order; -1 if none can be made.

    The number of folds is the smallest class count, at most `most`.
    """
    counts = torch.bincount(labels)
    present = counts[counts > 0]
    k = min(most, int(present.min())) if len(present) > 1 else 0
    if k < 2:
        return torch.full_like(labels, -1)
    fold = torch.empty_like(labels)
    for c in labels.unique():
        where = (labels == c).nonzero().squeeze(1)
        fold[where] = torch.arange(len(where), device=labels.device) % k
    return fold


def cv_score(log_p: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Held-out quality on the known rows: AUC for two classes, accuracy for more."""
    if log_p.shape[1] == 2:
        if len(np.unique(labels)) < 2:
            return 0.5
        return float(roc_auc_score(labels, log_p[:, 1] - log_p[:, 0]))
    return float((log_p.argmax(1) == labels).mean())


def logistic(
    x: NDArray[np.float64], y: NDArray[np.int64], targets: NDArray[np.float64], classes: int
) -> NDArray[np.float64]:
    """Log class shares (n, C) of `targets` by L2 logistic regression (C = 1) on standardised input.

    Classes that were never seen get a share of e^-30.
    """
    out = np.full((len(targets), classes), -30.0)
    seen = np.unique(y)
    if len(seen) == 1:
        out[:, seen[0]] = 0.0
        return out
    model = LogisticRegression(C=1.0, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    out[:, seen] = np.log(model.predict_proba(targets).clip(1e-13))
    return out


def logistic_cv(
    x: NDArray[np.float64], known: Known, targets: NDArray[np.float64], classes: int, name: str
) -> Fit:
    """Logistic regression on known rows `x` (q, p), its cross-validated score, and its answer."""
    y = known.labels.cpu().numpy()
    fold = folds_of(known.labels).cpu().numpy()
    cv = 0.5 if classes == 2 else float(np.bincount(y, minlength=classes).max() / len(y))
    if fold.max() >= 1:
        held = np.zeros((len(y), classes))
        for f in range(fold.max() + 1):
            held[fold == f] = logistic(x[fold != f], y[fold != f], x[fold == f], classes)
        cv = cv_score(held, y)
    return Fit(name, cv, logistic(x, y, targets, classes))


class Standardise(nn.Module):
    """(z - mean) / sd with constants."""

    mean: Tensor
    sd: Tensor

    def __init__(self, mean: Tensor, sd: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("sd", sd.clone())

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.sd


@stacked(Standardise)
def _standardise(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    return (x - s.buffers[f"{prefix}mean"].unsqueeze(1)) / s.buffers[f"{prefix}sd"].unsqueeze(1)


class Completed(nn.Module):
    """An own bottom followed by an inference head."""

    def __init__(self, bottom: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bottom, self.head = bottom, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bottom(x))


@stacked(Completed)
def _completed(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    assert isinstance(module, Completed)
    h = apply(s, f"{prefix}bottom.", module.bottom, x, train)
    return apply(s, f"{prefix}head.", module.head, h, train)


def fit_networks(
    variant: str,
    bottoms: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    knowns: Sequence[Known],
    targets: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    classes: int,
    *,
    hidden: Sequence[int] = (),
    steps: int = 150,
    lr_bottom: float = 1e-3,
    lr_head: float = 1e-2,
    weight_decay: float = 1e-3,
) -> list[Fit]:
    """Fit head o bottom to the known rows, for each replica and each fold, as one stacked model.

    Args:
        variant: name of the result.
        bottoms: R starting bottoms (``nn.Identity()`` for a frozen one whose input is z).
        inputs: R tensors (q, ...): inputs of the known rows, in grant order.
        knowns: R grants of q rows each.
        targets: R tensors (n, ...): inputs of the rows to answer.
        rngs: R generators for the heads' initial weights.
        hidden: hidden widths of the head; () is a linear head.
        steps, lr_bottom, lr_head, weight_decay: full-batch Adam.

    Returns:
        R fits. Known and target counts must be equal across replicas.
    """
    device, dtype = inputs[0].device, inputs[0].dtype
    folds = [folds_of(k.labels) for k in knowns]
    count = int(max(int(f.max()) for f in folds)) + 1
    copies = count + 1
    modules: list[nn.Module] = []
    for bottom, x, g in zip(bottoms, targets, rngs, strict=True):
        with torch.no_grad():
            z = bottom.eval()(x)
        sd, mean = torch.std_mean(z, dim=0, correction=0)
        front = Standardise(mean, sd.clamp_min(1e-6))
        widths = [z.shape[1], *hidden, classes]
        with as_global(g):
            heads = [mlp(widths) for _ in range(copies)]
        modules += [Completed(copy.deepcopy(bottom), nn.Sequential(front, h)) for h in heads]
    draws = any(isinstance(m, nn.Dropout) for m in modules[0].modules())
    stack = Replicas(modules, device=device, dtype=dtype)
    x = torch.stack(list(inputs)).repeat_interleave(copies, 0)
    y = torch.stack([k.labels for k in knowns]).to(device).repeat_interleave(copies, 0)
    weight = torch.stack(
        [
            torch.ones_like(f) if c == count else (f != c).long()
            for f in folds
            for c in range(copies)
        ]
    ).to(device, dtype)
    heads_only = [p for k, p in stack.params.items() if k.startswith("head.")]
    body = [p for k, p in stack.params.items() if not k.startswith("head.")]
    optimizer = optim.Adam(
        groups(heads_only, lr=lr_head) + groups(body, lr=lr_bottom), weight_decay=weight_decay
    )
    share = weight / weight.sum(1, keepdim=True)
    frozen_batch = draws or any(isinstance(m, nn.BatchNorm1d) for m in modules[0].modules())
    for _ in range(steps):
        log_p = torch.log_softmax(stack(x, train=not frozen_batch), dim=-1)
        loss = -(share * log_p.gather(2, y.unsqueeze(2)).squeeze(2)).sum()
        step(optimizer, stack.parameters(), torch.autograd.grad(loss, stack.parameters()))
    with torch.no_grad():
        held = torch.log_softmax(stack(x, train=False), dim=-1).double().cpu().numpy()
        answer = _answer(stack, torch.stack(list(targets)), copies)
    fits = []
    for r, (known, fold) in enumerate(zip(knowns, folds, strict=True)):
        labels = known.labels.cpu().numpy()
        cv = 0.5 if classes == 2 else 1.0 / classes
        if int(fold.max()) >= 1:
            f = fold.cpu().numpy()
            cv = cv_score(held[r * copies + f, np.arange(len(f))], labels)
        fits.append(Fit(variant, cv, answer[r]))
    return fits


def _answer(stack: Replicas, targets: Tensor, copies: int) -> NDArray[np.float64]:
    """Log class shares (R, n, C) of the models fitted to all known rows."""
    last = torch.arange(copies - 1, stack.count, copies, device=stack.device)
    full = stack.take(last)
    chunk = max(1, 2**22 // max(1, math.prod(targets.shape[2:]) * len(last)))
    parts = [torch.log_softmax(full(t, train=False), dim=-1) for t in targets.split(chunk, dim=1)]
    return torch.cat(parts, dim=1).double().cpu().numpy()
