"""What messages say of a row once that is taken away which they share with other rows' messages.

Noise protects a row only where it is drawn for that row alone. Noise that is drawn once for a
batch (a tensor of one row that is broadcast), or from a generator that begins anew with every
batch (so that it is the same at each place), is common to many messages: their differences are
free of it. Over all batches the mean at a place is learned as they pass; from a batch that much of
the means before it is taken away which leaves least (the noise may grow with the messages).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Centring", "shared"]

LEFT = 0.8
"""Below which share of the spread over rows what is left counts as freed of something shared."""


class Centring:
    """Messages less their batch's mean, and less the mean at their place, folded to one a row.

    Args:
        replicas, rows: how many there are.
    """

    def __init__(self, replicas: int, rows: int) -> None:
        self.replicas, self.n = replicas, rows
        self.ready = False

    def _begin(self, x: Tensor) -> None:
        flat, width = self.replicas * self.n, x.shape[2]
        self.sums = x.new_zeros(2, flat, width)
        self.visits = torch.zeros(2, flat, dtype=torch.int32, device=x.device)
        self.scatter, self.count = torch.zeros(
            2, 2, self.replicas, dtype=torch.float64, device=x.device
        )
        self.mean = x.new_zeros(self.replicas, 0, width)  # at each place, of the batches before
        self.before = torch.zeros(self.replicas, 0, dtype=torch.int32, device=x.device)
        self.offset = (torch.arange(self.replicas, device=x.device) * self.n).unsqueeze(1)
        self.ready = True

    def add(self, x: Tensor, rows: Tensor, alive: Tensor | None = None) -> None:
        """Take in one batch.

        Args:
            x: (R, b, ...) floating point.
            rows: (R, b) in [0, rows).
            alive: replicas (R,) that it counts for; None is all of them.
        """
        x = x.reshape(*x.shape[:2], -1)
        if not self.ready:
            self._begin(x)
        b = x.shape[1]
        if b > self.mean.shape[1]:
            more = b - self.mean.shape[1]
            self.mean = torch.nn.functional.pad(self.mean, (0, 0, 0, more))
            self.before = torch.nn.functional.pad(self.before, (0, more))
        of = torch.arange(self.replicas, device=x.device)
        of = of if alive is None else of[alive]
        x, index = x[of], (rows + self.offset)[of].reshape(-1)
        mean, before = self.mean[of, :b], self.before[of, :b]
        seen = (before > 0).unsqueeze(2).to(x)
        known = mean * seen
        size = known.square().sum((1, 2), keepdim=True)
        size = (x * known).sum((1, 2), keepdim=True) / torch.where(size > 0, size, size + 1)
        by_batch, by_place = x - x.mean(1, keepdim=True), x - size * known
        self._fold(0, of, by_batch, torch.full_like(before, b > 1), b / max(b - 1, 1), index)
        k = before.unsqueeze(2).to(x)
        self._fold(1, of, by_place * seen, before.clamp_max(1), k / (k + 1), index)
        self.mean[of, :b] = mean + (x - mean) / (k + 1)
        self.before[of, :b] = before + 1

    def _fold(
        self, how: int, of: Tensor, left: Tensor, counts: Tensor, unbiased: Tensor | float,
        index: Tensor,
    ) -> None:  # fmt: skip
        square = (left.square() * unbiased).sum((1, 2), dtype=torch.float64)
        self.scatter[how, of] += square
        self.count[how, of] += counts.sum(1)
        self.sums[how].index_add_(0, index, left.reshape(len(index), -1))
        self.visits[how].index_add_(0, index, counts.reshape(-1))

    def of(self, r: int) -> tuple[Tensor, Tensor]:
        """Of replica `r` the mean of what is left of each row's messages (n, m), and who came (n,).

        Freed of that, batch or place, without which less is left.
        """
        left = self.scatter[:, r] / self.count[:, r].clamp_min(1)
        left = torch.where(self.count[:, r] > 0, left, torch.full_like(left, torch.inf))
        how, part = int(left.argmin()), slice(r * self.n, (r + 1) * self.n)
        visits = self.visits[:, part]
        value = self.sums[how, part] / visits[how].clamp_min(1).unsqueeze(1)
        return value, (visits > 0).any(0)


def shared(mean: Tensor, centred: Tensor) -> bool:
    """Whether mean messages (n, ...) are mostly what rows share, as those freed of it tell."""
    whole, left = (float(x.flatten(1).double().var(0, correction=0).sum()) for x in (mean, centred))
    return left < LEFT * whole
