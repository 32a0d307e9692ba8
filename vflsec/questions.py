"""Yes/no questions about a label that is a quantity, beside the order of its values.

Cut points are those of the labelled training rows; of equal values those cuts are taken that leave
the share nearest to what the name says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vflsec.cell import QUESTIONS

__all__ = ["QUESTIONS", "answers", "figure"]

_SHARES = dict(zip(QUESTIONS, (0.5, 0.1, 0.1), strict=True))


def figure(question: str, values: Tensor, middle: Tensor) -> Tensor:
    """What the question sorts values (n,) by, larger = surely yes; `middle` is their median."""
    away, largest, _ = QUESTIONS
    if question == away:
        return (values - middle).abs()
    return values if question == largest else -values


def answers(question: str, values: Tensor, given: Tensor, labelled: Tensor) -> Tensor:
    """The answers (N,) int64 for values `given` (N,), -1 where there is none.

    Args:
        question: one of :data:`QUESTIONS`.
        values: (N,) the true ones, of which the cut is made.
        labelled: sample ids of the labelled training rows.
    """
    middle = values[labelled].median()
    of = figure(question, values[labelled], middle)
    cuts, counts = of.unique(return_counts=True)
    above = counts.flip(0).cumsum(0).flip(0).double() / len(of)  # share from each cut on
    cut = cuts[1:][(above[1:] - _SHARES[question]).abs().argmin()] if len(cuts) > 1 else cuts[0]
    yes = (figure(question, given, middle) >= cut).long()
    return torch.where(given.isnan(), -1, yes)
