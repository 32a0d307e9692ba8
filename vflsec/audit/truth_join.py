"""The one place where a Guess meets the Truth: joined by row id, never by position."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflsec.audit.intervals import is_rising, midranks
from vflsec.errors import ShapeError

if TYPE_CHECKING:
    from vflsec.core.guess import Guess, Truth

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Joined:
    """Answers and truth side by side, one line for each scored row, ordered by row id.

    Attributes:
        rows: sample ids, (n,), ascending.
        values: truth, (n,) int64 labels or (n, d) features.
        scores: (n,) or (n, C); mean over the groups a row took part in; the median of the answered
            rows where the attack abstained.
        answered: (n,) bool.
        groups: (places into `rows`, scores) of each group, the scores as the attack gave them.
        people: (n,) whose row each is, or None where each is of another person.
    """

    rows: Ints
    values: NDArray[Any]
    scores: Floats
    answered: NDArray[np.bool_]
    groups: tuple[tuple[Ints, Floats], ...]
    people: Ints | None = None

    @cached_property
    def one_each(self) -> Ints:
        """Places of one row of each person."""
        return pick_one_each(self.people, self.rows)


def join(guess: Guess, truth: Truth, rows: Iterable[int] | ArrayLike) -> Joined:
    """Look up every row of `rows` in the guess and in the truth.

    Scalar scores with a `group` compare within a group only; over groups they are averaged as
    midrank quantiles within their group. Scores by class are averaged as they are.

    Raises:
        ShapeError: a row was never guessed or has no truth, a row repeats, an answer is not
            finite, or guess and truth speak of different targets.
    """
    if guess.target != truth.target:
        raise ShapeError(f"score: guess.target must be {truth.target!r}, got {guess.target!r}.")
    wanted = np.sort(np.asarray(rows, np.int64).reshape(-1))
    if not is_rising(wanted):
        raise ShapeError("score: rows must not repeat row ids.")
    if len(wanted) == 0:
        raise ShapeError("score: rows must not be empty.")
    at = _lookup("truth", truth.rows, wanted)
    values, people = truth.values[at], None if truth.people is None else truth.people[at]
    if guess.group is None and guess.abstain is None:
        return _plain(guess, wanted, values, people)
    group = np.zeros(len(guess.rows), np.int64) if guess.group is None else guess.group
    order = np.lexsort((group, guess.rows))
    ids, group, scores = guess.rows[order], group[order], guess.scores[order]
    silent = np.zeros(len(ids), bool) if guess.abstain is None else guess.abstain[order]
    _lookup("guess", ids, wanted)
    spoken = scores[~silent]
    _finite(spoken)
    common = scores.copy()
    if scores.ndim == 1 and guess.group is not None:
        for members in _split(group):
            spoke = members[~silent[members]]
            if len(spoke):
                rank = np.argsort(scores[spoke])
                common[spoke[rank]] = (midranks(scores[spoke[rank]]) - 0.5) / len(spoke)
    inside = np.isin(ids, wanted)
    place = np.searchsorted(wanted, ids)
    use = inside & ~silent
    count = np.bincount(place[use], minlength=len(wanted))
    joined = np.zeros((len(wanted), *scores.shape[1:]))
    np.add.at(joined, place[use], common[use])
    answered = count > 0
    joined[answered] /= count[answered].reshape(-1, *([1] * (scores.ndim - 1)))
    joined[~answered] = np.median(joined[answered], axis=0) if answered.any() else 0.0
    scored = (members[inside[members]] for members in _split(group))
    groups = tuple((place[m], _filled(scores[m], silent[m])) for m in scored if len(m))
    return Joined(wanted, values, joined, answered, groups, people)


def _plain(guess: Guess, wanted: Ints, values: NDArray[Any], people: Ints | None) -> Joined:
    """The same where every row is answered once, as most are: looked up, not added up."""
    at = _lookup("guess", guess.rows, wanted)
    _finite(guess.scores)
    scores = guess.scores[at]
    places = np.arange(len(wanted))
    every = np.ones(len(wanted), bool)
    return Joined(wanted, values, scores + 0.0, every, ((places, scores),), people)


def _finite(scores: Floats) -> None:
    if not np.isfinite(scores).all():
        raise ShapeError(
            f"score: {int((~np.isfinite(scores)).sum())} scores are not finite. Abstain instead."
        )


def _lookup(what: str, known: Ints, wanted: Ints) -> Ints:
    """Places in `known` of `wanted`, which rises; by position where ids are 0, 1, 2, ..."""
    if np.array_equal(known, wanted):
        return np.arange(len(known))
    order = None if is_rising(known) else np.argsort(known, kind="stable")
    ordered = known if order is None else known[order]
    counted = is_rising(ordered) and len(known) and ordered[0] == 0 == ordered[-1] + 1 - len(known)
    place = wanted if counted else np.searchsorted(ordered, wanted)
    found = (place >= 0) & (place < len(known))
    found[found] = ordered[place[found]] == wanted[found]
    if not found.all():
        lost = wanted[~found]
        raise ShapeError(
            f"score: the {what} must cover every scored row; {len(lost)} of {len(wanted)} are "
            f"missing (first: {', '.join(map(str, lost[:5]))}). Abstain instead."
        )
    return place if order is None else order[place]


def _split(group: Ints) -> list[Ints]:
    """Places of the members of each group."""
    return [np.flatnonzero(group == g) for g in np.unique(group)]


def _filled(scores: Floats, silent: NDArray[np.bool_]) -> Floats:
    out = scores.copy()
    if silent.any():
        out[silent] = 0.0 if silent.all() else np.median(scores[~silent], axis=0)
    return out


def shuffled_order(rows: Ints) -> Ints:
    """A fixed pseudo-random order of row ids, (n,) uint64: their hashes (splitmix64)."""
    with np.errstate(over="ignore"):
        z = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def pick_one_each(people: Ints | None, rows: Ints) -> Ints:
    """Places of one row of each person, whichever :func:`shuffled_order` has first.

    Args:
        people: (n,) whose row each is, or None where each is of another person.
        rows: (n,) row ids.
    """
    if people is None:
        return np.arange(len(rows))
    order = np.argsort(shuffled_order(rows))
    return order[np.unique(people[order], return_index=True)[1]]


@dataclass(frozen=True)
class Decided:
    """Hard decisions.

    Attributes:
        labels: (n,) int64, -1 where the attack abstained, :data:`TIED` where scores do not say
            which of equal rows are called 1 and which 0.
        share: of the tied rows, of which as many are called 1.
    """

    labels: Ints
    share: float = 0.0

    def called(self, label: int, of: NDArray[np.bool_]) -> float:
        """How many of some rows (n,) get a label, the mean over all ways to call tied ones."""
        return self.right(np.where(of, label, _NONE))

    def right(self, y: Ints) -> float:
        """How many rows get their label of `y` (n,), in the same sense."""
        found = int((self.labels == y).sum())
        if not self.share:
            return found
        ones, zeros = (int((y[self.labels == TIED] == c).sum()) for c in (1, 0))
        return found + ones * self.share + zeros * (1 - self.share)


TIED, _NONE = -2, -3


def decide(joined: Joined, prior: Floats, quota: bool = False) -> Decided:
    """Hard decisions of (n,) or (n, C) scores.

    Scalar scores: the top ceil(prior[1]·n) of the n answered rows are class 1, a rule the attacker
    can follow. Where equal scores stand on both sides of that, any of them may be class 1: an order
    of theirs that is the same in every seed would make a gain of nothing look sure. Scores by
    class: the largest, ties to the class with the larger prior. With `quota`, scores of two classes
    are decided like scalar ones, by their difference, so that attack and control stand under one
    rule; scores that rank nothing then go to the class with the larger prior.
    """
    out = np.full(len(joined.rows), -1, np.int64)
    spoke = np.flatnonzero(joined.answered)
    scores = joined.scores[spoke]
    if quota and scores.ndim == 2 and scores.shape[1] == 2:
        scores = scores[:, 1] - scores[:, 0]
    if scores.ndim == 2:
        favour = np.argsort(-prior, kind="stable")
        out[spoke] = favour[np.argmax(scores[:, favour], axis=1)]
        return Decided(out)
    if quota and len(spoke) and scores.min() == scores.max():
        out[spoke] = int(prior[1] > prior[0])
        return Decided(out)
    n = len(scores)
    count = math.ceil(prior[1] * n - 1e-9)
    if not 0 < count < n:
        out[spoke] = int(count > 0)
        return Decided(out)
    bar = np.partition(scores, n - count)[n - count]
    above, level = scores > bar, scores == bar
    left, many = count - int(above.sum()), int(level.sum())
    out[spoke] = np.where(above | (level & (left == many)), 1, np.where(level, TIED, 0))
    return Decided(out, left / many)
