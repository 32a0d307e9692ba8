"""Which of a party's own optimisation steps are kept where all epochs would take too much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from vflsec.core.view import Update

DENSE = 8
"""So many epochs at most are kept without a gap."""
ROOM = 32 << 20
"""Bytes that these may take, of one party in one training."""


@dataclass
class Spread:
    """The first d epochs, every second one up to 2 d, every fourth up to 4 d, and so on.

    d is as many as fit into `ROOM`, `DENSE` at most; with less than two only the first epoch is
    kept. It depends on neither the number of epochs nor where a training stops.

    Attributes:
        turn: how often training has begun anew.
    """

    turn: int = 0
    _first: int = 0
    _when: tuple[int, int] = (-1, -1)

    def takes(self, epoch: int, step: int, held: Iterable[Tensor]) -> bool:
        """Whether the next step, which holds these tensors, is kept; ask in the steps' order."""
        if (epoch, step) <= self._when:
            self.turn, self._first = self.turn + 1, 0
        self._when = (epoch, step)
        if epoch == 0:
            self._first += sum(v.numel() * v.element_size() for v in held)
            return True
        dense, apart = min(DENSE, ROOM // max(self._first, 1)), 1
        if dense < 2:
            return False
        while epoch >= dense * apart:
            apart *= 2
        return epoch % apart == 0

    @classmethod
    def of(cls, updates: Sequence[Update]) -> list[tuple[int, Update]]:
        """Those of recorded steps that are kept, each with its turn."""
        spread, kept = cls(), []
        for u in updates:
            if spread.takes(u.epoch, u.step, (*u.gradients.values(), *u.weights.values())):
                kept.append((spread.turn, u))
        return kept
