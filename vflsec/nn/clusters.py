"""Cluster the rows of one message into classes: k-means on directions, replica by replica."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vflsec.rng import derive

__all__ = ["clusters"]


def clusters(
    rows: Tensor, count: int, seeds: Sequence[int], *names: object, starts: int = 10
) -> Tensor:
    """Cluster index of each row, (R, n) int64 on the CPU.

    Rows are scaled to length 1 first (zero rows stay zero), for a gradient's direction carries the
    class and its length how hard the row is. Cluster numbers have no meaning.

    Args:
        rows: (R, n, d).
        count: number of clusters C.
        seeds: base seed of each replica; with `names` they name the random streams.
        starts: k-means runs, of which the one with the least inertia is kept.
    """
    out = []
    for seed, x in zip(seeds, rows.double().cpu().numpy(), strict=True):
        length = np.linalg.norm(x, axis=1, keepdims=True)
        unit = x / np.where(length > 0, length, 1.0)
        state = derive(seed, "clusters", *names) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
            found = KMeans(min(count, len(unit)), n_init=starts, random_state=state).fit(unit)
        out.append(torch.from_numpy(found.labels_.astype(np.int64)))
    return torch.stack(out)
