"""When messages passed, where a recording did not say: batches by message, epochs by passes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch

from vflsec.core.message import Message
from vflsec.core.view import Table

__all__ = ["Steps", "numbered"]


class Steps:
    """Counts messages that name no step, so that each is a batch of its own."""

    def __init__(self) -> None:
        self._count: dict[tuple[str, ...], int] = defaultdict(int)

    def timed(self, message: Message) -> Message:
        """The message with the number of those before it of its kind, ends and name as its step."""
        m = message
        key = (m.phase, m.sender, m.receiver, m.kind, m.name)
        self._count[key] += 1
        return replace(m, step=self._count[key] - 1)


def numbered(table: Table) -> Table:
    """A table in the form ``all`` of messages without epochs, numbered by passes over its rows.

    A pass ends before the batch that has a row of it again. Only where every pass is whole (each
    row once, but for fewer rows than the largest batch, which may be left out) is it an epoch; else
    the table is returned as it is.
    """
    if not len(table) or len(table.epoch.unique()) > 1:
        return table
    rows, place = table.rows.unique(return_inverse=True)
    _, batch, many = table.step.unique(return_inverse=True, return_counts=True)
    if len(table) <= len(rows) or int(rows[0]) < 0:
        return table
    order = torch.argsort(place * len(many) + batch, stable=True)  # of each row batch by batch
    again = place[order][1:] == place[order][:-1]
    last = torch.full((len(many),), -1, dtype=torch.int64)
    now, before = batch[order][1:][again], batch[order][:-1][again]
    last.scatter_reduce_(0, now[now > before], before[now > before], "amax")
    epochs, begun, held = [0] * len(many), 0, [0]
    for b, seen in enumerate(last.tolist()):
        if seen >= begun:
            begun = b
            held.append(0)
        epochs[b] = len(held) - 1
        held[-1] += int(many[b])
    whole = len(rows) - int(many.max())
    if any(not whole < size <= len(rows) for size in held):
        return table
    return replace(table, epoch=torch.tensor(epochs)[batch])
