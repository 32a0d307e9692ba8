"""Cluster the rows of one message into classes: k-means on directions, replica by replica."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.inference.clustering_points import k_means


def clusters(
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
