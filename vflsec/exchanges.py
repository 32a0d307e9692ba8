"""Which exchange of its step a message is of, where messages about the same rows come again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vflsec.message import Message

__all__ = ["EXCHANGES", "Exchanged", "Step", "exchange"]

EXCHANGES = 8
"""Messages about one row in one step that stand side by side; a table is as wide as all."""

Exchanged = tuple[str, str, int]
"""An exchange: the kind and the name of its messages, and the how many-th of its step it is."""


class Step:
    """How often each row came in the messages of one step; counted where there are several.

    Args:
        rows: how many rows there are; 0 for as many as come.
    """

    def __init__(self, rows: int = 0) -> None:
        self.n = rows
        self.when: tuple[object, ...] | None = None
        self.came: list[Tensor] = []
        self.often: Tensor | None = None

    def turns(self, when: tuple[object, ...], rows: Tensor) -> Tensor | None:
        """The how many-th message of the step `when` this is for each of its rows (R, b).

        None for the first message of a step; all beyond :data:`EXCHANGES` are one more than that.
        """
        if when != self.when:
            if self.often is not None:
                for old in self.came:
                    self.often.scatter_(1, old, 0)
            self.when, self.came = when, [rows]
            return None
        often = self._room(rows)
        if len(self.came) == 1:
            often.scatter_(1, self.came[0], 1)
        turn = (often.gather(1, rows) + 1).clamp_max(EXCHANGES + 1)
        often.scatter_(1, rows, turn)
        self.came.append(rows)
        return turn

    def _room(self, rows: Tensor) -> Tensor:
        """The counts (R, n), with a place for all that came and for `rows` (R, b)."""
        n = self.n or max(int(r.max()) + 1 for r in (*self.came, rows))
        held = 0 if self.often is None else self.often.shape[1]
        if self.often is None or n > held:
            wide = torch.zeros(len(rows), max(n, held), dtype=torch.uint8, device=rows.device)
            if self.often is not None:
                wide[:, :held] = self.often
            self.often = wide
        return self.often


def exchange(memory: dict[str, Any], message: Message) -> Exchanged:
    """The exchange that a row-wise message is of, for a policy that sees each message once.

    A message with a row that came before in its step, under its name, is of a later exchange.

    Args:
        memory: of the policy; what came in the current step is kept there.
        message: with rows (R, b).
    """
    assert message.rows is not None
    steps = memory.setdefault("steps", {})
    step = steps.setdefault((message.kind, message.sender, message.name), Step())
    turns = step.turns((message.phase, message.epoch, message.step), message.rows)
    return (message.kind, message.name, 1 if turns is None else int(turns.max()))
