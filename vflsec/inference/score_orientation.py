"""Which end of a score means class 1: theory's answer, unless known rows contradict it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vflsec.core.view import Known

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


def orientation(score: Tensor, rows: Tensor, known: Known | None, theory: float = 0.0) -> float:
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
