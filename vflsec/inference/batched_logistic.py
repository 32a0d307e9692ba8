"""Many small logistic regressions at once: folds, penalties and classes on one axis each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCHED = 100_000
"""Rows x columns x classes beyond which L-BFGS, one fit at a time, is as fast or faster."""

_STEPS, _HALVINGS = 30, 12
_CONJUGATE, _CLOSE = 200, 1e-4  # directions of a step, and what it may leave of the squared slope
_SMALL = 32  # columns up to which all curvatures are one product, which is faster then
_ROOM = 1 << 23  # numbers held at once; 64 MiB
_SURE = 30.0  # log odds where all rows of a fit say the same

Floats = NDArray[np.float64]


def ridge_logistic(x: Floats, hit: Floats, keep: Floats, penalties: Sequence[float]) -> Floats:
    """Weights of many small logistic regressions, by Newton steps that are halved where they fail.

    Args:
        x: rows (q, p), or those of each fit (f, q, p), the last column constant 1 and not
            penalised.
        hit: what is asked of each row (a, q), 0 or 1.
        keep: which rows count in each fit (f, q), 0 or 1.
        penalties: inverse strengths C (k,): the loss is C times the sum over rows of the log loss,
            and half the squared weights.

    Returns:
        (k, f, a, p).

    A step takes time in q p² and memory in p² for each fit; see :func:`wide_logistic`.
    """
    x = np.broadcast_to(x, (len(keep), *x.shape[-2:]))
    q, p = x.shape[1:]

    def fitted(x: Floats, keep: Floats, penalties: Sequence[float]) -> Floats:
        xt = x.swapaxes(1, 2)
        c = np.asarray(penalties, float)[:, None, None, None]
        on, t = keep[None, :, None, :], hit[None, None, :, :]
        ridge = _ridge(p)

        def loss(w: Floats) -> Floats:
            m = w @ xt
            total = (c * on * (np.logaddexp(0, m) - t * m)).sum(-1)
            return np.asarray(total + 0.5 * (ridge * w * w).sum(-1))

        def step(w: Floats) -> Floats:
            share = 1 / (1 + np.exp(-np.clip(w @ xt, -500, 500)))
            gradient = (c * on * (share - t)) @ x + ridge * w
            curve = _curve(x, c * on * share * (1 - share), ridge)
            return np.asarray(np.linalg.solve(curve, gradient[..., None])[..., 0])

        return _newton(np.zeros((len(penalties), len(keep), len(hit), p)), loss, step)

    return _in_pieces(fitted, x, keep, penalties, len(hit) * (p * p + 4 * q))


def softmax_logistic(
    x: Floats, y: NDArray[np.int64], keep: Floats, penalties: Sequence[float]
) -> Floats:
    """Weights (k, f, C, p) of many multinomial logistic regressions, by Newton steps.

    As :func:`ridge_logistic`, for labels y (q,) in 0..C-1 of which every fit has some rows. Each
    class has weights of its own, which are penalised, and an intercept, which is not.

    A step solves for its direction by conjugate gradients, so that no fit takes (C p)² numbers;
    they are preconditioned by the curvature of the mean class, which takes time in q p² + p³.
    """
    x = np.broadcast_to(x, (len(keep), *x.shape[-2:]))
    q, p = x.shape[1:]
    t = np.eye(int(y.max()) + 1)[y].T  # (C, q)

    def fitted(x: Floats, keep: Floats, penalties: Sequence[float]) -> Floats:
        xt, ridge = x.swapaxes(1, 2), _ridge(p)
        c = np.asarray(penalties, float)[:, None, None, None] * keep[None, :, None, :]

        def loss(w: Floats) -> Floats:
            m = w @ xt
            top = m.max(-2, keepdims=True)
            total = top + np.log(np.exp(m - top).sum(-2, keepdims=True))
            total = (c * (total - (t * m).sum(-2, keepdims=True))).sum((-1, -2))
            return np.asarray(total + 0.5 * (ridge * w * w).sum((-1, -2)))

        def step(w: Floats) -> Floats:
            m = w @ xt
            share = np.exp(m - m.max(-2, keepdims=True))
            share /= share.sum(-2, keepdims=True)
            mean = c[:, :, 0] * (share * (1 - share)).sum(-2) / (len(t) - 1)
            near = np.asarray(np.linalg.inv(_curve(x, mean, ridge)), float)

            def bent(d: Floats) -> Floats:
                m = share * (d @ xt)
                return np.asarray((c * (m - share * m.sum(-2, keepdims=True))) @ x + ridge * d)

            return _conjugate((c * (share - t)) @ x + ridge * w, bent, near)

        return _newton(np.zeros((len(penalties), len(keep), len(t), p)), loss, step)

    return _in_pieces(fitted, x, keep, penalties, 2 * p * p + 6 * len(t) * (p + q))


def _ridge(p: int) -> Floats:
    """How much each of p weights is penalised, the last next to nothing."""
    out = np.ones(p)
    out[-1] = 1e-9
    return out


def _curve(x: Floats, bend: Floats, ridge: Floats) -> Floats:
    """Second derivatives (k, f, ..., p, p) of fits that bend so much (k, f, ..., q) at a row."""
    p = x.shape[2]
    if p <= _SMALL:
        of = x[(slice(None), *[None] * (bend.ndim - 3))]  # (f, ..., q, p)
        out = (of.swapaxes(-1, -2) * bend[..., None, :]) @ of
    else:
        out = np.empty((*bend.shape[:-1], p, p))
        for at in np.ndindex(bend.shape[:-1]):
            out[at] = (x[at[1]].T * bend[at]) @ x[at[1]]
    out[..., range(p), range(p)] += ridge + 1e-9
    return out


def _newton(
    w: Floats, loss: Callable[[Floats], Floats], step: Callable[[Floats], Floats]
) -> Floats:
    """Weights after steps that are halved where they fail, until none gains by another."""
    now = loss(w)

    def of_weights(size: NDArray[Any]) -> NDArray[Any]:
        return size.reshape(size.shape + (1,) * (w.ndim - size.ndim))

    for _ in range(_STEPS):
        move, size = step(w), np.ones(now.shape)
        for _ in range(_HALVINGS):
            tried = w - of_weights(size) * move
            then = loss(tried)
            worse = then > now + 1e-12 * np.abs(now)
            if not worse.any():
                break
            size[worse] /= 2
        good = ~worse
        w, before = np.where(of_weights(good), tried, w), now
        now = np.where(good, then, now)
        if (before - now <= 1e-8 * (1 + np.abs(now))).all():
            break
    return w


def _conjugate(slope: Floats, bent: Callable[[Floats], Floats], near: Floats) -> Floats:
    """What `bent` takes to about the slope (k, f, C, p), by conjugate gradients on each fit.

    Args:
        near: about the inverse of `bent` for each class (k, f, p, p).
    """
    found, left = np.zeros_like(slope), slope
    d = h = left @ near
    size = (left * h).sum((-1, -2))
    enough, far = _CLOSE * size, size > 0
    for _ in range(_CONJUGATE):
        if not far.any():
            break
        b = bent(d)
        a = np.where(far, size / np.maximum((d * b).sum((-1, -2)), 1e-300), 0)[..., None, None]
        found, left = found + a * d, left - a * b
        h = left @ near
        before, size = size, (left * h).sum((-1, -2))
        far &= size > enough
        d = h + (size / np.maximum(before, 1e-300))[..., None, None] * d
    return found


def _in_pieces(
    fitted: Callable[[Floats, Floats, Sequence[float]], Floats],
    x: Floats, keep: Floats, penalties: Sequence[float], each: int,
) -> Floats:  # fmt: skip
    """All fits, in halves as long as they hold too many numbers at once; `each` is those of one."""
    k, f = len(penalties), len(keep)
    if k * f * each <= _ROOM or k * f <= 1:
        return fitted(x, keep, penalties)
    if k > 1:
        parts = penalties[: k // 2], penalties[k // 2 :]
        return np.concatenate([_in_pieces(fitted, x, keep, part, each) for part in parts])
    halves = slice(None, f // 2), slice(f // 2, None)
    return np.concatenate(
        [_in_pieces(fitted, x[of], keep[of], penalties, each) for of in halves], axis=1
    )


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
