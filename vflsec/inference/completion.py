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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Known
from vflsec.inference.batched_logistic import BATCHED, ridge_logistic, softmax_logistic

SHRINKAGE = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Inverse penalties of logistic regression, the most shrunk first."""
NEAR = 2.0
"""How many standard errors behind the best a simpler variant may be and still be taken."""

Targets = NDArray[np.float64] | Iterable[NDArray[np.float64]]
_LEAST = float(np.log(1e-13))  # log share below which none is told


class Problem(NamedTuple):
    """What R attackers who know the classes of a few rows are to find out.

    Attributes:
        inputs: R tensors (q, ...): inputs of the known rows, in grant order.
        knowns: R grants of q rows each.
        targets: R tensors (n, ...): inputs of the rows to answer.
        classes: C.
    """

    inputs: Sequence[Tensor]
    knowns: Sequence[Known]
    targets: Sequence[Tensor]
    classes: int


@dataclass(frozen=True)
class Fit:
    """One fitted variant: its name, cross-validated score on the known rows, answer on the targets.

    `made` the answer, or what makes it: most fits are never asked; `held` (q, C) that for the known
    rows from the folds that left them out, None if there were no folds; `penalty` the inverse
    strength of the chosen penalty.
    """

    variant: str
    cv: float
    made: NDArray[np.float64] | Callable[[], NDArray[np.float64]]
    held: NDArray[np.float64] | None = None
    penalty: float | None = None

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """Log class shares (n, C) of the target rows, larger = more certain."""
        return self.made() if callable(self.made) else self.made


def choose_fit(fits: Iterable[Fit], told: dict[str, float]) -> Fit | None:
    """The first of those that cross-validation finds best, if there is one; `told` gets the scores.

    Its answer is worked out before the next one is made, for what makes it may hold all rows.
    """
    best: Fit | None = None
    for fit in fits:
        told[fit.variant] = fit.cv
        if best is None or fit.cv > best.cv:
            best = replace(fit, made=fit.scores)
        del fit  # so that it is gone while the next one is made
    return best


@dataclass(frozen=True)
class Fitted:
    """One variant fitted for every replica, before it answers: most variants are never asked to.

    Attributes:
        variant: its name.
        cv, held, penalty: of each replica, as in :class:`Fit`.
        answer: log class shares (n, C) of the target rows of each of the given replicas.
    """

    variant: str
    cv: Sequence[float]
    held: Sequence[NDArray[np.float64] | None]
    penalty: Sequence[float | None]
    answer: Callable[[Sequence[int]], Sequence[NDArray[np.float64]]]

    def fits(self, replicas: Sequence[int]) -> list[Fit]:
        """The given replicas' fits, with their answers."""
        return [
            Fit(self.variant, self.cv[r], scores, self.held[r], self.penalty[r])
            for r, scores in zip(replicas, self.answer(replicas), strict=True)
        ]


def assign_folds(labels: Tensor) -> Tensor:
    """Stratified fold of each known row (q,), deterministic by grant order; -1 if none can be made.

    The number of folds is the smallest class count, at most 5.
    """
    counts = torch.bincount(labels)
    present = counts[counts > 0]
    k = min(5, int(present.min())) if len(present) > 1 else 0
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


def fit_logistic(
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
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        model.fit(x, y)
    out[:, seen] = np.log(model.predict_proba(targets).clip(1e-13))
    return out


def logistic_by_one(
    x: NDArray[np.float64],
    known: Known,
    targets: NDArray[np.float64] | Callable[[Sequence[int]], NDArray[np.float64]],
    classes: int,
    name: str,
) -> Fit:
    """Logistic regression on the one column of `x` that tells the known rows apart best.

    Inputs and outputs as for :func:`logistic_cv`; `targets` may give the one column (n, 1) that is
    named by its place alone.

    Raises:
        ValueError: the known rows are not finite.
    """
    y, keep = known.labels.cpu().numpy(), _rows_of_fits(known.labels)
    _require_finite(x)
    entries = [_entry(x[on], y[on]) for on in keep]
    fitted = _Fits(np.stack([x[:, j] for j in entries]), y, classes, keep, (1.0,))
    held = np.zeros((len(y), classes))
    for f, on in enumerate(keep[:-1]):
        held[~on] = fitted.answer(0, f, x[~on][:, entries[f]])
    cv = cv_score(held, y) if len(keep) > 1 else 0.0

    def answer() -> NDArray[np.float64]:
        asked = targets(entries[-1]) if callable(targets) else targets[:, entries[-1]]
        return fitted.answer(0, -1, asked)

    return Fit(name, cv, answer)


def _entry(x: NDArray[np.float64], y: NDArray[np.int64]) -> list[int]:
    """Which entry of x (q, p) has class means that differ most from those of chance."""
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    within = sum(((x[y == c] - m) ** 2).sum(0) for c, m in zip(np.unique(y), means, strict=True))
    return [int((means.var(0) / np.maximum(within, 1e-12)).argmax())]


def logistic_cv(
    x: NDArray[np.float64],
    known: Known,
    targets: Targets | Callable[[], Targets],
    classes: int,
    name: str,
    grid: Sequence[float] = (1.0,),
) -> Fit:
    """Logistic regression on known rows `x` (q, p) under the penalty that cross-validation chooses.

    Args:
        x, classes: see :func:`fit_logistic`.
        known: the grant behind `x`.
        targets: rows to answer (n, p), whole or in pieces, or what makes them when asked for.
        name: of the result.
        grid: penalties that compete in cross-validation, most shrunk first.
    """
    y, keep = known.labels.cpu().numpy(), _rows_of_fits(known.labels)
    basis = None
    if x.shape[1] > len(x):  # the weights lie in the span of the known rows
        basis = np.linalg.svd(x, full_matrices=False)[2].T  # (p, q)
        x = x @ basis
    chance = 0.5 if classes == 2 else float(np.bincount(y, minlength=classes).max() / len(y))
    fitted = _Fits(x, y, classes, keep, grid)

    def answer(k: int) -> NDArray[np.float64]:
        asked = targets() if callable(targets) else targets
        pieces = (asked,) if isinstance(asked, np.ndarray) else asked
        told = (fitted.answer(k, -1, t if basis is None else t @ basis) for t in pieces)
        return np.concatenate(list(told))

    if len(keep) == 1:
        return Fit(name, chance, partial(answer, 0), None, grid[0])
    held = np.zeros((len(grid), len(y), classes))
    for k, f in itertools.product(range(len(grid)), range(len(keep) - 1)):
        held[k, ~keep[f]] = fitted.answer(k, f, x[~keep[f]])
    best = simplest_good(list(held), y)
    return Fit(name, cv_score(held[best], y), partial(answer, best), held[best], grid[best])


def _rows_of_fits(labels: Tensor) -> NDArray[np.bool_]:
    """Known rows (f + 1, q) of the fits without each fold and, last, of the fit to all.

    Every fit has rows of every class that is known: a class has a row in two folds or more.
    """
    fold = assign_folds(labels).cpu().numpy()
    without = [fold != f for f in range(fold.max() + 1)]
    return np.stack([*without, np.ones(len(fold), bool)])


def _require_finite(x: NDArray[np.float64]) -> None:
    """Weights that were never moved from 0 would look like an attack that finds nothing."""
    if not np.isfinite(x).all():
        raise ValueError("the known rows hold numbers that are not finite.")


class _Fits:
    """Logistic regressions under every penalty on every set of rows, in one batch.

    The batch is that of one attacker on one training, so no result depends on another training's.
    Beyond BATCHED numbers fits of more than two classes are made when asked for, one by one.
    """

    def __init__(
        self, x: NDArray[np.float64], y: NDArray[np.int64], classes: int,
        keep: NDArray[np.bool_], grid: Sequence[float],
    ) -> None:  # fmt: skip
        """Rows x (q, p), or (f, q, p) those of each fit; `keep` (f, q) has rows of every class."""
        self.x = np.broadcast_to(x, (len(keep), *x.shape[-2:]))
        self.y, self.classes, self.keep, self.grid = y, classes, keep, grid
        self.weights: dict[float, NDArray[np.float64]] = {}  # (f, 1 or classes seen, p + 1)
        self.seen, place = np.unique(y, return_inverse=True)
        penalties, rows = [c for c in grid if c > 0], keep.astype(float)
        small = math.prod(x.shape[-2:]) * len(self.seen) <= BATCHED
        wide = np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)
        if len(self.seen) == 2 and penalties:
            found = ridge_logistic(wide, place[None].astype(float), rows, penalties)
        elif len(self.seen) > 2 and penalties and small:
            _require_finite(x)
            found = softmax_logistic(wide, place, rows, penalties)
        else:
            return
        self.weights = dict(zip(penalties, found, strict=True))

    def answer(self, k: int, f: int, targets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log class shares (n, C) of `targets` by penalty `k` fitted on rows `f`."""
        c, on = self.grid[k], self.keep[f]
        if c not in self.weights:
            return fit_logistic(self.x[f][on], self.y[on], targets, self.classes, c)
        w = self.weights[c][f]
        if self.classes == 2:
            margin = targets @ w[0, :-1] + w[0, -1]
            shares = np.stack([-np.logaddexp(0, margin), -np.logaddexp(0, -margin)], axis=1)
            return shares.clip(_LEAST)  # type: ignore[no-any-return]
        margins = targets @ w[:, :-1].T + w[:, -1]
        if len(w) == 1:  # the log odds of the second class that was seen
            margins = np.hstack([np.zeros_like(margins), margins])
        out = np.full((len(targets), self.classes), -30.0)
        shares = margins - np.logaddexp.reduce(margins, axis=1, keepdims=True)
        out[:, self.seen] = shares.clip(_LEAST)
        return out
