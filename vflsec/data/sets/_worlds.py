"""Toy worlds: standard normal columns and a label that is a noisy half-space of them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.core.rng import numpy_generator
from vflsec.data.sets._parts import numeric_table, world_digest
from vflsec.data.source import PartyData, Source


def begin_world(made: Any, seed: int, name: str) -> tuple[np.random.Generator, dict[str, int], int]:
    """The stream ``(seed, "world", name)``, how many rows train, validate and test, and their sum.

    Without ``made.test_rows`` there are no sides, and ``made.rows`` are all.
    """
    rng = numpy_generator(seed, "world", name)
    if not hasattr(made, "test_rows"):
        return rng, {}, made.rows
    sides = {"train": made.rows, "validation": made.validation_rows, "test": made.test_rows}
    return rng, sides, sum(sides.values())


def name_columns(party: str, x: NDArray[np.float64]) -> PartyData:
    """A party's columns (n, d), called by its name and their number."""
    return numeric_table(x, [f"{party}_{i}" for i in range(x.shape[1])])


def add_parties(
    made: Any, rng: np.random.Generator, score: NDArray[np.float64], weights: Mapping[str, float]
) -> dict[str, PartyData]:
    """Draw x_p ~ N(0, I) for every party, and add weights[p] x_p . w_p to `score`, (n,) or (n, L).

    Args:
        made: the world; party p has ``d_p`` columns.
        rng: draws them and the unit vectors w_p, one for each score.
        score: of each row, changed in place.
        weights: by party, the active one first.
    """
    tables = {}
    for party, weight in weights.items():
        x = rng.standard_normal((len(score), getattr(made, f"d_{party}")))
        w = rng.standard_normal((x.shape[1], *score.shape[1:]))
        score += weight * (x @ (w / np.linalg.norm(w, axis=0 if w.ndim > 1 else None)))
        tables[party] = name_columns(party, x)
    return tables


def make_world(
    made: Any, parties: Mapping[str, PartyData], y: NDArray[np.int64],
    class_names: tuple[str, ...], sides: Mapping[str, int], **more: Any,
) -> Source:  # fmt: skip
    """A drawn world; its identity is how it is drawn.

    Args:
        made: the registered data set.
        parties: by name, the active one first.
        y, class_names: as in a Source, which has `more`.
        sides: rows of each side of a fixed split, in their order; none if seeds split it.
    """
    split = np.repeat(list(sides), list(sides.values())) if sides else None
    return Source(
        name=made.name, parties=parties, active=next(iter(parties)), y=y, class_names=class_names,
        split=split, drawn=True, digest=world_digest(made.name, made), **more,
    )  # fmt: skip


def half_space(made: Any, seed: int, **weights: float) -> Source:
    """Draw a fresh world of two classes from the stream ``(seed, "world", made.name)``.

    The score of a row is that of :func:`add_parties`. It is positive where that exceeds the
    quantile that makes ``made.positive_rate`` positive on average; then each label is flipped with
    probability ``made.flips``, if there is one. If all weights are 0 the labels are drawn
    independently of everything.
    """
    rng, sides, n = begin_world(made, seed, made.name)
    spread = float(np.sqrt(sum(w**2 for w in weights.values())))
    score = np.zeros(n)
    parties = add_parties(made, rng, score, weights)
    if spread == 0:
        score, spread = rng.standard_normal(n), 1.0
    positive = score > spread * NormalDist().inv_cdf(1 - made.positive_rate)
    positive ^= rng.random(n) < getattr(made, "flips", 0.0)
    names = ("negative", "positive")
    return make_world(made, parties, positive.astype(np.int64), names, sides)
