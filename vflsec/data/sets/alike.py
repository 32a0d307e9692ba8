"""A world of the shape of another data set: same rows, parties, columns and classes, nothing else.

    z ~ N(0, I_latent),   x_j = sqrt(1/2) a_j . z + sqrt(1/2) e,   s = W z + noise e,

with unit vectors a_j and unit columns of W (one for each class) drawn for each seed, e standard
normal. A column of k categories is cut at the k-quantiles of x_j, its codes in random order.
Labels are planted: class by class, the rarest first, the rows with the largest lead of s_c over the
classes that are left, as many as the shape asks for; a quantity is s itself. Images are columns in
rows.

What a sound audit finds: with the default columns (4 active, 12 passive), 30 % positive, logistic
regression of 300 rows reaches an AUC of about 0.84 on all columns, 0.8 on the passive party's and
0.7 on the active party's; gradients give the labels of training rows away.

Source: this package's own design; for attackers that choose their settings without the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.sets._parts import DataSet, world_digest
from vflsec.data.source import PartyData, Source
from vflsec.errors import ConfigError
from vflsec.plugins import registry

Floats = NDArray[np.float64]


@registry.dataset
@dataclass(frozen=True)
class Alike(DataSet):
    """A fresh world for each seed.

    Args:
        columns: by party, the active one first, runs [categories, columns], 0 for numbers.
        images: by party [channels, height, width], in the place of columns.
        rows: for each standing [rows, parties that hold them, side of a fixed split, labelled].
        classes: labelled rows of each class; one number for a quantity.
        latent: dimensions of what all columns have in common.
        noise: standard deviation of what no column tells about the label.
    """

    columns: dict[str, Any] = field(
        default_factory=lambda: {"active": [[0, 4]], "passive": [[0, 12]]}
    )
    images: dict[str, Any] = field(default_factory=dict)
    rows: tuple[Any, ...] = ((300, ("active", "passive"), "", True),)
    classes: tuple[int, ...] = (210, 90)
    latent: check.Count = 8
    noise: check.NonNegative = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        labelled = sum(r[0] for r in self.rows if r[3])
        if labelled != sum(self.classes):
            got = sum(self.classes)
            raise ConfigError.must("alike: classes", f"add up to {labelled} labelled rows", got)

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        rng = numpy_generator(seed, "world", "alike")
        sizes = [r[0] for r in self.rows]
        standing = np.repeat(np.arange(len(sizes)), sizes)
        n = len(standing)
        z = rng.standard_normal((n, self.latent))
        score = z @ _units(rng, self.latent, len(self.classes))
        score += self.noise * rng.standard_normal(score.shape)
        labelled = np.array([r[3] for r in self.rows], dtype=bool)[standing]
        y = np.full(n, -1, dtype=np.int64)
        values = None
        if len(self.classes) == 1:
            y[labelled], values = 0, np.where(labelled, score[:, 0], np.nan)
        else:
            y[labelled] = _planted(score[labelled], self.classes)
        parties = {}
        for party in self.columns:
            there = np.array([party in r[1] for r in self.rows], dtype=bool)[standing]
            parties[party] = self._party(party, z, np.flatnonzero(there), rng)
        sides = np.array([r[2] for r in self.rows])
        return Source(
            name="alike", parties=parties, active=next(iter(self.columns)), y=y,
            class_names=tuple(f"class{c}" for c in range(len(self.classes))), values=values,
            split=sides[standing] if all(sides) else None, drawn=True,
            digest=world_digest("alike", self),
        )  # fmt: skip

    def _party(
        self, party: str, z: Floats, rows: NDArray[np.int64], rng: np.random.Generator
    ) -> PartyData:
        if party in self.images:
            shape = tuple(self.images[party])
            flat = _columns(rng, z, int(np.prod(shape)))[rows]
            return PartyData(flat.astype(np.float32).reshape(len(rows), *shape), rows)
        sizes = [size for size, count in self.columns[party] for _ in range(count)]
        x = _columns(rng, z, len(sizes))
        for j, size in enumerate(sizes):
            if size:
                rank = np.argsort(np.argsort(x[:, j], kind="stable"), kind="stable")
                x[:, j] = 1 + rng.permutation(size)[rank * size // len(z)]
        names = tuple(f"{party}_{j}" for j in range(len(sizes)))
        kinds = tuple(tuple(map(str, range(k))) if k else None for k in sizes)
        return PartyData(x[rows], rows, names, kinds)


def _units(rng: np.random.Generator, dimensions: int, count: int) -> Floats:
    """Unit vectors as columns (dimensions, count)."""
    drawn = rng.standard_normal((dimensions, count))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=0))


def _columns(rng: np.random.Generator, z: Floats, count: int) -> Floats:
    """Columns (n, count) of variance 1, half of it from the latent z (n, k)."""
    shared = z @ _units(rng, z.shape[1], count)
    return np.asarray(np.sqrt(0.5) * (shared + rng.standard_normal((len(z), count))))


def _planted(score: Floats, counts: tuple[int, ...]) -> NDArray[np.int64]:
    """Classes (n,) of rows by their scores (n, C), exactly `counts` of each."""
    order = np.argsort(counts, kind="stable")
    y = np.full(len(score), order[-1], dtype=np.int64)
    left = np.arange(len(score))
    for i, c in enumerate(order[:-1]):
        lead = score[left, c] - score[left][:, order[i + 1 :]].max(axis=1)
        top = np.argsort(-lead, kind="stable")[: counts[c]]
        y[left[top]] = c
        left = np.delete(left, top)
    return y
