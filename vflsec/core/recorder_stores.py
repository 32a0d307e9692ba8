"""What a recorder keeps of messages: every one of them, or one payload a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vflsec.core.batch_centring import FIRST, Centring
from vflsec.core.message import Message
from vflsec.core.view import Table
from vflsec.nn.rows import widen

WAITING = 1 << 17
"""Rows of sums that wait for being counted."""


class Dense:
    """One payload a row and replica: the sum, the first or the last one seen.

    Args:
        form: other than ``all``.
        replicas, rows: R and N.
        asked: the places r N + row (m,), ascending, of which alone something is kept; None is all.
    """

    def __init__(self, form: str, replicas: int, rows: int, asked: Tensor | None = None) -> None:
        self.form, self.replicas, self.n = form, replicas, rows
        end = replicas * rows
        self.places = None if asked is None else torch.cat([asked, asked.new_tensor([end])])
        self.size = end if self.places is None else len(self.places)
        self.sums = form in ("mean", "scaled")
        self.value: Tensor | None = None
        self.alive: Tensor | None = None
        self.asked: tuple[Tensor, Tensor] | None = None
        self.seen: list[Tensor] = []
        self.waiting, self.when = 0, (0, 0)
        self.rows: Tensor | None = None

    def add(self, message: Message, alive: Tensor | None) -> None:
        """Fold a message in, of the replicas that still train (R,); None is all of them."""
        x = message.tensor
        assert message.rows is not None
        self._unpack()
        if self.value is None:
            self.value = torch.zeros((self.size, *x.shape[2:]), dtype=x.dtype, device=x.device)
            where = (self.size,)
            self.count = torch.zeros(where, dtype=torch.int32, device=x.device)
            moments = (self.replicas,) if self.sums else where
            self.epoch = torch.zeros(moments, dtype=torch.int32, device=x.device)
            self.step = torch.zeros(moments, dtype=torch.int32, device=x.device)
            self.offset = (torch.arange(self.replicas, device=x.device) * self.n).unsqueeze(1)
            if self.places is not None:
                self.places = self.places.to(x.device)
        index = self._find_slots(message.rows + self.offset)
        if alive is not None:
            at = self._still(alive)
            x, index = x.index_select(0, at), index.index_select(0, at)
        if self.form == "scaled":
            x = _by_batch(x)
        elif message.scale != 1.0:
            x = x * message.scale
        if message.repeated and x.is_cuda:
            x = _in_order(x, index, adds=self.sums)
        index = index.reshape(-1)
        x = x.reshape(len(index), *x.shape[2:])
        if x.dtype != self.value.dtype:  # of somebody else's training; our own keep theirs
            wide = torch.promote_types(x.dtype, self.value.dtype)
            self.value, x = self.value.to(wide), x.to(wide)
        if self.sums:
            if alive is not self.alive:
                self._settle()
                self.alive = alive
            self.value.index_add_(0, index, x)
            self.when = (message.epoch, message.step)
            self.seen.append(index)
            self.waiting += len(index)
            if self.waiting > WAITING:
                self._settle()
            return
        epoch: int | Tensor = message.epoch
        step: int | Tensor = message.step
        if self.form == "first":
            new = self.count[index] == 0
            if x.is_cuda:  # to ask how many are new would wait for them
                x = torch.where(widen(new, x), x, self.value[index])
                epoch = torch.where(new, epoch, self.epoch[index])
                step = torch.where(new, step, self.step[index])
            else:
                index, x = index[new], x[new]
        self.value.index_copy_(0, index, x)
        self.count[index] += 1
        _set_moment(self.epoch, index, epoch)
        _set_moment(self.step, index, step)

    def _find_slots(self, places: Tensor) -> Tensor:
        """Where these (R, b) are kept; the last slot takes all that were not asked for."""
        if self.places is None:
            return places
        at = torch.searchsorted(self.places, places)
        return torch.where(self.places[at] == places, at, self.size - 1)

    def _still(self, alive: Tensor) -> Tensor:
        """Which replicas still train, asked once of each set of them."""
        if self.asked is None or self.asked[0] is not alive:
            self.asked = alive, alive.nonzero().squeeze(1)
        return self.asked[1]

    def _settle(self) -> None:
        """Count the rows of sums that were not counted yet; those of many messages at once."""
        if not self.seen:
            return
        index = torch.cat(self.seen)
        self.count.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        still = slice(None) if self.alive is None else self.alive
        self.epoch[still], self.step[still] = self.when
        self.seen, self.waiting = [], 0

    def _pack(self) -> Tensor:
        """Keep of all slots those of rows that were seen until more come; their places (m,)."""
        self._settle()
        if self.rows is None:
            if self.places is not None:
                self.count[-1] = 0
            self.rows = torch.nonzero(self.count).squeeze(1)
            for name in self._by_row():
                setattr(self, name, getattr(self, name).index_select(0, self.rows))
        return self.rows if self.places is None else self.places[self.rows]

    def _unpack(self) -> None:
        if self.rows is not None:
            for name in self._by_row():
                kept = getattr(self, name)
                whole = kept.new_zeros(self.size, *kept.shape[1:])
                setattr(self, name, whole.index_copy_(0, self.rows, kept))
            self.rows = None

    def _by_row(self) -> tuple[str, ...]:
        """Names of what there is a row of for each slot."""
        return ("value", "count") if self.sums else ("value", "count", "epoch", "step")

    def origin(self) -> Dense | All:
        """What has the tables to be given."""
        return self

    def table(self, r: int) -> Table:
        """What replica `r` got: each row once, ascending."""
        places = self._pack()
        ends = torch.tensor([r * self.n, (r + 1) * self.n], device=places.device)
        part = slice(*torch.searchsorted(places, ends).tolist())
        assert self.value is not None
        rows, value = places[part] - r * self.n, self.value[part]
        if self.sums:
            value = value / widen(self.count[part].to(value.dtype), value)
            epoch, step = (torch.full_like(rows, int(t[r])) for t in (self.epoch, self.step))
            return Table(value, rows, epoch, step)
        return Table(value.clone(), rows, self.epoch[part].long(), self.step[part].long())


def _set_moment(moments: Tensor, index: Tensor, when: int | Tensor) -> None:
    if isinstance(when, Tensor):
        moments.index_copy_(0, index, when)
    else:
        moments.index_fill_(0, index, when)  # an assignment would wait for a GPU


class Centred(Dense):
    """The mean of what a row's messages do not share with those of other rows.

    Args:
        replicas, rows, asked: as of :class:`Dense`.
        find_mean: finds what keeps the mean of the same messages, if anything does: all there is
            to keep where rows share nothing.
    """

    def __init__(
        self, replicas: int, rows: int, find_mean: Callable[[], Dense | All | None],
        asked: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__("mean", replicas, rows, asked)
        self.find_mean = find_mean
        self.mean: Dense | All | None = None
        self.centring = Centring()
        self.first: list[tuple[Message, Tensor | None]] = []

    def add(self, message: Message, alive: Tensor | None) -> None:
        """Fold a message in; the first :data:`~vflsec.core.batch_centring.FIRST` wait for each
        other.
        """
        message = replace(message, tensor=message.tensor.detach())
        if self.centring.of_batch is not None:
            self._fold(message, alive)
            return
        self.first.append((message, alive))
        if len(self.first) == FIRST:
            self._begin()

    def _begin(self) -> None:
        if self.first[0][0].tensor.is_floating_point():
            self.centring.begin([(m.tensor, alive) for m, alive in self.first])
        for message, alive in self.first:
            self._fold(message, alive, learn=False)
        self.first = []

    def _fold(self, message: Message, alive: Tensor | None, *, learn: bool = True) -> None:
        if self.centring.any:
            x = self.centring.freed(message.tensor, alive, learn=learn)
            message = replace(message, tensor=x)
        elif self._keep_mean() is not None:
            return
        super().add(message, alive)

    def _keep_mean(self) -> Dense | All | None:
        """What keeps the mean; held from here on, whoever else has done with it."""
        self.mean = self.mean or self.find_mean()
        return self.mean

    def origin(self) -> Dense | All:
        if self.first:
            self._begin()
        return (None if self.centring.any else self.mean) or self


def _in_order(x: Tensor, rows: Tensor, *, adds: bool) -> Tensor:
    """Payloads (R, b, ...) of rows (R, b) of which some come several times, for a device that
    writes them in any order: each time the last one; to be added, once their sum, and zeros.
    """
    b, flat = x.shape[1], x.reshape(*x.shape[:2], -1)
    same = rows.unsqueeze(2) == rows.unsqueeze(1)
    turn = torch.arange(b, device=x.device)
    if not adds:
        last = (same * turn).amax(2, keepdim=True)
        return flat.gather(1, last.expand(flat.shape)).reshape(x.shape)
    if not x.is_floating_point():
        return x  # whole numbers add up alike
    first = (torch.where(same, turn, b).amin(2) == turn).unsqueeze(2)
    return torch.where(first, same.to(x.dtype) @ flat, 0.0).reshape(x.shape)


def _by_batch(x: Tensor) -> Tensor:
    """Rows (R, b, ...) divided by the root mean square row norm of their batch, zeros by 1."""
    if not x.is_floating_point():
        return x
    size = x.reshape(*x.shape[:2], -1).square().sum(2).mean(1).sqrt()
    size = torch.where(size > 0, size, torch.ones_like(size))
    return x / widen(size, x)


def _keep_some(message: Message, at: Tensor) -> Message:
    """What a message says of its rows `at` (b,); replicas that are alike stay one tensor."""
    assert message.rows is not None
    alike = message.tensor.stride(0) == message.rows.stride(0) == 0
    x, rows = (t[: 1 if alike else None, at] for t in (message.tensor, message.rows))
    if alike:
        x, rows = (t.expand(len(message.tensor), *t.shape[1:]) for t in (x, rows))
    return replace(message, tensor=x, rows=rows)


class _Block:
    """Messages of one replica one after the other, in memory that was set aside for all of them."""

    def __init__(self, message: Message, most: int) -> None:
        x = message.tensor[0]
        self.value = torch.empty((most, *x.shape[1:]), dtype=x.dtype, device=x.device)
        self.rows, self.epoch, self.step = (
            torch.empty(most, dtype=torch.int64, device=x.device) for _ in range(3)
        )
        self.used = 0

    def add(self, message: Message) -> bool:
        """Take a message in, if it is of the same kind as those before and there is room."""
        x, rows = message.tensor[0], message.rows
        end = self.used + len(x)
        if rows is None or end > len(self.value) or x.dtype != self.value.dtype:
            return False
        if x.shape[1:] != self.value.shape[1:]:
            return False
        part = slice(self.used, end)
        torch.mul(x.detach(), message.scale, out=self.value[part])
        self.rows[part], self.epoch[part], self.step[part] = rows[0], message.epoch, message.step
        self.used = end
        return True

    def table(self) -> Table:
        part = slice(self.used)
        return Table(self.value[part], self.rows[part], self.epoch[part], self.step[part])


class All:
    """Every message, as it passed.

    Args:
        rows: N.
        most: how many rows will pass at most, where that is known; 0 if it is not.
        refines: whether a message replaces what earlier ones of its epoch and name say of its rows.
        asked: as of :class:`Dense`; what is kept is of rows that any of a message's replicas asks
            for.
    """

    def __init__(
        self, rows: int, most: int = 0, *, refines: bool = False, asked: Tensor | None = None
    ) -> None:
        self.n, self.most, self.refines, self.asked = rows, most, refines, asked
        self.mine: Tensor | None = None
        self.block: _Block | None = None
        self.kept: list[tuple[Message, Tensor | None]] = []

    def add(self, message: Message, alive: Tensor | None) -> None:
        """Keep a message, of the replicas that still train (R,); None is all of them."""
        if self.asked is not None and message.rows is not None:
            message = _keep_some(message, self._find_asked(message.rows, alive))
        if self.most and alive is None and not self.kept and len(message.tensor) == 1:
            self.block = self.block or _Block(message, self.most)
            if message.tensor.is_floating_point() and self.block.add(message):
                return
        if self.refines and message.tensor.stride(0) == 0 and message.tensor.shape[1]:
            self._drop_older(message, alive)
        # The receiver may ask for gradients of what it got: those are not the observer's.
        self.kept.append((replace(message, tensor=message.tensor.detach()), alive))

    def _find_asked(self, rows: Tensor, alive: Tensor | None) -> Tensor:
        """Which of the rows (R, b) any replica asks for that still trains, (b,)."""
        if self.mine is None:
            self.mine = torch.zeros(len(rows) * self.n, dtype=torch.bool, device=rows.device)
            self.mine[self.asked] = True
        on = slice(None) if alive is None else alive.to(rows.device)
        offset = torch.arange(len(rows), device=rows.device)[on].unsqueeze(1) * self.n
        return self.mine[rows[on] + offset].any(0)

    def _drop_older(self, message: Message, alive: Tensor | None) -> None:
        """Drop what earlier messages of this epoch and name say of the rows of this one."""
        assert message.rows is not None
        told = message.rows[0]
        stays = torch.ones(1 + int(told.max()), dtype=torch.bool, device=told.device)
        stays[told] = False
        for k in reversed(range(len(self.kept))):
            m, when = self.kept[k]
            if when is not alive or (m.epoch, m.name) != (message.epoch, message.name):
                return
            assert m.rows is not None
            at = stays[m.rows[0].clamp(max=len(stays) - 1)] | (m.rows[0] >= len(stays))
            self.kept[k] = _keep_some(m, at), alive

    def origin(self) -> All:
        """Itself, as :meth:`Dense.origin`."""
        return self

    def table(self, r: int) -> Table:
        """What replica `r` got, message after message.

        Of messages of several shapes, as parameters are, flat rows with zeros up to the widest. No
        row where other replicas got all of them.
        """
        if self.block is not None and not self.kept:
            return self.block.table()
        before = [] if self.block is None else [self.block.table()]
        tensors, rows = [t.tensor for t in before], [t.rows for t in before]
        sizes, times = list[int](), list[tuple[int, int]]()
        for m, alive in self.kept:
            if alive is not None and not bool(alive[r]):
                continue
            x = m.tensor[r] * m.scale if m.scale != 1.0 else m.tensor[r]
            if m.rows is None:
                x = x.unsqueeze(0)
                ids = torch.full((1,), -1, dtype=torch.int64, device=x.device)
            else:
                ids = m.rows[r]
            tensors.append(x)
            rows.append(ids)
            sizes.append(len(ids))
            times.append((m.epoch, m.step))
        if not tensors:
            x, none = self.kept[0][0].tensor[r], torch.empty(0, dtype=torch.int64)
            none = none.to(x.device)
            return Table(x[:0].clone(), none, none, none)
        if len({t.shape[1:] for t in tensors}) > 1:
            flat = [t.flatten(1) for t in tensors]
            most = max(t.shape[1] for t in flat)
            tensors = [torch.nn.functional.pad(t, (0, most - t.shape[1])) for t in flat]
        when = torch.tensor(times, dtype=torch.int64).reshape(-1, 2).T
        often = torch.tensor(sizes, dtype=torch.int64)
        epochs, steps = (t.repeat_interleave(often).to(rows[0].device) for t in when)
        for t in before:
            epochs, steps = torch.cat([t.epoch, epochs]), torch.cat([t.step, steps])
        return Table(torch.cat(tensors), torch.cat(rows), epochs, steps)
