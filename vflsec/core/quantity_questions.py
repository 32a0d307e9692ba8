"""Yes/no questions about a label that is a quantity, beside the order of its values.

Cut points are those of the labelled training rows, and never of test rows; of equal values those
cuts are taken that leave the share nearest to what the name says.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from vflsec.specs import QUESTIONS, format_question

__all__ = [
    "QUESTIONS", "answer_question", "assign_turns", "compute_figure", "find_unclear", "take_turns",
]  # fmt: skip


def compute_figure(question: str, values: Tensor, middle: Tensor) -> Tensor:
    """What the question sorts values (n,) by, larger = surely yes; `middle` is their median."""
    away, largest, _ = QUESTIONS
    if question == away:
        return (values - middle).abs()
    return values if question == largest else -values


def answer_question(question: str, values: Tensor, cut: Tensor) -> Tensor:
    """The answers (n,) int64 for `values` (n,), -1 where there is none.

    Args:
        question: one of :data:`QUESTIONS`.
        values: NaN where there is none.
        cut: (q,) the values of which the cut is made.
    """
    middle = cut.median()
    of = compute_figure(question, cut, middle)
    points, counts = of.unique(return_counts=True)
    above = counts.flip(0).cumsum(0).flip(0).double() / len(of)  # share from each point on
    at = points[0]
    if len(points) > 1:
        at = points[1:][(above[1:] - QUESTIONS[question]).abs().argmin()]
    return torch.where(values.isnan(), -1, (compute_figure(question, values, middle) >= at).long())


def assign_turns(values: Tensor) -> Tensor:
    """In which turn each labelled row with these values (n,) is granted to who asks, (n,) int64.

    By turns one of the largest tenth, one near the median, one of the smallest tenth, one near the
    median: one grant answers every question.
    """
    far, largest, smallest = (answer_question(q, values, values) == 1 for q in QUESTIONS)
    return take_turns(((1, 2, ~far), (2, 4, smallest), (0, 4, largest)), len(values))


def take_turns(kinds: Iterable[tuple[int, int, Tensor]], rows: int) -> Tensor:
    """In which turn each of these `rows` is granted, (rows,) int64.

    At most half of each kind take turns, so that some are left to guess; those and all others come
    last.

    Args:
        kinds: the first turn of a kind, how many later its next is, and its rows (rows,) bool.
    """
    out = torch.full((rows,), torch.iinfo(torch.int64).max)
    for first, every, of in kinds:
        half = of.nonzero().squeeze(1)[: (int(of.sum()) + 1) // 2]
        out[half] = first + every * torch.arange(len(half))
    return out


def find_unclear(question: str, values: Tensor) -> str:
    """Why nobody is asked this, in words, or '': equal values that leave no such share.

    Where 70 of 100 values are 0 the smallest of them are no tenth. The same for every seed.

    Args:
        values: (N,) of all rows, NaN where there is none.
    """
    told = values[~values.isnan()]
    share, wish = float(answer_question(question, told, told).double().mean()), QUESTIONS[question]
    if wish / 2 <= share <= min(2 * wish, 0.75):
        return ""
    return (
        f"whether a value is {format_question(question)} is not asked: so many values are "
        f"equal that it would be true of {share:.0%} of rows."
    )
