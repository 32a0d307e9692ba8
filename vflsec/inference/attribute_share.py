"""The share of rows that have an attribute, estimated from a few rows of which it is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Known
from vflsec.inference.completion import Fit, choose_fit, logistic_cv
from vflsec.nn.rows import scale_columns


class Estimate(NamedTuple):
    """An estimated share, the weight of the regression in it, and its standard error."""

    share: float
    weight: float
    error: float


def estimate_share(
    known: Known, told: Iterable[Callable[[], Tensor]], classes: int, value: int
) -> Estimate:
    """By the logistic regression of `told` that cross-validation prefers; else the known rows' own.

    Args:
        known: the attribute of q rows.
        told: what makes inputs (q + n, d) of these rows and of those that are asked about, one at a
            time, for each may be large; may be empty.
        classes: of the attribute.
        value: the one whose share it is.
    """
    a = (known.labels == value).double().cpu().numpy()

    def fit(x: Tensor) -> Fit:
        scaled, q = scale_columns(x), len(known)
        return logistic_cv(
            scaled.take(slice(q)), known, partial(scaled.pieces, q), classes, "share"
        )

    best = choose_fit((fit(make()) for make in (told if 0 < a.sum() < len(a) else ())), {})
    if best is None or best.held is None:
        return Estimate(float(a.mean()), 0.0, math.sqrt(float(a.var()) / len(a)))
    return combine_estimates(a, np.exp(best.held[:, value]), np.exp(best.scores[:, value]))


def combine_estimates(
    a: NDArray[np.float64], held: NDArray[np.float64], p: NDArray[np.float64]
) -> Estimate:
    """The estimate from attributes and what a regression makes of them.

    Args:
        a, held: attribute (0 or 1) and held-out shares of the known rows, (q,).
        p: shares of the other rows, (n,).

    Source: Angelopoulos, Duchi, Zrnic, "PPI++: efficient prediction-powered inference",
    arXiv:2311.01453 (2023), sections 2 and 6.
    """
    spread = float(held.var()) * (1 + len(a) / len(p))
    weight = float(((a - a.mean()) * (held - held.mean())).mean()) / spread if spread > 0 else 0.0
    weight = min(max(weight, 0.0), 1.0)
    rest = a - weight * held
    found = weight * float(p.mean()) + float(rest.mean())
    variance = float(rest.var()) / len(a) + weight**2 * float(p.var()) / len(p)
    return Estimate(min(max(found, 0.0), 1.0), weight, math.sqrt(variance))
