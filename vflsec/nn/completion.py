"""Fitting classifiers to a few labelled rows: shared by completion attacks and their controls.

Many small fits (replicas x cross-validation folds) run as one stacked model. Selection among
variants is by cross-validation on the known rows alone: of those that the known rows cannot tell
from the best, the simplest and most shrunk is taken, by DeLong's paired standard error (DeLong,
DeLong, Clarke-Pearson, Biometrics 1988), or for more than two classes that of the Brier score.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.nn import optim
from vflsec.nn.columns import spread
from vflsec.nn.logistic import ridge_logistic
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas, apply, draws, stacked
from vflsec.party import groups, step
from vflsec.rng import as_global
from vflsec.view import Known

__all__ = [
    "NEAR", "SHRINKAGE", "Fit", "cv_score", "fit_networks", "folds_of", "logistic", "logistic_cv",
    "simplest_fit",
]  # fmt: skip

SHRINKAGE = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Inverse penalties of logistic regression, the most shrunk first."""
NEAR = 2.0
"""How many standard errors behind the best a simpler variant may be and still be taken."""

_LEAST = float(np.log(1e-13))  # log share below which none is told


@dataclass(frozen=True)
class Fit:
    """One fitted variant: its name, cross-validated score on the known rows, answer on the targets.

    `scores` (n, C) log class shares of the target rows, larger = more certain; `held` (q, C) those
    of the known rows from the folds that left them out, None if there were no folds; `penalty` the
    inverse strength of the chosen penalty.
    """

    variant: str
    cv: float
    scores: NDArray[np.float64]
    held: NDArray[np.float64] | None = None
    penalty: float | None = None


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
    """Held-out quality on the known rows: AUC for two classes, accuracy for more; 0 if one is NaN.

    AUC is the share of pairs in the right order, ties counting half, out of whole numbers.
    """
    if np.isnan(log_p).any():
        return 0.0
    if log_p.shape[1] == 2:
        margin = log_p[:, 1] - log_p[:, 0]
        above, below = margin[labels == 1], np.sort(margin[labels == 0])
        if not len(above) or not len(below):
            return 0.5
        beaten = np.searchsorted(below, above) + np.searchsorted(below, above, "right")
        return int(beaten.sum()) / (2 * len(above) * len(below))
    return float((log_p.argmax(1) == labels).mean())


def _credits(log_p: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """How good each known row's answer is, in [0, 1], to compare variants by.

    For two classes its share of right pairs, whose mean is the AUC. For more the Brier score: 1
    less half the squared distance of the class shares from the true class (Brier, Monthly Weather
    Review 1950). By right or wrong alone, some dozens of rows cannot tell a good head from one that
    is shrunk too much.
    """
    if log_p.shape[1] != 2:
        shares = np.exp(log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True))
        wrong: NDArray[np.float64] = (shares - np.eye(log_p.shape[1])[labels]) ** 2
        return 1 - wrong.sum(1) / 2
    margin = log_p[:, 1] - log_p[:, 0]
    above = np.sign(margin[labels == 1][:, None] - margin[labels == 0][None, :]) / 2 + 0.5
    out = np.empty(len(labels))
    out[labels == 1], out[labels == 0] = above.mean(1), above.mean(0)
    return out


def simplest_good(held: Sequence[NDArray[np.float64]], labels: NDArray[np.int64]) -> int:
    """Index of the first answer that is no more than NEAR standard errors worse than the best.

    Args:
        held: held-out log class shares (q, C) of the known rows, the simplest variant first.
        labels: of these rows, two classes or more.
    """
    credits_ = [_credits(h, labels) for h in held]
    two = held[0].shape[1] == 2
    scores = [
        cv_score(h, labels) if two else float(c.mean()) for h, c in zip(held, credits_, strict=True)
    ]
    best = int(np.argmax(scores))
    for i in range(len(held)):
        lost = credits_[best] - credits_[i]
        groups_ = [lost[labels == c] for c in (0, 1)] if two else [lost]
        error = math.sqrt(sum(g.var(ddof=1) / len(g) for g in groups_))
        if scores[best] - scores[i] <= NEAR * error + 1e-12:
            return i
    return best


def logistic(
    x: NDArray[np.float64],
    y: NDArray[np.int64],
    targets: NDArray[np.float64],
    classes: int,
    c: float = 1.0,
) -> NDArray[np.float64]:
    """Log class shares (n, C) of `targets` by L2 logistic regression on standardised input.

    Classes that were never seen get a share of e^-30.

    Args:
        x: known rows (q, p).
        y: their labels (q,).
        targets: rows to answer (n, p).
        classes: their number C.
        c: inverse strength of the penalty. At 0 the direction is the limit for c to 0, the
            difference of the class means, and a row goes to the class whose mean is nearest.
    """
    out = np.full((len(targets), classes), -30.0)
    seen = np.unique(y)
    if len(seen) == 1:
        out[:, seen[0]] = 0.0
        return out
    if c == 0:
        means = np.stack([x[y == k].mean(0) for k in seen])  # (k, p)
        logit = targets @ means.T - (means**2).sum(1) / 2
        scale = max(float(((x - means[np.searchsorted(seen, y)]) ** 2).sum(1).mean()), 1e-12)
        logit = logit / scale  # by the whole within-class variance: columns may repeat each other
        logit -= logit.max(1, keepdims=True)
        share = np.exp(logit)
        out[:, seen] = np.log((share / share.sum(1, keepdims=True)).clip(1e-13))
        return out
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    out[:, seen] = np.log(model.predict_proba(targets).clip(1e-13))
    return out


def logistic_cv(
    x: NDArray[np.float64],
    known: Known,
    targets: NDArray[np.float64],
    classes: int,
    name: str,
    grid: Sequence[float] = (1.0,),
) -> Fit:
    """Logistic regression on known rows `x` (q, p), its cross-validated score, and its answer.

    Args:
        x, targets, classes: see :func:`logistic`.
        known: the grant behind `x`.
        name: of the result.
        grid: penalties that compete in cross-validation, most shrunk first.
    """
    y = known.labels.cpu().numpy()
    fold = folds_of(known.labels).cpu().numpy()
    if x.shape[1] > len(x):  # the weights lie in the span of the known rows
        basis = np.linalg.svd(x, full_matrices=False)[2].T  # (p, q)
        x, targets = x @ basis, targets @ basis
    chance = 0.5 if classes == 2 else float(np.bincount(y, minlength=classes).max() / len(y))
    whole = np.ones((1, len(y)), bool)
    keep = np.stack([fold != f for f in range(fold.max() + 1)]) if fold.max() >= 1 else whole[:0]
    fitted = _Fits(x, y, classes, np.concatenate([keep, whole]), grid)
    if not len(keep):
        return Fit(name, chance, fitted.answer(0, -1, targets), None, grid[0])
    held = np.zeros((len(grid), len(y), classes))
    for k, f in itertools.product(range(len(grid)), range(len(keep))):
        held[k, ~keep[f]] = fitted.answer(k, f, x[~keep[f]])
    best = simplest_good(list(held), y)
    answer = fitted.answer(best, -1, targets)
    return Fit(name, cv_score(held[best], y), answer, held[best], grid[best])


class _Fits:
    """Logistic regressions under every penalty on every set of rows; two classes in one batch."""

    def __init__(
        self, x: NDArray[np.float64], y: NDArray[np.int64], classes: int,
        keep: NDArray[np.bool_], grid: Sequence[float],
    ) -> None:  # fmt: skip
        self.x, self.y, self.classes, self.keep, self.grid = x, y, classes, keep, grid
        self.weights: dict[float, NDArray[np.float64]] = {}
        penalties = [c for c in grid if c > 0]
        both = all(len(np.unique(y[k])) == 2 for k in keep)
        if classes == 2 and both and penalties:
            wide = np.hstack([x, np.ones((len(x), 1))])
            found = ridge_logistic(wide, y[None].astype(float), keep.astype(float), penalties)
            self.weights = {c: w[:, 0] for c, w in zip(penalties, found, strict=True)}

    def answer(self, k: int, f: int, targets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log class shares (n, C) of `targets` by penalty `k` fitted on rows `f`."""
        c, on = self.grid[k], self.keep[f]
        if c not in self.weights:
            return logistic(self.x[on], self.y[on], targets, self.classes, c)
        margin = targets @ self.weights[c][f][:-1] + self.weights[c][f][-1]
        shares = np.stack([-np.logaddexp(0, margin), -np.logaddexp(0, -margin)], axis=1)
        return shares.clip(_LEAST)  # type: ignore[no-any-return]


def simplest_fit(fits: Sequence[Fit], labels: Tensor) -> Fit:
    """The first of `fits` (the simplest first) that the known rows cannot tell from the best.

    Without folds the first one.
    """
    held = [f.held for f in fits if f.held is not None]
    if len(held) < len(fits):
        return fits[0]
    return fits[simplest_good(held, labels.cpu().numpy())]


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
    modules = _stacked(bottoms, targets, rngs, (*hidden, classes), copies)
    random = draws(modules[0])
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
    frozen_batch = random or any(isinstance(m, nn.BatchNorm1d) for m in modules[0].modules())
    for _ in range(steps):
        log_p = torch.log_softmax(stack(x, train=not frozen_batch), dim=-1)
        loss = -(share * log_p.gather(2, y.unsqueeze(2)).squeeze(2)).sum()
        step(optimizer, stack.parameters(), torch.autograd.grad(loss, stack.parameters()))
    with torch.no_grad():
        held = torch.log_softmax(stack(x, train=False), dim=-1).double().cpu().numpy()
        answer = _answer(stack, torch.stack(list(targets)), copies)
    return [
        _fit(variant, known, fold, held[r * copies :], answer[r], classes)
        for r, (known, fold) in enumerate(zip(knowns, folds, strict=True))
    ]


def _stacked(
    bottoms: Sequence[nn.Module], targets: Sequence[Tensor], rngs: Sequence[torch.Generator],
    widths: Sequence[int], copies: int,
) -> list[nn.Module]:  # fmt: skip
    """Each bottom with `copies` fresh heads of these widths behind standardised embeddings."""
    modules: list[nn.Module] = []
    for bottom, x, g in zip(bottoms, targets, rngs, strict=True):
        with torch.no_grad():
            z = bottom.eval()(x)
        sd, mean = spread(z)
        front = Standardise(mean, sd.clamp_min(1e-6))
        with as_global(g):
            heads = [mlp([z.shape[1], *widths]) for _ in range(copies)]
        modules += [Completed(bottom, nn.Sequential(front, h)) for h in heads]
    return modules


def _fit(
    variant: str, known: Known, fold: Tensor, held: NDArray[np.float64],
    answer: NDArray[np.float64], classes: int,
) -> Fit:  # fmt: skip
    """One replica's answer with its cross-validated score; `held` (folds, q, C) by each fold."""
    if int(fold.max()) < 1:
        return Fit(variant, 0.5 if classes == 2 else 1.0 / classes, answer)
    f = fold.cpu().numpy()
    mine = held[f, np.arange(len(f))]
    return Fit(variant, cv_score(mine, known.labels.cpu().numpy()), answer, mine)


def _answer(stack: Replicas, targets: Tensor, copies: int) -> NDArray[np.float64]:
    """Log class shares (R, n, C) of the models fitted to all known rows."""
    last = torch.arange(copies - 1, stack.count, copies, device=stack.device)
    full = stack.take(last)
    chunk = max(1, 2**22 // max(1, math.prod(targets.shape[2:]) * len(last)))
    parts = [torch.log_softmax(full(t, train=False), dim=-1) for t in targets.split(chunk, dim=1)]
    return torch.cat(parts, dim=1).double().cpu().numpy()
