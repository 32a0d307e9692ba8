"""What messages say of a row once that is taken away which they share with other rows' messages.

Noise protects a row only where it is drawn for that row alone. Noise that is drawn once for a
batch (a tensor of one row that is broadcast), or from a generator that begins anew with every
batch (so that it is the same at each place), is common to many messages: their differences are
free of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vflsec.nn.rows import spread

FIRST = 16
"""Batches that tell whether rows share something, and what each place has in common."""
LEFT = 0.8
"""Below which share of the spread over rows what is left counts as freed of something shared."""


class Centring:
    """Finds out from the first batches what rows share, by replica, and takes it away.

    That is nothing, the mean of their batch, or the mean at their place in the batches before, of
    which as much is taken away as leaves least (noise may grow with the messages).
    """

    def __init__(self) -> None:
        self.of_batch: Tensor | None = None

    def begin(self, batches: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """Look at the first batches: (R, b, ...) each, and the replicas (R,) that sent it."""
        first = batches[0][0]
        many, width = len(first), max(x.shape[1] for x, _ in batches)
        self.mean = first.new_zeros(many, width, first[0, 0].numel())
        self.before = torch.zeros(many, width, dtype=torch.int32, device=first.device)
        scatter, count = torch.zeros(2, 3, many, dtype=torch.float64, device=first.device)
        middle = torch.zeros(many, self.mean.shape[2], dtype=torch.float64, device=first.device)
        for message, alive in batches:
            x = message.reshape(*message.shape[:2], -1)
            b = x.shape[1]
            on = torch.ones(many, device=x.device) if alive is None else alive.to(x)
            k = self.before[:, :b].clone()
            by_place = self._less_place(x) * (k > 0).unsqueeze(2)
            by_place = by_place.square().sum(2).double() * k / (k + 1)
            by_batch = (x - x.mean(1, keepdim=True)).square().sum((1, 2)) * (b / max(b - 1, 1))
            square = torch.stack([x.square().sum((1, 2)).double(), by_batch, by_place.sum(1)])
            scatter += square * on
            count += torch.stack([on * b, on * b * (b > 1), on * (k > 0).sum(1)])
            middle += x.sum(1) * on.unsqueeze(1)
            self._learn(x, alive)
        whole = count[0].clamp_min(1)
        scatter[0] -= (middle / whole.unsqueeze(1)).square().sum(1) * whole
        left = torch.where(count > 0, scatter / count.clamp_min(1), torch.inf)
        told = left.argmin(0) * (left.amin(0) < LEFT * left[0])
        self.of_batch, self.of_place = ((told == k).nonzero().squeeze(1) for k in (1, 2))

    @property
    def any(self) -> bool:
        """Whether rows of any replica share something."""
        return self.of_batch is not None and bool(len(self.of_batch) + len(self.of_place))

    def freed(self, message: Tensor, alive: Tensor | None = None, *, learn: bool = True) -> Tensor:
        """A message (R, b, ...) less what its rows share; itself where they share nothing.

        Args:
            learn: whether it enters the means at places; those of `begin` have.
        """
        assert self.of_batch is not None
        if not self.any:
            return message
        x = message.reshape(*message.shape[:2], -1)
        out = x.clone()
        if len(at := self.of_batch):
            out[at] -= x[at].mean(1, keepdim=True)
        if len(at := self.of_place):
            out[at] = self._less_place(x)[at]
            if learn:
                self._learn(x, alive)
        return out.reshape(message.shape)

    def _less_place(self, x: Tensor) -> Tensor:
        more = x.shape[1] - self.mean.shape[1]
        if more > 0:
            self.mean = torch.nn.functional.pad(self.mean, (0, 0, 0, more))
            self.before = torch.nn.functional.pad(self.before, (0, more))
        known = self.mean[:, : x.shape[1]]
        size = known.square().sum((1, 2), keepdim=True)
        size = (x * known).sum((1, 2), keepdim=True) / torch.where(size > 0, size, size + 1)
        return x - size * known

    def _learn(self, x: Tensor, alive: Tensor | None) -> None:
        b = x.shape[1]
        on = torch.ones_like(self.before[:, :1]) if alive is None else alive.unsqueeze(1)
        self.before[:, :b] += on.to(torch.int32)
        step = on / self.before[:, :b].clamp_min(1)
        self.mean[:, :b] += (x - self.mean[:, :b]) * step.unsqueeze(2).to(x)


def is_shared(mean: Tensor, centred: Tensor) -> bool:
    """Whether mean messages (n, ...) are mostly what rows share, as those freed of it tell."""
    return _scatter(centred) < LEFT * _scatter(mean)


def _scatter(x: Tensor) -> float:
    """Variances of the columns of x (n, ...), added up."""
    return float(spread(x.flatten(1).double())[0].square().sum())
