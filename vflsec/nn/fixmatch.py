"""Weak and strong views of own rows for FixMatch, for images and for tables.

Tables (FixMatch-tab): weak view a(x) = (1 - m) * x + m * x_mean with m ~ Bernoulli(r), the mask of
*replaced* entries; strong view a(x) + n with the same mask and n ~ N(0, sigma^2). Of a categorical
column the most frequent code stands for the mean, and noise goes to numeric columns only.
Images: weak = a shift by at most an eighth of the side, edges repeated (and a horizontal flip on
demand); strong = weak, then random contrast and brightness, or RandAugment, and a square hole.

Every replica draws from generators of its own, so its views do not depend on the others.

Source: Sohn et al., "FixMatch: simplifying semi-supervised learning with consistency and
confidence", NeurIPS 2020, arXiv:2001.07685; Sun et al., "Communication-efficient vertical federated
learning with limited overlapping samples", ICCV 2023, equations 5 and 6 (where the sign of the mask
is printed the other way round; its text says the masked share is r).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vflsec.core.rng import Streams
from vflsec.core.view import Schema
from vflsec.nn.randaugment import randaugment


class Views:
    """Random views of rows (R, b, ...)."""

    def weak(self, x: Tensor) -> Tensor:
        """One weak view, the shape of `x`."""
        raise NotImplementedError("abstract")

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A weak view and a strong view built on it."""
        raise NotImplementedError("abstract")


def column_centres(x: Tensor, schema: Schema) -> Tensor:
    """Mean of each numeric and most frequent code of each categorical column, (R, d).

    Args:
        x: own rows (R, n, d).
        schema: of the party.
    """
    centres = torch.stack([rows.mean(0) for rows in x])
    for i in schema.categorical:
        centres[:, i] = torch.stack([rows[:, i].mode().values for rows in x])
    return centres


@dataclass
class TabularViews(Views):
    """FixMatch-tab.

    Attributes:
        centres: (R, d), see :func:`column_centres`.
        numeric: positions of the numeric columns.
        share: r, share of the entries that are replaced, in [0, 1].
        sigma: standard deviation of the strong view's noise, in units of the prepared columns.
        rng: streams of this party's views.
    """

    centres: Tensor
    numeric: tuple[int, ...]
    share: float
    sigma: float
    rng: Streams

    def weak(self, x: Tensor) -> Tensor:
        replaced = self.rng.uniform(x.shape[1:]).to(x.device) < self.share
        return torch.where(replaced, self.centres.to(x).unsqueeze(1), x)

    @cached_property
    def _at(self) -> Tensor:
        """`numeric` where the columns are."""
        return torch.tensor(self.numeric, dtype=torch.int64, device=self.centres.device)

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weak = self.weak(x)
        noise = torch.zeros_like(weak)
        drawn = self.rng.normal((x.shape[1], len(self.numeric))).to(x)
        noise[..., self._at] = drawn * self.sigma
        return weak, weak + noise


@dataclass
class ImageViews(Views):
    """Shifts, contrast, brightness and a hole, for images (R, b, c, h, w) with values in [0, 1].

    Attributes:
        rng: streams of this party's views.
        flip: weak views are mirrored left to right with probability 1/2.
        jitter: contrast is scaled by, and brightness moved by, a number uniform in +-jitter.
        random: RandAugment instead of those two.
    """

    rng: Streams
    flip: bool = False
    jitter: float = 0.4
    random: bool = False

    def weak(self, x: Tensor) -> Tensor:
        _, b, _, h, w = x.shape
        rows = self._shifted(h, b, x.device)  # (R, b, h)
        columns = self._shifted(w, b, x.device)
        if self.flip:
            mirrored = (self.rng.uniform((b,)).to(x.device) < 0.5).unsqueeze(2)
            columns = torch.where(mirrored, w - 1 - columns, columns)
        x = x.gather(3, rows[:, :, None, :, None].expand(x.shape))
        return x.gather(4, columns[:, :, None, None, :].expand(x.shape))

    def _shifted(self, size: int, b: int, device: torch.device) -> Tensor:
        most = size // 8
        by = self.rng.integers(2 * most + 1, (b,)).to(device) - most
        return (torch.arange(size, device=device) + by.unsqueeze(2)).clamp(0, size - 1)

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weak = self.weak(x)
        _, b, _, h, w = x.shape
        if self.random:
            strong = randaugment(weak, self.rng)
        else:
            factor, offset = ((self.rng.uniform((b, 2)).to(x) * 2 - 1) * self.jitter).unbind(2)
            shape = (len(x), b, 1, 1, 1)
            strong = weak * (1 + factor.reshape(shape)) + offset.reshape(shape)
        hole = self._hole(h, b, x.device).unsqueeze(3) & self._hole(w, b, x.device).unsqueeze(2)
        return weak, torch.where(hole.unsqueeze(2), 0.0, strong.clamp(0, 1))

    def _hole(self, size: int, b: int, device: torch.device) -> Tensor:
        side = max(1, size // 2)
        start = self.rng.integers(size, (b,)).to(device).unsqueeze(2) - side // 2
        at = torch.arange(size, device=device)
        return (at >= start) & (at < start + side)
