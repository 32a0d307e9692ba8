"""Answers about rows 0 to n - 1, scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vflsec.audit.metrics import Score, score
from vflsec.core.guess import Guess, Truth


def by_metric(found: Sequence[Score]) -> dict[str, Score]:
    return {s.metric: s for s in found}


def score_rows(
    scores: Any, truth: Any, *metrics: str, prior: ArrayLike = (0.5, 0.5), target: str = "label",
    people: ArrayLike | None = None, **how: Any,
) -> dict[str, Score]:  # fmt: skip
    """By metric, the answer (n,) or (n, C) to a truth (n,), of as many classes as `prior` has."""
    rows, shares = np.arange(len(truth)), np.asarray(prior)
    return by_metric(score(
        Guess(target, rows, scores), Truth(target, rows, np.asarray(truth), people=people), rows,
        classes=len(shares), prior=shares, metrics=metrics or None, **how,
    ))  # fmt: skip
