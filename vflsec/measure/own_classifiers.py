"""What own columns and a few known labels tell by themselves: learners without a federation.

Logistic regression under several penalties (with few rows the shrunk ones win: in the limit they
are the difference of the class means), extremely randomised trees (Geurts, Ernst, Wehenkel 2006),
boosting where the rows suffice, and the first principal direction of all own rows, which the known
rows orient. All are fitted on standardised columns and the known rows alone; nothing is chosen
among them, for a leak has to beat each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import View
from vflsec.inference.batched_logistic import ridge_logistic, wide_logistic
from vflsec.inference.completion import Fit, assign_folds, cv_score
from vflsec.inference.ridge_regression import Regression, fit_regressors, fit_ridge, r_squared
from vflsec.nn.rows import spread

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Inverse strengths of the penalty of logistic regression; 1 is called plain ``logistic``."""

BOOST_FROM = 200
"""Known rows from which on boosting is tried."""

TREES = 50
_FOLDS, _POPULATION = 5, 1e-2
_NEVER = -30.0  # log share of a class that was never seen
_WIDE = 500
"""Columns from which on many rows are fitted without the matrix of second derivatives."""
_DENSE = 1500
"""Columns and rows up to which all principal directions are computed to get the first."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def fit_learners(
    view: View, rng: torch.Generator, inputs: Callable[[Tensor], Tensor] | None = None
) -> Iterator[Fit]:
    """Each learner's cross-validated score and log class shares (n, C) of the target rows.

    Boosting is not cross-validated (its score is NaN).

    Args:
        view: with two known rows or more.
        rng: for the trees.
        inputs: numbers (m, p) of rows (m,), standardised here; own columns if None.
    """
    known, rows, classes = view.require_known(), view.target_rows, view.facts.classes
    own = (inputs or view.design)(torch.cat([known.rows, rows])).double().cpu().numpy()
    own = (own - own.mean(0)) / np.maximum(own.std(0), 1e-9)
    q, y = len(known), known.labels.cpu().numpy()
    fold = assign_folds(known.labels).cpu().numpy()
    yield from _logistic(own, y, fold, classes)
    if classes == 2 and len(np.unique(y)) == 2:
        yield _principal(own, y, fold)
    seed = int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))
    if len(np.unique(y)) > 1:
        yield _trees(own[:q], y, own[q:], classes, seed)
        if q >= BOOST_FROM:
            yield _boosting(own[:q], y, own[q:], classes, seed)


def from_randomised(view: View, labels: Tensor) -> Fit:
    """What own columns tell to one who learns from the randomised labels of everybody else.

    Part of what an attack recovers under randomised response is inference about the population,
    which any n randomised answers allow, and no leak of a row's own (Wu et al., arXiv:2202.12968).
    Every row is answered by a fit that did not see its own label.

    Args:
        view: of the adversary; its known rows keep their true labels.
        labels: (N,) randomised labels by sample id, -1 where there is none.
    """
    rows, classes = view.target_rows, view.facts.classes
    labels = labels.clone()
    if view.known is not None:
        labels[view.known.rows.cpu()] = view.known.labels.cpu()
    given = (labels >= 0).nonzero().squeeze(1)
    every = torch.cat([given.to(rows.device), rows])
    own = view.design(every).double().cpu().numpy()
    own = (own - own.mean(0)) / np.maximum(own.std(0), 1e-9)
    q, y = len(given), labels[given].numpy()
    fold = np.arange(q) % _FOLDS
    keep = np.stack([fold != f for f in range(_FOLDS)] + [np.ones(q, bool)]).astype(float)
    seen = np.unique(y)
    ask = seen[1:] if classes == 2 else seen
    x = np.hstack([own, np.ones((len(own), 1))])
    hit = (y == ask[:, None]).astype(float) if len(seen) > 1 else np.zeros((0, q))
    if x.shape[1] > _WIDE:
        w = wide_logistic(x[:q], hit, keep, _POPULATION)
    else:
        (w,) = ridge_logistic(x[:q], hit, keep, (_POPULATION,))
    of = np.full(len(labels), _FOLDS)
    of[given.numpy()] = fold
    margin = np.einsum("np,nap->na", x[q:], w[of[rows.cpu().numpy()]])
    return Fit("randomised", float("nan"), _log_shares(margin, seen, classes))


def _logistic(own: Floats, y: Ints, fold: Ints, classes: int) -> Iterator[Fit]:
    """Every penalty on all known rows and without each fold, one class against the rest."""
    q, seen = len(y), np.unique(y)
    if own.shape[1] > q:  # the weights lie in the span of the known rows
        own = own @ np.linalg.svd(own[:q], full_matrices=False)[2].T
    folds = fold.max() + 1 if fold.max() >= 1 else 0
    keep = np.stack([fold != f for f in range(folds)] + [np.ones(q, bool)]).astype(float)
    x = np.hstack([own, np.ones((len(own), 1))])
    ask = seen[1:] if classes == 2 else seen
    hit = (y == ask[:, None]).astype(float) if len(seen) > 1 else np.zeros((0, q))
    w = ridge_logistic(x[:q], hit, keep, PENALTIES)  # (penalties, folds + 1, asked, p + 1)
    for k, c in enumerate(PENALTIES):
        cv = 0.5 if classes == 2 else float(np.bincount(y, minlength=classes).max() / q)
        if folds:
            held = np.einsum("qp,qap->qa", x[:q], w[k, fold])
            cv = cv_score(_log_shares(held, seen, classes), y)
        name = "logistic" if c == 1 else f"logistic(C={c:g})"
        yield Fit(name, cv, _log_shares(x[q:] @ w[k, -1].T, seen, classes))


def _log_shares(margin: Floats, seen: Ints, classes: int) -> Floats:
    """Log class shares (n, C) from the margins (n, a) of the classes that were asked about."""
    out = np.full((len(margin), classes), _NEVER)
    if len(seen) == 1:
        out[:, seen[0]] = 0.0
    elif classes == 2:
        out = np.stack([-np.logaddexp(0, margin[:, 0]), -np.logaddexp(0, -margin[:, 0])], 1)
    else:
        share = -np.logaddexp(0, -margin)
        out[:, seen] = share - np.log(np.exp(share).sum(1, keepdims=True))
    return out


def _shares(p: Floats, seen: Ints, classes: int) -> Floats:
    out = np.full((len(p), classes), _NEVER)
    out[:, seen] = np.log(np.clip(p, 1e-13, None))
    return out


def _principal(own: Floats, y: Ints, fold: Ints) -> Fit:
    """The first principal direction of all own rows, with the sign that the known rows give it."""
    q, s = len(y), _scores(own)
    s = s / max(float(s.std()), 1e-12)

    def sign(among: NDArray[np.bool_]) -> float:
        gap = s[:q][among & (y == 1)].mean() - s[:q][among & (y == 0)].mean()
        return 1.0 if gap >= 0 else -1.0

    cv = 0.5
    if fold.max() >= 1:
        held = np.array([sign(fold != f) for f in range(fold.max() + 1)])[fold] * s[:q]
        cv = cv_score(np.stack([np.zeros(q), held], 1), y)
    margin = sign(np.ones(q, bool)) * s[q:]
    return Fit("principal", cv, np.stack([-np.logaddexp(0, margin), -np.logaddexp(0, -margin)], 1))


def _scores(own: Floats) -> Floats:
    """Rows (n,) along the first principal direction, but for size and sign."""
    tall = own.shape[1] <= len(own)
    if min(own.shape) <= _DENSE:
        top = np.linalg.eigh(own.T @ own if tall else own @ own.T)[1][:, -1]
        return np.asarray(own @ top if tall else top)
    from scipy.sparse.linalg import LinearOperator, eigsh

    p = own.shape[1]
    second = LinearOperator((p, p), matvec=lambda v: own.T @ (own @ v), dtype=own.dtype)
    return np.asarray(own @ eigsh(second, k=1, which="LA", v0=np.ones(p))[1][:, 0])


def _trees(x: Floats, y: Ints, targets: Floats, classes: int, seed: int) -> Fit:
    """Cross-validated for free on the rows that each tree did not draw.

    As `sklearn.ensemble.ExtraTreesClassifier` makes it, bit for bit, without its checks of every
    tree, which took twice as long as all trees.
    """
    from sklearn import config_context
    from sklearn.tree import ExtraTreeClassifier

    near, far = x.astype(np.float32), targets.astype(np.float32)
    seen, place = np.unique(y, return_inverse=True)
    q, seeds = len(y), np.random.RandomState(seed)  # the generator of scikit-learn
    told, held, left_out = np.zeros((len(far), len(seen))), np.zeros((q, len(seen))), np.zeros(q)
    least, rng = 1 if q < 100 else 3, np.random.RandomState(0)
    tree = ExtraTreeClassifier(min_samples_leaf=least, random_state=rng)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for of_tree in seeds.randint(np.iinfo(np.int32).max, size=TREES):
            rng.seed(of_tree)
            times = np.bincount(rng.randint(0, q, q), minlength=q)
            rng.seed(of_tree)
            tree.fit(near, place, sample_weight=times, check_input=False)
            left = times == 0
            told += tree.tree_.predict(far)
            held[left] += tree.tree_.predict(near[left])
            left_out[left] += 1
    told, held = told / TREES, held / np.maximum(left_out, 1)[:, None]
    cv = cv_score(_shares(held, seen, classes), y)
    return Fit("trees", cv, _shares(told, seen, classes))


def _boosting(x: Floats, y: Ints, targets: Floats, classes: int, seed: int) -> Fit:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=100, max_leaf_nodes=8, min_samples_leaf=10,
        early_stopping=False, random_state=seed,
    )  # fmt: skip
    model.fit(x, y)
    p = model.predict_proba(targets)
    return Fit("boosting", float("nan"), _shares(p, model.classes_, classes))


def value_learners(
    views: Sequence[View],
    rngs: Sequence[torch.Generator],
    inputs: Sequence[Callable[[Tensor], Tensor]],
) -> list[list[Regression]]:
    """Each learner's answer (n, 1) for the target rows of each view, and its R^2 on held-out rows.

    Args:
        views: with two known rows or more, of equal number.
        rngs: for the networks and the trees.
        inputs: of each view, numbers (m, p) of rows (m,), such as own columns.
    """
    known = [of(v.require_known().rows).double() for v, of in zip(views, inputs, strict=True)]
    asked = [of(v.target_rows).double() for v, of in zip(views, inputs, strict=True)]
    values = [v.require_known().labels.double().unsqueeze(1) for v in views]
    networks = fit_regressors("network", known, values, asked, rngs)
    out = []
    for x, t, y, network, rng in zip(known, asked, values, networks, rngs, strict=True):
        found = [
            fit_ridge("linear", x, y, t),
            network,
            _value_trees(x, y, t, rng),
            _value_principal(x, y, t),
        ]
        out.append([f for f in found if bool(torch.isfinite(f.values).all())])
    return out


def _value_trees(x: Tensor, y: Tensor, targets: Tensor, rng: torch.Generator) -> Regression:
    """Trees on bootstraps, scored on the rows that each left out."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(
        TREES, min_samples_leaf=2, bootstrap=True, oob_score=True, random_state=seed
    )
    with np.errstate(all="ignore"):
        model.fit(x.cpu().numpy(), y.squeeze(1).cpu().numpy())
    held = torch.as_tensor(model.oob_prediction_).unsqueeze(1).to(y)
    answer = torch.as_tensor(model.predict(targets.cpu().numpy())).unsqueeze(1)
    return Regression("trees", r_squared(held, y), answer.to(y))


def _value_principal(x: Tensor, y: Tensor, targets: Tensor) -> Regression:
    """A line through the known rows along the first principal direction of all own rows."""
    every = torch.cat([x, targets])
    sd, mean = spread(every)
    every = (every - mean) / sd.clamp_min(1e-9)
    top = torch.linalg.eigh(every.T @ every).eigenvectors[:, -1:]
    s = every @ top
    return fit_ridge("principal", s[: len(x)], y, s[len(x) :])
