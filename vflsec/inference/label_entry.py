"""Which entry of a row's gradient names its class: the smallest, unless known rows contradict it.

Where the logits are summed, the gradient of row i is (p_i - e_{y_i}) / b: all entries are positive
except that of the label. Soft labels turn this round (the true class becomes the *least* likely
one, so its entry is the largest) or rename the classes; a penalty that the label party adds and
that pulls against its loss turns it round too.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Known
from vflsec.inference.clustering_points import assign
from vflsec.inference.score_orientation import orientation

Ints = NDArray[np.int64]
SMALLEST, LARGEST = "smallest entry", "largest entry"


def read(g: Tensor, rows: Tensor, known: Known | None) -> tuple[Tensor, str]:
    """Scores (n, C) of gradients (n, C) in the reading that fits the known rows, and its name.

    Of two classes the smallest entry stands unless the known rows stand the wrong way round
    (:func:`vflsec.inference.score_orientation.orientation`). Of more, four readings are compared
    on them: the smallest entry, the largest, and either with the class names that fit most known
    rows (each judged without itself); the smallest stands unless another agrees with more than
    sqrt(q) / 2 of the q rows more.
    """
    if known is None:
        return -g, SMALLEST
    if g.shape[1] == 2:
        sign = orientation(g[:, 0] - g[:, 1], rows, known, theory=1.0)
        return -sign * g, SMALLEST if sign > 0 else LARGEST
    order = torch.argsort(rows)
    held = rows[order]
    there = torch.isin(known.rows, held)
    mine = g[order[torch.searchsorted(held, known.rows[there])]]
    labels = known.labels[there].cpu().numpy()
    entries = {sign: (sign * mine).argmax(dim=1).cpu().numpy() for sign in (-1.0, 1.0)}
    right = {sign: int((entry == labels).sum()) for sign, entry in entries.items()}
    best, name, most = -g, SMALLEST, right[-1.0] + math.sqrt(len(labels)) / 2
    if right[1.0] > most:
        best, name, most = g, LARGEST, right[1.0]
    for sign, plain in ((-1.0, SMALLEST), (1.0, LARGEST)):
        votes = 1e-3 * np.eye(g.shape[1])  # entries that no known row names keep their class
        np.add.at(votes, (entries[sign], labels), 1)
        held_out = _held_out(votes, entries[sign], labels)
        if held_out > most:
            of = assign(votes)
            best, name, most = sign * g[:, of], f"{plain}, classes renamed", held_out
    return best, name


def _held_out(votes: NDArray[np.float64], entry: Ints, labels: Ints) -> int:
    """How many known rows the best naming of entries gets right when each is left out of it."""
    right = 0
    for k, c in set(zip(entry.tolist(), labels.tolist(), strict=True)):
        fewer = votes.copy()
        fewer[k, c] -= 1
        right += int(votes[k, c]) * (assign(fewer)[c] == k)
    return right
