"""What one party holds after a training, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Answer = tuple[Ints, NDArray[Any]]
"""Sample ids (n,) and their scores: (n,), larger = class 1 or a larger value; (n, C); (n, p)."""


def _none() -> Floats:
    return np.empty((0, 0))


def _nobody() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Seen:
    """One party's knowledge; a sample id is a place in arrays of N rows.

    Attributes:
        classes: C; 1 if the label is a quantity.
        seed: of the implementation's own draws.
        target: (m,) ids to be guessed.
        x, z: (N, p) own columns; (N, d) own embeddings after training.
        rows: (n,) ids of the training rows that passed in every epoch, rising.
        gradients, sent: (T, n, d) received gradients of each row's own loss, and embeddings sent
            with them, by epoch.
        probes: (T, n) the class whose embedding the party sent instead of its own, else -1.
        known, labels: (q,) ids and labels that were granted.
        prior: (C,) class shares.
        received: (N, d) the last embedding received for each row, 0 if none.
        aux, columns: (q,) ids and (q, p) columns of the sender that were granted.
        own_labels: (N,) labels of the label party, -1 where there is none.
        models: modules of plain torch: ``bottom`` and ``top`` (own), ``peer`` (the sender's
            bottom).
        updates: own optimisation steps of the first epoch: ids (b,), weights and gradients by name.
        told, answers: ids (n,) and log class shares (n, C) that came back.
        others, inside: (k, n, C) answers of k reference systems to `told`, (k, n) whether each
            was trained on the row.
        training: ids of all training rows.
        theirs: (N, p) columns of the sender, for an act in training that is done on a victim
            trained anew; nothing else may look at them.
    """

    classes: int
    seed: int
    target: Ints
    x: Floats = field(default_factory=_none)
    z: Floats = field(default_factory=_none)
    rows: Ints = field(default_factory=_nobody)
    gradients: Floats = field(default_factory=_none)
    sent: Floats = field(default_factory=_none)
    probes: Ints = field(default_factory=_nobody)
    known: Ints = field(default_factory=_nobody)
    labels: NDArray[Any] = field(default_factory=_nobody)
    prior: Floats = field(default_factory=_none)
    received: Floats = field(default_factory=_none)
    aux: Ints = field(default_factory=_nobody)
    columns: Floats = field(default_factory=_none)
    own_labels: Ints = field(default_factory=_nobody)
    models: Mapping[str, Any] = field(default_factory=dict)
    updates: Sequence[tuple[Ints, Mapping[str, Any], Mapping[str, Any]]] = ()
    told: Ints = field(default_factory=_nobody)
    answers: Floats = field(default_factory=_none)
    others: Floats = field(default_factory=_none)
    inside: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), bool))
    training: Ints = field(default_factory=_nobody)
    theirs: Floats = field(default_factory=_none)

    @property
    def at(self) -> Ints:
        """Where the known rows stand in `rows`."""
        return np.searchsorted(self.rows, self.known)

    def of_class(self, c: int, most: int) -> Ints:
        """Where the first `most` known rows of class `c` stand in `rows`."""
        return self.at[self.labels == c][:most]


def named(seen: Seen, scores: Floats) -> Floats:
    """Scores (n, K) of `rows` with their columns in the order of classes, by the known rows."""
    guess, votes = scores[seen.at].argmax(1), np.zeros((seen.classes, seen.classes))
    np.add.at(votes, (seen.labels, guess), 1.0)
    return scores[:, linear_sum_assignment(-votes)[1]]


def standardised(x: Floats) -> Floats:
    """Columns with mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
