"""Divide the columns of one table between parties, by importance or by correlation.

Who holds what decides whether a federation pays. So that this is a dial and not an accident, the
columns of one table are given to parties

- by a share: of 1,000 random divisions, in which the active party gets each column with
  probability 1 - s and each of the K - 1 passive ones with s / (K - 1), the one is taken whose
  parties' shares of the importance are nearest to these (smallest largest deviation);
- by Dirichlet weights: the probabilities are drawn from Dirichlet(alpha, ..., alpha), one division
  is drawn, and importance is not looked at;
- by correlation: with equal numbers of columns, so that

      Icor = mean over parties i and j != i of Pcor(i, j) - Pcor(i, i),
      Pcor(i, j) = standard deviation of the singular values of the Spearman correlations of the
                   columns of i and j, divided by the root of the smaller number of columns,

  is as near as possible to beta max Icor + (1 - beta) min Icor.

Every party gets one column first. Draws come from the stream of `draw`, so a division is the same
for every seed, every algorithm and every process.

The importance of a column is its part of R^2, the share of the variance of the label that an
additive model explains: each column is cut into bins, the model is linear in their indicators, and
relative weights divide R^2 so that all parts are non-negative and add up, and columns that repeat
each other share. It is taken from labelled rows, of a fixed split from its training rows alone.
What columns say only together has no importance here.

Source: the last two and Pcor, Icor: Wu, Hou, He, "VertiBench: advancing feature distribution
diversity in vertical federated learning benchmarks", ICLR 2024, arXiv:2307.02040. Differences:
extremes of Icor are sought by exchanging two columns, not by a genetic algorithm, and the paper
has no division by a given share. Relative weights: J. W. Johnson, "A heuristic method for
estimating the relative weight of predictor variables in multiple regression", Multivariate
Behavioral Research 35 (2000).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 1000
"""Random divisions among which the nearest to a share is chosen."""
SWAPS = 1000
"""Exchanges of two columns that are tried for a goal of Icor."""
_BINS, _INDICATORS, _TINY = 8, 1600, 1e-9


@dataclass(frozen=True, kw_only=True)
class Division:
    """How columns are to be divided; one of the first three.

    Attributes:
        importance: share of the importance at the passive parties together, in (0, 1).
        alpha: parameter of the Dirichlet distribution, > 0; small values are uneven.
        correlation: beta, from 0 (least correlation between parties) to 1 (most).
        parties: how many.
        draw: which of the divisions; another number gives another.
    """

    importance: float | None = None
    alpha: float | None = None
    correlation: float | None = None
    parties: int = 2
    draw: int = 0

    def __post_init__(self) -> None:
        given = [k for k in ("importance", "alpha", "correlation") if getattr(self, k) is not None]
        if len(given) != 1:
            rule = "have one of importance, alpha and correlation"
            raise ConfigError.must("data: divide", rule, " and ".join(given) or "none")
        if self.importance is not None:
            name = "data: divide.importance"
            check.in_unit(name, self.importance, low_open=True, high_open=True)
        if self.alpha is not None:
            check.positive("data: divide.alpha", self.alpha)
        if self.correlation is not None:
            check.in_unit("data: divide.correlation", self.correlation)
        check.integer("data: divide.parties", self.parties, low=2)
        check.integer("data: divide.draw", self.draw, low=0)

    @classmethod
    def read(cls, given: Any) -> Division:
        """The division that a ``[data]`` section asks for.

        Raises:
            ConfigError: it is no table of these keys, or a value is out of range.
        """
        known = [f.name for f in fields(cls)]
        if not isinstance(given, Mapping):
            raise check.fail("data: divide", "a table", given)
        for name in given:
            check.one_of("data: divide", name, known)
        return cls(**given)

    def assign(self, values: Floats, sizes: Sequence[int], targets: Floats) -> tuple[Ints, Floats]:
        """The party of each column and the importance of each, both (d,); party 0 is the active.

        Args:
            values: (n, d) numbers, codes of categories, NaN = missing.
            sizes: for each column the number of its categories, 0 if numeric.
            targets: (n, L) what is to be explained.

        Raises:
            ConfigError: fewer columns than parties.
        """
        if len(sizes) < self.parties:
            raise ConfigError.at_most(
                "data: divide.parties", f"{len(sizes)} (columns)", self.parties
            )
        rated = rate_columns(values, sizes, targets)
        from vflsec.core.rng import numpy_generator  # it needs torch

        rng = numpy_generator(self.draw, "divide")
        if self.correlation is not None:
            return self._by_correlation(rank_correlations(values), self.correlation, rng), rated
        if self.alpha is not None:
            most = 1e100  # whose shares are equal, and whose sums are still finite
            shares = rng.dirichlet(np.full(self.parties, min(self.alpha, most)))
            return self._draw(len(sizes), shares, rng), rated
        assert self.importance is not None
        passive = self.importance / (self.parties - 1)
        shares = np.array([1 - self.importance, *[passive] * (self.parties - 1)])
        found = [self._draw(len(sizes), shares, rng) for _ in range(DRAWS)]
        off = [np.abs(self.sum_shares(whose, rated) - shares).max() for whose in found]
        return found[int(np.argmin(off))], rated

    def sum_shares(self, whose: Ints, rated: Floats) -> Floats:
        """Share of the importance by party (K,); equal shares where nothing is important."""
        total = np.bincount(whose, rated, self.parties)
        return total / total.sum() if total.sum() > 0 else np.full(self.parties, 1 / self.parties)

    def _draw(self, columns: int, shares: Floats, rng: np.random.Generator) -> Ints:
        whose = rng.choice(self.parties, columns, p=shares)
        whose[rng.permutation(columns)[: self.parties]] = np.arange(self.parties)
        return whose

    def _by_correlation(self, of: Floats, beta: float, rng: np.random.Generator) -> Ints:
        start = np.sort(np.arange(len(of)) % self.parties)[rng.permutation(len(of))]
        low = _improve(start, lambda w: compute_icor(of, w), rng)
        high = _improve(start, lambda w: -compute_icor(of, w), rng)
        goal = beta * compute_icor(of, high) + (1 - beta) * compute_icor(of, low)

        def miss(whose: Ints) -> float:
            return abs(compute_icor(of, whose) - goal)

        return min((_improve(w, miss, rng) for w in (start, low, high)), key=miss)


def _improve(whose: Ints, cost: Callable[[Ints], float], rng: np.random.Generator) -> Ints:
    """A division after exchanges of two columns, each kept if it costs less."""
    least = cost(whose)
    for _ in range(SWAPS):
        if least < _TINY and least >= 0:
            break
        pair = rng.choice(len(whose), 2, replace=False)
        tried = whose.copy()
        tried[pair] = whose[pair[::-1]]
        if (now := cost(tried)) < least:
            whose, least = tried, now
    return whose


def compute_icor(of: Floats, whose: Ints) -> float:
    """Icor of a division: `of` is (d, d) correlations, `whose` (d,) the party of each column."""
    parties = [np.flatnonzero(whose == k) for k in range(int(whose.max()) + 1)]
    pcor = np.array([[_compute_pcor(of[np.ix_(i, j)]) for j in parties] for i in parties])
    others = (pcor.sum(axis=1) - pcor.diagonal()) / (len(parties) - 1)
    return float((others - pcor.diagonal()).mean())


def _compute_pcor(of: Floats) -> float:
    values = np.linalg.svd(of, compute_uv=False)
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def rank_correlations(values: Floats) -> Floats:
    """Spearman correlations (d, d) of columns (n, d); a gap counts as the lowest value, a constant
    column has none.
    """
    filled = np.where(np.isnan(values), -np.inf, values)
    from scipy import stats

    ranks = stats.rankdata(filled, axis=0)
    z = ranks - ranks.mean(axis=0)
    z /= np.maximum(np.linalg.norm(z, axis=0), _TINY)
    return z.T @ z


def rate_columns(values: Floats, sizes: Sequence[int], targets: Floats) -> Floats:
    """Parts (d,) of R^2 of the additive model of binned columns; see :meth:`Division.assign`.

    Several targets count by their variance.
    """
    bins = min(_BINS, max(2, _INDICATORS // len(sizes)))
    made = [_indicate(values[:, j], size, bins) for j, size in enumerate(sizes)]
    whose = np.repeat(np.arange(len(sizes)), [block.shape[1] for block in made])
    x = np.concatenate(made, axis=1)
    x -= x.mean(axis=0)
    there = np.linalg.norm(x, axis=0) > _TINY
    x, whose = x[:, there] / np.linalg.norm(x[:, there], axis=0), whose[there]
    y = targets / (np.abs(targets).max() or 1.0)  # whose squares no unit makes too large or small
    y -= y.mean(axis=0)
    total = float((y**2).sum())
    if not total or not len(whose):
        return np.zeros(len(sizes))
    size, basis = np.linalg.eigh(x.T @ x)
    kept = size > _TINY * size.max()
    root, basis = np.sqrt(size[kept]), basis[:, kept]
    loads = (basis * root) @ basis.T  # of each column on its uncorrelated partner
    slopes = (basis / root) @ basis.T @ (x.T @ y)
    return np.bincount(whose, (loads**2 @ slopes**2).sum(axis=1), len(sizes)) / total


def _indicate(column: Floats, size: int, bins: int) -> Floats:
    """Indicators (n, m) of the bins of a column, of its gaps, or of its commonest categories."""
    gaps = np.isnan(column)
    if size:
        codes = np.where(gaps, 0, column).astype(np.int64)
        common = np.argsort(-np.bincount(codes, minlength=size + 1), kind="stable")[:bins]
        return (codes[:, None] == common).astype(float)
    there = column[~gaps]
    inner = np.quantile(there, np.arange(1, bins) / bins) if len(there) else there
    edges = np.unique(inner)
    codes = np.where(gaps, len(edges) + 1, np.searchsorted(edges, column, side="right"))
    return (codes[:, None] == np.arange(len(edges) + 2)).astype(float)
