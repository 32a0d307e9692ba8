"""An adversary's rows as points, and what is done with points: clusters, first direction, split.

A point is a row's received gradient or its own embedding. All functions are deterministic given
their generator, and independent of the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.core.view import View


@dataclass(frozen=True)
class Points:
    """`rows` (n,) sample ids, ascending, and `x` (n, d) float64, one point each."""

    rows: Tensor
    x: Tensor

    def of(self, rows: Tensor) -> Tensor:
        """Points of the given sample ids, in their order; all must be there."""
        return self.x[torch.searchsorted(self.rows, rows)]

    def standardised(self) -> Points:
        """Every column with mean 0 and standard deviation 1 (constant columns become 0)."""
        sd, mean = torch.std_mean(self.x, dim=0, correction=0)
        return Points(self.rows, (self.x - mean) / sd.clamp_min(1e-12))

    def without(self, rows: Tensor) -> Points:
        """The same points less those of `rows`."""
        keep = ~torch.isin(self.rows, rows)
        return Points(self.rows[keep], self.x[keep])


def make_points(view: View, on: Literal["gradient", "embedding"], form: str = "mean") -> Points:
    """The adversary's points: received gradients in `form`, or embeddings of known and target rows.

    Args:
        view: of one party or of a coalition, whose points are put side by side.
        on: ``gradient`` (rows that took part in training) or ``embedding`` (any own row).
        form: recorded form of the gradients.
    """
    if on == "gradient":
        table = view.received("gradient", form)
        order = torch.argsort(table.rows)
        return Points(table.rows[order], table.tensor[order].flatten(1).double())
    rows = view.target_rows
    if view.known is not None:
        rows = torch.cat([rows, view.known.rows])
    rows = rows.sort().values
    return Points(rows, view.embed(rows).flatten(1).double())


def first_direction(x: Tensor) -> Tensor:
    """The direction (d,) of largest variance of points (n, d), of arbitrary sign."""
    centred = x - x.mean(0)
    return torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]


def lower_cluster(a: Tensor) -> Tensor:
    """The exact 2-means split of numbers (n,): True for those in the lower cluster."""
    ordered = a.sort().values
    n = len(a)
    left = torch.arange(1, n, device=a.device)
    sums = ordered.cumsum(0)
    below, above = sums[:-1], sums[-1] - sums[:-1]
    between = below**2 / left + above**2 / (n - left)  # larger = smaller within-cluster squares
    cut = int(between.argmax())
    return a <= (ordered[cut] + ordered[cut + 1]) / 2


@dataclass(frozen=True)
class Clusters:
    """`centres` (k, d), `member` (n,) int64 of each point, `spread` the within-cluster squares."""

    centres: Tensor
    member: Tensor
    spread: float

    def distances(self, x: Tensor) -> Tensor:
        """Squared distances (n, k) of points to the centres."""
        return torch.cdist(x, self.centres) ** 2


def k_means(
    x: Tensor,
    k: int,
    rng: torch.Generator | None = None,
    *,
    start: Tensor | None = None,
    restarts: int = 8,
    steps: int = 60,
) -> Clusters:
    """k-means of points (n, d): k-means++ starts side by side, or the given `start` (k, d).

    The start with the smallest spread wins (Arthur and Vassilvitskii 2007).
    """
    if start is not None:
        centres = start.unsqueeze(0).clone()
    else:
        assert rng is not None
        centres = torch.stack([_plus_plus(x, k, rng) for _ in range(restarts)])
    middle = x.mean(0)
    x, centres = x - middle, centres - middle
    own = x.square().sum(1)  # (n,)
    member = torch.full((len(centres), len(x)), -1, dtype=torch.int16, device=x.device)
    names = torch.arange(k, dtype=torch.int16, device=x.device).unsqueeze(1)
    moving = torch.arange(len(centres), device=x.device)
    for _ in range(steps):
        new = _nearest(_away(x, centres[moving]))  # (moving, n)
        changed = (new != member[moving]).any(1)
        moving, new = moving[changed], new[changed]
        if not len(moving):
            break
        member[moving] = new
        hot = (new.unsqueeze(1) == names).to(x.dtype)  # (moving, k, n)
        count = hot.sum(2, keepdim=True)
        centres[moving] = torch.where(count > 0, hot @ x / count.clamp_min(1), centres[moving])
    nearest = _away(x, centres)
    spread = (nearest.amin(1) + own).clamp_min(0).sum(1)
    best = int(spread.argmin())
    return Clusters(centres[best] + middle, nearest[best].argmin(0), float(spread[best]))


def _away(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances of points (n, d) to centres (s, k, d), less the points' own squares."""
    both = 2 * centres @ x.T  # (s, k, n)
    return torch.sub(centres.square().sum(2).unsqueeze(2), both, out=both)


def _nearest(away: Tensor) -> Tensor:
    """The first smallest of the k in (s, k, n), int16; a plain argmin across strides takes far
    longer, and so do wide integers.
    """
    least, which = away[:, 0], torch.zeros_like(away[:, 0], dtype=torch.int16)
    for c in range(1, away.shape[1]):
        which.masked_fill_(away[:, c] < least, c)
        if c + 1 < away.shape[1]:
            least = torch.where(which == c, away[:, c], least)
    return which


def _plus_plus(x: Tensor, k: int, rng: torch.Generator) -> Tensor:
    """k starting centres, each drawn with a chance in proportion to its squared distance."""
    n = len(x)
    chosen = [int(torch.randint(n, (1,), generator=rng))]
    away = ((x - x[chosen[0]]) ** 2).sum(1)
    for _ in range(k - 1):
        u = torch.rand((1,), generator=rng, dtype=torch.float64) * away.sum().cpu()
        upto = away.cpu().cumsum(0)  # a GPU adds up in any order
        chosen.append(min(int(torch.searchsorted(upto, u)), n - 1))
        away = torch.minimum(away, ((x - x[chosen[-1]]) ** 2).sum(1))
    return x[chosen]


def find_clusters(
    rows: Tensor, count: int, seeds: Sequence[int], *names: object, starts: int = 10
) -> Tensor:
    """Cluster index of each row, (R, n) int64.

    Rows are scaled to length 1 first (zero rows stay zero), for a gradient's direction carries the
    class and its length how hard the row is. Cluster numbers have no meaning.

    Args:
        rows: (R, n, d).
        count: number of clusters C.
        seeds: base seed of each replica; with `names` they name the random streams.
        starts: k-means++ starts, of which the one with the least spread is kept.
    """
    found = []
    for seed, x in zip(seeds, torch.nn.functional.normalize(rows.double(), dim=2), strict=True):
        rng = generator(seed, "clusters", *names)
        found.append(k_means(x, count, rng, restarts=starts).member)
    return torch.stack(found)


def assign(worth: NDArray[np.float64]) -> list[int]:
    """The cluster of each class that makes the total of `worth` (clusters, classes) largest."""
    from scipy.optimize import linear_sum_assignment

    cluster, of = linear_sum_assignment(-worth)
    return [int(c) for c in cluster[np.argsort(of)]]
