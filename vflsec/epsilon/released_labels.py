"""What released labels say of a claim about them.

A canary carries one of two classes, by a coin, and the guess is the one of them that was released.
Under a claim of pure epsilon no guess is right, or wrong, more often than e^eps / (1 + e^eps),
whatever was released of other rows. So this holds of all guesses together, of those of any one
class or any one pair of classes, and of those of any one row: a mechanism that spares some is not
hidden by what it does to the others. A row is told from others where it is released many times, by
a hook that is called again with draws of its own (:mod:`vflsec.epsilon.labels_again`).

Source: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
arXiv:2305.08846, theorem 5.2; by class and by row it is this package's own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from vflsec.audit.intervals import binomial_tail
from vflsec.epsilon.one_run_bound import compute_chance

Ints = NDArray[np.int64]
Pair = tuple[int, int]
GROUPS: tuple[Callable[[Pair], Any], ...] = (
    lambda pair: (),  # all guesses
    lambda pair: pair[0],  # of one class
    lambda pair: pair,
)
TAILS = (0.1, 0.01, 1e-4, 1e-8)
"""So unlikely rows are counted, if the claim is true."""


@dataclass(frozen=True)
class Released:
    """What the labels of the canaries of one training were released as.

    Attributes:
        canaries: how many coins, of the training and of all calls again.
        guesses: by (the candidate that was released, the other one).
        right: those of them that carry what was released.
        rows: how many rows were released again, and how many of them are as unlikely as each of
            `TAILS`; none where no row was.
        remembered: whether the calls again gave the same labels, so that they are not counted.
    """

    canaries: int
    guesses: Mapping[Pair, int]
    right: Mapping[Pair, int]
    rows: tuple[int, ...] = ()
    remembered: bool = False

    def fields(self) -> dict[str, Any]:
        """As it is stored."""
        table = [[*pair, n, self.right[pair]] for pair, n in sorted(self.guesses.items())]
        return {
            "canaries": self.canaries, "guesses": table, "rows": list(self.rows),
            "remembered": self.remembered,
        }  # fmt: skip

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Released:
        """What :meth:`fields` made."""
        table = [((a, b), n, right) for a, b, n, right in stored["guesses"]]
        return cls(
            stored["canaries"], {p: n for p, n, _ in table}, {p: r for p, _, r in table},
            tuple(stored["rows"]), stored["remembered"],
        )  # fmt: skip

    @classmethod
    def count(
        cls, pairs: Ints, once: Ints, again: Ints | None = None, epsilon: float | None = None
    ) -> Released:
        """Sum up tallies (m, 2, 3): how often canaries of each coin were released as what.

        The third outcome is that neither candidate was released.

        Args:
            pairs: (m, 2) the candidates.
            once: of the training.
            again: of the calls again.
            epsilon: of a claim without delta, by which rows are judged; None judges none.
        """
        remembered = again is not None and _is_remembered(pairs, again)
        fresh = None if remembered else again
        tally = once if fresh is None else once + fresh
        guesses: Counter[Pair] = Counter()
        right: Counter[Pair] = Counter()
        for s in (0, 1):
            many, true = tally[:, :, s].sum(1), tally[:, s, s]
            for (a, b), n, v in zip(pairs[:, [s, 1 - s]].tolist(), many, true, strict=True):
                guesses[a, b] += int(n)
                right[a, b] += int(v)
        rows: tuple[int, ...] = ()
        if fresh is not None and epsilon is not None:
            p = _chances(fresh, epsilon)
            rows = (len(p), *(int((p <= tail).sum()) for tail in TAILS))
        told = {pair: n for pair, n in guesses.items() if n}
        return cls(int(tally.sum()), told, {p: right[p] for p in told}, rows, remembered)


def _chances(tally: Ints, epsilon: float) -> NDArray[np.float64]:
    """Of each row, the chance (m,) of guesses that are as often right, or as often wrong."""
    n = tally[:, :, :2].sum((1, 2))
    right = tally[:, 0, 0] + tally[:, 1, 1]
    most = np.maximum(right, n - right)
    tail = scipy.special.betainc(np.maximum(most, 1), n - most + 1, 1 / (1 + math.exp(-epsilon)))
    return np.minimum(1.0, np.where(n > 0, 2 * tail, 1.0))


def _is_remembered(pairs: Ints, tally: Ints) -> bool:
    """Whether each row had one outcome for each label, and not the one that its label has.

    So it is where answers are kept elsewhere than in a policy's memory, or drawn from seeds of its
    own: what is drawn is then not told from what is fixed. A mechanism without chance has the same
    outcomes for the same labels in all rows.
    """
    if ((tally > 0).sum(2) > 1).any():
        return False
    seen = tally.sum(2) > 0
    kinds = zip(*(x[seen].tolist() for x in (
        np.broadcast_to(pairs[:, :1], seen.shape), np.broadcast_to(pairs[:, 1:], seen.shape),
        np.broadcast_to([0, 1], seen.shape), tally.argmax(2),
    )), strict=True)  # fmt: skip
    found = {tuple(kind) for kind in kinds}
    return len(found) > len({kind[:3] for kind in found})


@dataclass(frozen=True)
class Weighed:
    """What released labels of several trainings say of a claim.

    Attributes:
        p: of the claim.
        guesses: how many there were.
        tries: tests of all of them that `p` is corrected for.
    """

    p: float
    guesses: int
    tries: int


def weigh_released(found: Sequence[Released], epsilon: float, delta: float = 0.0) -> Weighed:
    """Test a claim by what was released in several trainings.

    All guesses have the same share of the error as those by class, those by pair, and those by row.
    """
    m = sum(of.canaries for of in found)
    guesses: Counter[Pair] = Counter()
    right: Counter[Pair] = Counter()
    for of in found:
        guesses.update(of.guesses)
        right.update(of.right)
    ways: dict[int, float] = {}
    for group in GROUPS:
        n: Counter[Any] = Counter()
        v: Counter[Any] = Counter()
        for pair, many in guesses.items():
            n[group(pair)] += many
            v[group(pair)] += right[pair]
        each = [compute_chance(n[k], max(v[k], n[k] - v[k]), epsilon, delta, m) for k in n]
        # of two classes, those of one are a pair's
        ways.setdefault(len(n), 2 * len(n) * min(each, default=1.0))
    p = list(ways.values())
    if rows := [of.rows for of in found if of.rows]:
        many, *beyond = map(sum, zip(*rows, strict=True))
        tails = [float(binomial_tail(k, many, t)) for k, t in zip(beyond, TAILS, strict=True)]
        p.append(len(TAILS) * min(tails))
    return Weighed(min(1.0, len(p) * min(p)), guesses.total(), 2 * len(p))
