"""Joining and ranking as they were first written, plain and slow: what the fast ones must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata


def join(guess: Any, truth: Any, rows: Any) -> dict[str, Any]:
    """Every field of a `Joined`, by sorting, searching and adding up."""
    wanted = np.sort(np.asarray(rows, np.int64).reshape(-1))
    by_row = np.argsort(truth.rows, kind="stable")
    values = truth.values[by_row[np.searchsorted(truth.rows[by_row], wanted)]]
    group = np.zeros(len(guess.rows), np.int64) if guess.group is None else guess.group
    order = np.lexsort((group, guess.rows))
    ids, group, scores = guess.rows[order], group[order], guess.scores[order]
    silent = np.zeros(len(ids), bool) if guess.abstain is None else guess.abstain[order]
    common = scores.copy()
    if scores.ndim == 1 and guess.group is not None:
        for g in np.unique(group):
            spoke = np.flatnonzero((group == g) & ~silent)
            if len(spoke):
                common[spoke] = (rankdata(scores[spoke]) - 0.5) / len(spoke)
    inside = np.isin(ids, wanted)
    place = np.searchsorted(wanted, ids)
    use = inside & ~silent
    count = np.bincount(place[use], minlength=len(wanted))
    joined = np.zeros((len(wanted), *scores.shape[1:]))
    np.add.at(joined, place[use], common[use])
    answered = count > 0
    joined[answered] /= count[answered].reshape(-1, *([1] * (scores.ndim - 1)))
    joined[~answered] = np.median(joined[answered], axis=0) if answered.any() else 0.0
    groups = []
    for g in np.unique(group):
        mine = np.flatnonzero((group == g) & inside)
        if len(mine):
            filled = scores[mine].copy()
            quiet = silent[mine]
            if quiet.any():
                filled[quiet] = 0.0 if quiet.all() else np.median(scores[mine][~quiet], axis=0)
            groups.append((place[mine], filled))
    return {
        "rows": wanted, "values": values, "scores": joined, "answered": answered, "groups": groups
    }  # fmt: skip


def components(s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """DeLong's structural components by three rankings."""
    ranks = rankdata(s)
    out = np.empty(len(s))
    m, n = int(y.sum()), int((~y).sum())
    out[y] = (ranks[y] - rankdata(s[y])) / n
    out[~y] = 1 - (ranks[~y] - rankdata(s[~y])) / m
    return out


def called(scores: np.ndarray, of: np.ndarray, count: int) -> float:
    """How many of some rows are among the `count` largest, over every way to break ties."""
    total = 0.0
    for s in scores[of]:
        above, level = int((scores > s).sum()), int((scores == s).sum())
        total += min(max(count - above, 0), level) / level
    return total


def by_row(rows: list[np.ndarray], values: list[np.ndarray]) -> tuple[np.ndarray, int]:
    """Sums by id through `numpy.unique`."""
    names, place = np.unique(np.concatenate(rows), return_inverse=True)
    summed = np.bincount(place, np.concatenate(values), minlength=len(names))
    return summed, int(np.bincount(place).max())
