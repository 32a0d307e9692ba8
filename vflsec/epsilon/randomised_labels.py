"""Audit of label privacy without canaries: the labels' own randomness stands in for the coin.

For a row with label y a counterfactual label y' is drawn from a proxy's class shares q(. | x); the
attacker is given the two in random order and says, by its scores, which of them was trained on.
If the proxy were the truth p(. | x), y and y' would be exchangeable and this a fair coin, so right
guesses bound epsilon as planted canaries do. A proxy that is off moves the odds of the coin, at
most by exp(tau), which whoever asks takes off the bound:

    epsilon >= one_run(guesses, right) - tau

Rows with y' = y tell nothing and are left out. Nothing has to be planted, so it serves recorded
traces. How far the proxy is off cannot be told from it alone: the same audit of an attacker that
sees the features alone shows how large tau is at least.

Source: Kalemaj, Melis, Boucher, Mironov, Mahloujifar, "Observational auditing of label privacy",
arXiv:2511.14084 (2025); the estimator: Steinke, Nasr, Jagielski, NeurIPS 2023, arXiv:2305.08846.
The treatment of the proxy's error by the odds is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core import check
from vflsec.epsilon.one_run_bound import best_bound

FOLDS = 5


@dataclass(frozen=True)
class Observed:
    """What an audit without canaries found.

    Attributes:
        epsilon: lower bound, if the proxy is the truth.
        guesses, right: of the share of pairs that gave it.
        pairs: rows whose two labels differ.
        without: the same bound for the proxy itself as an attacker; above 0 it says that tau is at
            least that large. It does not see that a proxy is too flat.
    """

    epsilon: float = 0.0
    guesses: int = 0
    right: int = 0
    pairs: int = 0
    without: float = 0.0


def observe(
    scores: Tensor,
    labels: Tensor,
    proxy: Tensor,
    rng: torch.Generator,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> Observed:
    """Measure epsilon of labels from an attack's class scores.

    Args:
        scores: (n, C) of the attacker, in logarithms, larger is likelier.
        labels: (n,) int64 that were trained on; the attacker has not seen them.
        proxy: (n, C) class shares that do not depend on these labels, for example of a model
            trained on the features of other rows.
        rng: draws the counterfactuals.
        delta: of the claim.
        confidence: one-sided.

    Raises:
        ShapeError: shapes differ.
    """
    if scores.shape != proxy.shape or labels.shape != scores.shape[:1]:
        raise check.fail(
            "observed: scores, labels and proxy", "of (n, C), (n,) and (n, C)",
            (tuple(scores.shape), tuple(labels.shape), tuple(proxy.shape)),
        )  # fmt: skip
    shares = proxy.double() / proxy.double().sum(1, keepdim=True)
    other = torch.multinomial(shares, 1, generator=rng).squeeze(1)
    apart = other != labels
    pair = torch.stack([labels, other], dim=1)[apart]
    prior = shares.clamp_min(1e-12).log()[apart].gather(1, pair)
    seen = scores[apart].double().gather(1, pair)
    if not len(pair):
        return Observed()
    leads = [(of[:, 0] - of[:, 1]).cpu().numpy() for of in (seen, prior)]
    found, alone = (best_bound(lead, lead > 0, delta, confidence) for lead in leads)
    return Observed(*found[:3], len(pair), alone[0])


def cross_shares(
    columns: NDArray[np.float64], labels: NDArray[np.int64], classes: int
) -> NDArray[np.float64]:
    """Class shares (n, C) of rows by models that were fitted on other rows: a proxy for `observe`.

    The geometric mean of logistic regression and boosting on standardised columns, each row
    answered by the fit without its fold. Give it all columns that the label owner may use, for what
    it does not know counts as leaked.

    Args:
        columns: (n, d).
        labels: (n,) 0..C-1.
        classes: C.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    x = np.asarray(columns, np.float64)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)

    def boosted(a: NDArray[np.float64], y: NDArray[np.int64], b: NDArray[np.float64]) -> Any:
        model = HistGradientBoostingClassifier(
            learning_rate=0.1, max_iter=60, max_leaf_nodes=8, early_stopping=False, random_state=0
        )
        return model.fit(a, y).predict_proba(b)

    y = np.asarray(labels, np.int64)
    both = [_crossed(x, y, classes, fit) for fit in (_logistic, boosted)]
    q = np.exp(sum(np.log(p) for p in both) / len(both))
    return np.asarray(q / q.sum(1, keepdims=True))


def stack_shares(
    logs: Sequence[NDArray[np.float64]], labels: NDArray[np.int64], classes: int
) -> NDArray[np.float64]:
    """Class shares (n, C) from several log shares (n, C), weighed by cross-fitted regression."""
    wide = np.concatenate([np.clip(a - a.mean(1, keepdims=True), -20, 20) for a in logs], axis=1)
    wide = (wide - wide.mean(0)) / np.maximum(wide.std(0), 1e-9)
    return _crossed(wide, np.asarray(labels, np.int64), classes, _logistic)


def _logistic(a: NDArray[np.float64], y: NDArray[np.int64], b: NDArray[np.float64]) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1.0, max_iter=500).fit(a, y).predict_proba(b)


def _crossed(
    x: NDArray[np.float64], y: NDArray[np.int64], classes: int, fit: Callable[..., Any]
) -> NDArray[np.float64]:
    """Shares of every row by `fit` on the rows of the other folds."""
    out = np.full((len(y), classes), 1e-6)
    fold = np.arange(len(y)) % FOLDS
    for f in range(FOLDS):
        there, held = fold != f, fold == f
        seen = np.unique(y[there])
        if len(seen) == 1:
            out[held, seen[0]] = 1.0
        elif held.any():
            out[np.ix_(held, seen)] += fit(x[there], y[there], x[held])
    return out / out.sum(1, keepdims=True)


def centre_scores(scores: NDArray[np.float64], proxy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores (n,) or (n, C) of a guess as (n, C) in which classes compare within a row.

    Scores of two classes only rank; they are cut where the proxy's share of class 1 is reached.
    """
    if scores.ndim == 2:
        return scores
    cut = np.quantile(scores, 1 - float(proxy[:, 1].mean()))
    return np.stack([np.zeros_like(scores), scores - cut], axis=1)
