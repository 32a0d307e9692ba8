"""From raw columns to model inputs: everything fitted on training rows only.

Plain z-scores are the default. A 64-32 network over four (credit default) and two (adult) random
splits has validation AUC 0.775 with z-scores against 0.774 with rank-normal inputs, and 0.913
against 0.907.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vflsec.data.source import PartyData

Scale = Literal["zscore", "rank"]
SCALES: tuple[str, ...] = get_args(Scale)

LIMIT = 1e6
"""Standardised values are clipped here, so that an absurd test value stays finite in float32."""

QUANTILES = 1000


def prepared_columns(data: PartyData, fit: NDArray[np.bool_], scale: Scale) -> NDArray[np.float32]:
    """Input rows of one party, (N_k, d) float32, columns in their own order.

    Numeric columns have mean 0 and standard deviation 1 over the rows in `fit`; missing values and
    columns that are constant there become 0. With ``scale="rank"`` they first pass through the
    empirical distribution function of those rows and the normal quantile function. A categorical
    column keeps its codes; a category that is missing, or absent from the rows in `fit`, gets 0.

    Args:
        data: the party's table.
        fit: (N_k,) which of its rows are training rows.
        scale: ``zscore`` or ``rank``.
    """
    out = np.zeros(data.values.shape, dtype=np.float32)
    numeric = [i for i, c in enumerate(data.categories) if c is None]
    if numeric:
        columns = data.values[:, numeric].astype(np.float64, copy=False)
        if scale == "rank":
            columns = _rank_normal(columns, fit)
        _standardise(columns, fit)
        out[:, numeric] = columns
    for i, names in enumerate(data.categories):
        if names is not None:
            codes = np.nan_to_num(data.values[:, i], nan=0.0).astype(np.int64)
            seen = np.zeros(len(names) + 1, dtype=bool)
            seen[codes[fit]] = True
            out[:, i] = np.where(seen[codes], codes, 0)
    return out


def _standardise(x: NDArray[np.float64], fit: NDArray[np.bool_]) -> None:
    """Take from columns their mean over the `fit` rows, and divide by their (population) standard
    deviation, in place: a copy is as large as the table.
    """
    there = ~np.isnan(x)
    used = there & fit[:, None]
    n = np.maximum(used.sum(axis=0), 1)
    size = np.max(np.abs(x), axis=0, where=used, initial=0.0)
    size[size == 0] = 1.0
    x[~there] = 0.0
    x /= size  # so that squares cannot overflow
    x -= np.sum(x, axis=0, where=used) / n
    sd = np.sqrt(np.sum(x**2, axis=0, where=used) / n)
    constant = sd < 1e-12
    x /= np.where(constant, 1.0, sd)
    np.clip(x, -LIMIT, LIMIT, out=x)
    x[~(there & ~constant)] = 0.0


def _rank_normal(x: NDArray[np.float64], fit: NDArray[np.bool_]) -> NDArray[np.float64]:
    from sklearn.preprocessing import QuantileTransformer

    known = (~np.isnan(x[fit])).sum(axis=0) > 0
    if not known.any():
        return x
    quantiles = min(QUANTILES, int(fit.sum()))
    transform = QuantileTransformer(
        n_quantiles=quantiles, output_distribution="normal", subsample=10**9
    )
    out = np.full_like(x, np.nan)
    out[:, known] = transform.fit(x[fit][:, known]).transform(x[:, known])
    return out
