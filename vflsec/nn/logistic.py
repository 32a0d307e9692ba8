"""Many small logistic regressions at once: folds, penalties and classes on one axis each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["ridge_logistic", "wide_logistic"]

_STEPS, _HALVINGS = 30, 12
_SURE = 30.0  # log odds where all rows of a fit say the same

Floats = NDArray[np.float64]


def ridge_logistic(x: Floats, hit: Floats, keep: Floats, penalties: Sequence[float]) -> Floats:
    """Weights of many small logistic regressions, by Newton steps that are halved where they fail.

    Args:
        x: rows (q, p), the last column constant 1 and not penalised.
        hit: what is asked of each row (a, q), 0 or 1.
        keep: which rows count in each fit (f, q), 0 or 1.
        penalties: inverse strengths C (k,): the loss is C times the sum over rows of the log loss,
            and half the squared weights.

    Returns:
        (k, f, a, p).

    A step takes time in q p² and memory in p² for each fit; see :func:`wide_logistic`.
    """
    c = np.asarray(penalties, float)[:, None, None, None]
    on, t = keep[None, :, None, :], hit[None, None, :, :]
    ridge = np.ones(x.shape[1])
    ridge[-1] = 1e-9
    w = np.zeros((len(penalties), len(keep), len(hit), x.shape[1]))

    def loss(w: Floats) -> Floats:
        m = w @ x.T
        total = (c * on * (np.logaddexp(0, m) - t * m)).sum(-1) + 0.5 * (ridge * w * w).sum(-1)
        return np.asarray(total)

    now = loss(w)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(w @ x.T, -500, 500)))
        gradient = (c * on * (p - t)) @ x + ridge * w
        bend = c * on * p * (1 - p)
        curve = np.empty((*w.shape, x.shape[1]))
        for at in np.ndindex(w.shape[:-1]):
            curve[at] = (x.T * bend[at]) @ x
        curve[..., range(x.shape[1]), range(x.shape[1])] += ridge + 1e-9
        step = np.linalg.solve(curve, gradient[..., None])[..., 0]
        size = np.ones(w.shape[:-1])
        for _ in range(_HALVINGS):
            then = loss(w - size[..., None] * step)
            worse = then > now + 1e-12 * np.abs(now)
            if not worse.any():
                break
            size[worse] /= 2
        good = ~worse
        w, before = np.where(good[..., None], w - size[..., None] * step, w), now
        now = np.where(good, then, now)
        if (before - now <= 1e-8 * (1 + np.abs(now))).all():
            break
    return w


def wide_logistic(x: Floats, hit: Floats, keep: Floats, penalty: float) -> Floats:
    """The same weights for one penalty, (f, a, p), of rows with many columns, by L-BFGS.

    Its steps take time in q p and no memory; the loss is convex, so the answer is the same.
    """
    from sklearn.linear_model import LogisticRegression

    w = np.zeros((len(keep), len(hit), x.shape[1]))
    for f, a in np.ndindex(w.shape[:2]):
        on = keep[f] > 0
        if len(np.unique(hit[a][on])) < 2:
            w[f, a, -1] = _SURE if hit[a][on].any() else -_SURE
            continue
        model = LogisticRegression(C=penalty, tol=1e-6, max_iter=1000)
        model.fit(x[on, :-1], hit[a][on])
        w[f, a] = np.append(model.coef_[0], model.intercept_[0])
    return w
