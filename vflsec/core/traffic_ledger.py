"""Exact counts of the messages sent between parties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vflsec.core.message import Message


class Ledger:
    """Exact counts of the messages sent, for each replica.

    One entry a (phase, kind, name, sender, receiver): messages, elements and bytes, (R,) int64
    each. ``bytes = elements x element size`` of what was delivered.
    """

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.entries: dict[tuple[str, str, str, str, str], _Entry] = {}
        self._alive = np.ones(replicas, dtype=np.int64)

    def count(self, message: Message, alive: np.ndarray) -> None:
        """Add one delivered message for the replicas that are `alive`, (R,) 0 or 1.

        An array that was given is not to be changed afterwards.
        """
        if alive is not self._alive:
            self._settle()
            self._alive = alive
        key = (message.phase, message.kind, message.name, message.sender, message.receiver)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = _Entry(np.zeros((4, self.replicas), dtype=np.int64))
        tensor, open_ = message.tensor, entry.open
        elements = tensor.numel() // self.replicas
        open_[0] += 1
        open_[1] += elements
        open_[2] += elements * tensor.element_size()
        if entry.last != message.step:
            open_[3] += 1
            entry.last = message.step

    def begin_turn(self) -> None:
        """Other replicas take a step that some took already: it is a new round for them."""
        for entry in self.entries.values():
            entry.last = None

    def _settle(self) -> None:
        for entry in self.entries.values():
            entry.counts += np.outer(entry.open, self._alive)
            entry.open = [0, 0, 0, 0]

    def of(self, r: int) -> list[dict[str, Any]]:
        """The entries of replica `r` as plain rows."""
        self._settle()
        out = []
        for (phase, kind, name, sender, receiver), entry in self.entries.items():
            messages, elements, size, rounds = (int(v) for v in entry.counts[:, r])
            out.append(
                {"phase": phase, "kind": kind, "name": name, "sender": sender,
                 "receiver": receiver, "messages": messages, "elements": elements,
                 "bytes": size, "rounds": rounds}
            )  # fmt: skip
        return out


@dataclass
class _Entry:
    """Messages, elements, bytes and rounds of one kind.

    Attributes:
        counts: (4, R) int64.
        open: what came since for every replica that is alive.
        last: the step of the last message.
    """

    counts: np.ndarray
    open: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    last: int | None = None
