"""Which end of a score means class 1, and which entry of a row's gradient names its class.

Theory's answer, unless known rows contradict it. Where the logits are summed, the gradient of row i
is (p_i - e_{y_i}) / b: all entries are positive except that of the label. Soft labels turn this
round (the true class becomes the *least* likely one, so its entry is the largest) or rename the
classes; a penalty that the label party adds and that pulls against its loss turns it round too.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.view import Known
from vflsec.inference.clustering_points import assign

Ints = NDArray[np.int64]
SMALLEST, LARGEST = "smallest entry", "largest entry"

WEIGHT = 0.5
"""What theory counts for beside the known rows, in standard deviations of their rank statistic."""


def within_groups(score: Tensor, group: Tensor) -> Tensor:
    """Share of the rows of the same group that score lower, ties by half: (n,) in [0, 1]."""
    out = torch.empty(len(score), dtype=torch.float64, device=score.device)
    for g in group.unique():
        of = group == g
        held = score[of].contiguous()
        ordered = held.sort().values
        below = torch.searchsorted(ordered, held)
        upto = torch.searchsorted(ordered, held, right=True)
        out[of] = (below + upto).double() / (2 * len(held))
    return out


def find_orientation(
    score: Tensor, rows: Tensor, known: Known | None, theory: float = 0.0
) -> float:
    """+1.0 if larger scores mean class 1, -1.0 if smaller ones do.

    With z the standardised rank-sum statistic of the known rows (class 1 above class 0; above the
    median of all rows where one class only is known), the answer is the sign of z + WEIGHT x
    `theory`: known rows that stand the wrong way round throughout always win, a few that do so by
    chance rarely.

    Args:
        score: (n,), larger = class 1 by theory.
        rows: (n,) sample ids, each once.
        known: granted labelled rows, those that are not among `rows` are left out; or None.
        theory: 1.0 if theory has an opinion, 0.0 if the sign of `score` is arbitrary.
    """
    if known is None or len(known) == 0:
        return 1.0
    order = torch.argsort(rows)
    held = rows[order]
    there = torch.isin(known.rows, held)
    value = score[order[torch.searchsorted(held, known.rows[there])]].double()
    ones = known.labels[there] == 1
    positives, negatives = int(ones.sum()), int((~ones).sum())
    if not positives + negatives:
        return 1.0
    if positives and negatives:
        above = value[ones].unsqueeze(1) - value[~ones].unsqueeze(0)
        share = float((above > 0).double().mean() + (above == 0).double().mean() / 2)
        z = (share - 0.5) / math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    else:
        whole = within_groups(score, torch.zeros_like(rows))[order]
        place = whole[torch.searchsorted(held, known.rows[there])]
        z = float(place.mean() - 0.5) * math.sqrt(12 * len(place)) * (1 if positives else -1)
    return 1.0 if z + WEIGHT * theory >= 0 else -1.0


def read(g: Tensor, rows: Tensor, known: Known | None) -> tuple[Tensor, str]:
    """Scores (n, C) of gradients (n, C) in the reading that fits the known rows, and its name.

    Of two classes the smallest entry stands unless the known rows stand the wrong way round
    (:func:`find_orientation`). Of more, four readings are compared
    on them: the smallest entry, the largest, and either with the class names that fit most known
    rows (each judged without itself); the smallest stands unless another agrees with more than
    sqrt(q) / 2 of the q rows more.
    """
    if known is None:
        return -g, SMALLEST
    if g.shape[1] == 2:
        sign = find_orientation(g[:, 0] - g[:, 1], rows, known, theory=1.0)
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
