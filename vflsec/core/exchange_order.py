"""Which exchange of its step a message is of, and how tables of several exchanges stand together.

Where messages about a row come several times in one step, each time is an exchange of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vflsec.core.message import Message
from vflsec.core.view import Table, join_in_turn, scale_like

EXCHANGES = 8
"""Messages about one row in one step that stand side by side; a table is as wide as all."""

Exchanged = tuple[str, str, int]
"""An exchange: the kind and the name of its messages, and the how many-th of its step it is."""


class Step:
    """Of which exchanges each row was in one step; noted where there are several messages.

    Args:
        rows: how many rows there are; 0 for as many as come.
    """

    def __init__(self, rows: int = 0) -> None:
        self.n = rows
        self.when: tuple[object, ...] | None = None
        self.came: list[tuple[Tensor, Tensor | None]] = []
        self.held: Tensor | None = None

    def turn(
        self, when: tuple[object, ...], rows: Tensor, of: Tensor | None = None
    ) -> Tensor | None:
        """The exchange of the step `when` that a message with these rows (R, b) is of, (R,) from 1.

        The first one of which none of its rows was, so that parts of a batch are one; all beyond
        :data:`EXCHANGES` are one more than that. None for the first message of a step. With `of`
        (R,) it is a message of these replicas alone, and leaves the exchanges of others as they
        are; what stands there of these says nothing.
        """
        if when != self.when:
            if self.held is not None:
                for old, _ in self.came:
                    self.held.scatter_(1, old, 0)
            self.when, self.came = when, [(rows, of)]
            return None
        held = self._room(rows)
        if len(self.came) == 1:
            first, whose = self.came[0]
            held.scatter_(
                1, first, 1 if whose is None else whose.to(held).unsqueeze(1).expand_as(first)
            )
        bits = 1 << torch.arange(EXCHANGES, dtype=torch.uint8, device=rows.device)
        was = held.gather(1, rows)
        free = (was.unsqueeze(2) & bits == 0).all(1)
        turn = (free.cumsum(1) == 0).sum(1) + 1
        bit = torch.cat([bits, bits.new_zeros(1)])[turn - 1]
        bit = bit if of is None else bit * of.to(bit)
        held.scatter_(1, rows, was | bit.unsqueeze(1))
        self.came.append((rows, of))
        return turn

    def _room(self, rows: Tensor) -> Tensor:
        """A bit for each exchange (R, n), with a place for all that came and for `rows` (R, b)."""
        n = self.n or max(int(r.max()) + 1 for r in (*(of for of, _ in self.came), rows))
        old = 0 if self.held is None else self.held.shape[1]
        if self.held is None or n > old:
            wide = torch.zeros(len(rows), max(n, old), dtype=torch.uint8, device=rows.device)
            if self.held is not None:
                wide[:, :old] = self.held
            self.held = wide
        return self.held


def exchange(memory: dict[str, Any], message: Message) -> Exchanged:
    """The exchange that a row-wise message is of, for a policy that sees each message once.

    A message with a row that came before in its step, under its name, is of another exchange.

    Args:
        memory: of the policy; what came in the current step is kept there.
        message: with rows (R, b).
    """
    assert message.rows is not None
    steps = memory.setdefault("steps", {})
    step = steps.setdefault((message.kind, message.sender, message.name), Step())
    turn = step.turn((message.phase, message.epoch, message.step), message.rows)
    return (message.kind, message.name, 1 if turn is None else int(turn.max()))


def align_exchanges(said: Sequence[tuple[str, Table]], form: str) -> tuple[list[Table], list[str]]:
    """Tables of one kind as they can stand side by side, and the names of those that cannot.

    All are of the rows, in the form ``all`` of the rows and steps, of the first, and of those that
    an exchange has beyond it; zeros where one has nothing. If there are such, a last table has of
    each row what came in the first exchange that it was of: which of a row's messages belong
    together is not known. Numbers are made as large as those of the first.

    Args:
        said: (name, table) in the order in which the names were first heard; exchanges but the
            first are named ``NAME#2`` and so on.
    """
    (of, one), *rest = said
    rest = [(name, scale_like(table, one)) for name, table in rest]
    every = one
    for name, table in rest:
        every = _with_rows_of(every, table, form) if "#" in name else every
    mine = one if every is one else _spread(every, one, form)
    if mine is None:
        every = mine = one
    out, far = [mine], []
    for name, table in rest:
        near = _in_order_of(one, table)
        if near is None or every is not one:
            near = _spread(every, table, form) if near is not None or "#" in name else None
        if near is None:
            far.append(name)
        else:
            out.append(near)
    if every is not one:
        out.append(_first_of(every, [one, *(t for n, t in rest if n.startswith(f"{of}#"))], form))
    return out, far


def append_predicted(one: Table, late: Table, form: str) -> Table:
    """What came of a kind in a phase, and then what came when rows were predicted, as one table.

    Of a row that came in both a folded form has what it has of the phase, ``last`` the later. Where
    payloads have other shapes the later stands alone.
    """
    if one.tensor.shape[1:] != late.tensor.shape[1:]:
        return late
    bare = form.removesuffix("+")
    if bare == "last":
        one = one.take(~torch.isin(one.rows, late.rows))
    elif bare != "all":
        late = late.take(~torch.isin(late.rows, one.rows))
    begin = int(one.step.max()) + 1 if len(one) else 0
    epoch = int(one.epoch.max()) + 1 if len(one) else 0
    late = Table(late.tensor, late.rows, late.epoch + epoch, late.step + begin)
    whole = join_in_turn((one, late))
    return whole if bare == "all" else whole.take(torch.argsort(whole.rows))


def _in_order_of(one: Table, table: Table) -> Table | None:
    """`table` with its rows as they come in `one`; None if it is of other rows or steps."""
    if torch.equal(one.rows, table.rows) and torch.equal(one.step, table.step):
        return table
    if len(one) != len(table) or not len(one):
        return None
    wide = int(torch.maximum(one.rows.max(), table.rows.max())) + 2
    places = [t.step * wide + t.rows for t in (one, table)]
    (mine, order), (its, other) = (p.sort(stable=True) for p in places)
    if not torch.equal(mine, its):
        return None
    at = torch.empty_like(order)
    at[order] = other
    return table.take(at)


def _places(one: Table, table: Table, form: str) -> tuple[Tensor, Tensor]:
    """Where in `one` the rows (m,) of `table` are, in the form ``all`` at their steps, and whether
    they are there.
    """
    wide = int(torch.cat([one.rows, table.rows]).max()) + 2
    mine, its = (t.rows + (t.step * wide if form == "all" else 0) for t in (one, table))
    held, order = mine.sort(stable=True)
    at = torch.searchsorted(held, its).clamp_max(len(held) - 1)
    return order[at], held[at] == its


def _spread(one: Table, table: Table, form: str) -> Table | None:
    """`table` at the rows of `one`, zeros where it has none.

    None if it is of other rows, or has one of them several times.
    """
    if not len(table):
        return None
    at, there = _places(one, table, form)
    if not bool(there.all()) or len(at.unique()) < len(at):
        return None
    value = table.tensor.new_zeros(len(one), *table.tensor.shape[1:])
    value[at] = table.tensor
    return Table(value, one.rows, one.epoch, one.step)


def _with_rows_of(one: Table, table: Table, form: str) -> Table:
    """`one` with the rows that only `table` has, zeros, as they passed or else ascending."""
    _, there = _places(one, table, form)
    more = table.take(~there)
    if not len(more) or len(_places(more, more, form)[0].unique()) < len(more):
        return one
    zeros = one.tensor.new_zeros(len(more), *one.tensor.shape[1:])
    parts = zip((one.tensor, one.rows, one.epoch, one.step),
                (zeros, more.rows, more.epoch, more.step), strict=True)  # fmt: skip
    whole = Table(*(torch.cat(pair) for pair in parts))
    return whole.take(torch.argsort(whole.step if form == "all" else whole.rows, stable=True))


def _first_of(every: Table, tables: Sequence[Table], form: str) -> Table:
    """At each row of `every` what the first of `tables` that has the row holds of it."""
    value = torch.zeros_like(every.tensor)
    for table in reversed(tables):
        if table.tensor.shape[1:] == value.shape[1:]:
            at, there = _places(every, table, form)
            value[at[there]] = table.tensor[there]
    return Table(value, every.rows, every.epoch, every.step)
