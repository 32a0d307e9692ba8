"""What own columns and a few known values tell of a label that is a quantity, without a federation.

The mean, ridge regression, a network by squared error, extremely randomised trees (Geurts, Ernst,
Wehenkel 2006), and the first principal direction of all own rows, which the known rows orient. All
see the known rows and own columns alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vflsec.core.view import View
from vflsec.inference.ridge_regression import Regression, fit_regressors, fit_ridge, r_squared
from vflsec.nn.rows import spread

TREES = 50


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
        found = [fit_ridge("linear", x, y, t), network, _trees(x, y, t, rng), _principal(x, y, t)]
        out.append([f for f in found if bool(torch.isfinite(f.values).all())])
    return out


def _trees(x: Tensor, y: Tensor, targets: Tensor, rng: torch.Generator) -> Regression:
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


def _principal(x: Tensor, y: Tensor, targets: Tensor) -> Regression:
    """A line through the known rows along the first principal direction of all own rows."""
    every = torch.cat([x, targets])
    sd, mean = spread(every)
    every = (every - mean) / sd.clamp_min(1e-9)
    top = torch.linalg.eigh(every.T @ every).eigenvectors[:, -1:]
    s = every @ top
    return fit_ridge("principal", s[: len(x)], y, s[len(x) :])
