"""Toy worlds: standard normal columns and a label that is a noisy half-space of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vflsec.core.rng import numpy_generator
from vflsec.data.sets._parts import numeric_table, world_digest
from vflsec.data.source import Source


def half_space(
    name: str, recipe: object, seed: int, *, sizes: Mapping[str, int], widths: Mapping[str, int],
    weights: Mapping[str, float], positive_rate: float, flips: float,
) -> Source:  # fmt: skip
    """Draw a fresh world from the stream ``(seed, "world", name)``.

    Party p has columns x_p ~ N(0, I); its score is weights[p] * w_p . x_p with a unit vector w_p
    drawn uniformly. A row is positive where the sum of the scores exceeds the quantile that makes
    `positive_rate` positive on average; then each label is flipped with probability `flips`. If
    all weights are 0 the labels are drawn independently of everything.

    Args:
        name: of the data set.
        recipe: the registered object, for the digest.
        seed: of the world.
        sizes: rows by side, ``{"": n}`` for no fixed split, else train, validation and test.
        widths: number of columns by party, the active party first.
        weights: of each party's score.
        positive_rate: share of positives before flips.
        flips: share of labels flipped.
    """
    rng = numpy_generator(seed, "world", name)
    n = sum(sizes.values())
    spread = float(np.sqrt(sum(w**2 for w in weights.values())))
    score = np.zeros(n)
    parties = {}
    for party, width in widths.items():
        x = rng.standard_normal((n, width))
        w = rng.standard_normal(width)
        score += weights[party] * (x @ (w / np.linalg.norm(w)))
        parties[party] = numeric_table(x, [f"{party}_{i}" for i in range(width)])
    if spread == 0:
        score, spread = rng.standard_normal(n), 1.0
    positive = score > spread * _normal_quantile(1 - positive_rate)
    positive ^= rng.random(n) < flips
    split = None
    if "" not in sizes:
        split = np.repeat(list(sizes), list(sizes.values()))
    return Source(
        name=name, parties=parties, active=next(iter(widths)), y=positive.astype(np.int64),
        class_names=("negative", "positive"), split=split, digest=world_digest(name, recipe),
    )  # fmt: skip


def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)
