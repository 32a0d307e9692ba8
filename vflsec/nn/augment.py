"""Views of a row for self-supervised learning, drawn by each replica's own generators.

Tables: a random subset of the fields of every row is corrupted. A numeric field becomes uniform on
the column's range over the party's training rows, a categorical one the reserved code 0 (missing or
unseen, which has an embedding of its own); or either becomes a value of the column drawn from the
party's training rows (empirical marginal). Images: random resized crop, colour jitter, greyscale,
blur, flip.

Sources: Bahri, Jiang, Tay, Metzler, "SCARF", ICLR 2022 (marginal); He, Kang et al.,
arXiv:2208.08934 (2022) and its public code (uniform range, reserved code, image recipe).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from vflsec.core.rng import Streams
from vflsec.core.view import Schema

CODE_VIEWS: dict[str, Any] = {
    "scale": (0.3, 1.0), "jitter": (0.3, 0.3, 0.3, 0.1), "grey_rate": 0.0,
}  # fmt: skip
"""What FedHSSL's public code changes in SimSiam's recipe for images of 32 x 32 pixels."""


class Corruption:
    """Corrupts round(rate x fields) numeric and as many categorical fields of every row.

    With rate 0.3 these are 190 of 634 numeric columns (NUS-WIDE), and 2 of 7 categorical and 1 of
    3 numeric ones (Avazu), as published.

    Args:
        schema: layout of the rows.
        pool: the party's training rows by replica, (R, n, d); ranges and marginals come from them.
        rate: share of the fields of each kind, in [0, 1].
        source: ``uniform`` (range, reserved code) or ``marginal``.
        rng: streams of this party's views.
    """

    def __init__(
        self, schema: Schema, pool: Tensor, rate: float, source: str, rng: Streams
    ) -> None:
        fields = list(schema.numeric), list(schema.categorical)
        self.fields = [torch.tensor(f, dtype=torch.int64, device=pool.device) for f in fields]
        self.source, self.rng = source, rng
        self.pool = pool if source == "marginal" else None
        self.low, self.high = pool.amin(1), pool.amax(1)  # (R, d)
        self.counts = [round(rate * len(f)) for f in fields]

    def __call__(self, x: Tensor) -> Tensor:
        """A corrupted copy of rows (R, b, d)."""
        out = x.clone()
        for coded, index, count in zip((False, True), self.fields, self.counts, strict=True):
            if count:
                chosen = self._choose(x.shape[1], len(index), count)
                out[..., index] = torch.where(chosen, self._values(x, index, coded), x[..., index])
        return out

    def _choose(self, b: int, fields: int, count: int) -> Tensor:
        """Which of `fields` are hit: exactly `count` in every row, (R, b, fields) bool."""
        order = self.rng.uniform((b, fields)).argsort(-1)
        return torch.zeros_like(order, dtype=torch.bool).scatter_(2, order[..., :count], True)

    def _values(self, x: Tensor, index: Tensor, coded: bool) -> Tensor:
        """What a hit field becomes, (R, b, fields)."""
        shape = (x.shape[1], len(index))
        if self.pool is not None:
            donors = self.rng.integers(self.pool.shape[1], shape)
            return self.pool[..., index].gather(1, donors)
        if coded:
            return torch.zeros((len(x), *shape), dtype=x.dtype, device=x.device)
        low, high = (t[:, index].unsqueeze(1) for t in (self.low, self.high))
        return low + (high - low) * self.rng.uniform(shape).to(x.dtype)


@dataclass
class ImageViews:
    """Random resized crop, colour jitter, greyscale, blur and flip of images in [0, 1].

    The defaults are SimSiam's (Chen, He, CVPR 2021, appendix A); :data:`CODE_VIEWS` are those of
    FedHSSL's public code. Jitter steps run in the order brightness, contrast, saturation, hue;
    saturation and hue need three channels. The blur has five taps.

    Args:
        rng: streams of this party's views.
        scale: smallest and largest share of the area that is kept.
        aspect: largest ratio of its sides.
        jitter: strength of brightness, contrast, saturation (factor 1 +- s), hue (+- turns).
        jitter_rate, grey_rate, blur_rate, flip_rate: shares of images treated.
        sigma: smallest and largest width of the blur in pixels.
    """

    rng: Streams
    scale: tuple[float, float] = (0.2, 1.0)
    aspect: float = 4 / 3
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_rate: float = 0.8
    grey_rate: float = 0.2
    blur_rate: float = 0.5
    flip_rate: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)

    def __call__(self, x: Tensor) -> Tensor:
        """One random view of images (R, b, c, h, w)."""
        u = self.rng.uniform((x.shape[1], 13)).to(x.dtype)  # (R, b, 13)
        out = self._crop(x.flatten(0, 1), u.flatten(0, 1))
        out = self._jitter(out, u.flatten(0, 1))
        return self._blur(out, u.flatten(0, 1)).reshape(x.shape)

    def _crop(self, x: Tensor, u: Tensor) -> Tensor:
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, 0]
        ratio = torch.exp((2 * u[:, 1] - 1) * math.log(self.aspect))
        wide, high = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        flip = torch.where(u[:, 2] < self.flip_rate, -1.0, 1.0).to(x.dtype)
        zero = torch.zeros_like(wide)
        theta = torch.stack(
            [
                torch.stack([wide * flip, zero, (2 * u[:, 3] - 1) * (1 - wide)], dim=1),
                torch.stack([zero, high, (2 * u[:, 4] - 1) * (1 - high)], dim=1),
            ],
            dim=1,
        )
        grid = affine_grid(theta, list(x.shape), align_corners=False)
        return grid_sample(x, grid, padding_mode="border", align_corners=False)

    def _jitter(self, x: Tensor, u: Tensor) -> Tensor:
        def factor(column: int, strength: float) -> Tensor:
            return (1 + strength * (2 * u[:, column] - 1)).reshape(-1, 1, 1, 1)

        out = (x * factor(5, self.jitter[0])).clamp(0, 1)
        level = grey(out).mean((1, 2, 3), keepdim=True)
        out = (level + (out - level) * factor(6, self.jitter[1])).clamp(0, 1)
        if x.shape[1] == 3:
            dull = grey(out)
            out = (dull + (out - dull) * factor(7, self.jitter[2])).clamp(0, 1)
            out = _turn(out, (2 * u[:, 8] - 1) * self.jitter[3])
        treated = (u[:, 9] < self.jitter_rate).reshape(-1, 1, 1, 1)
        out = torch.where(treated, out, x)
        drained = (u[:, 12] < self.grey_rate).reshape(-1, 1, 1, 1)
        return torch.where(drained, grey(out).expand_as(out), out)

    def _blur(self, x: Tensor, u: Tensor) -> Tensor:
        sigma = self.sigma[0] + (self.sigma[1] - self.sigma[0]) * u[:, 10]
        taps = torch.arange(-2, 3, device=x.device, dtype=x.dtype)
        kernel = torch.exp(-0.5 * (taps / sigma.unsqueeze(1)).square())
        kernel = (kernel / kernel.sum(1, keepdim=True)).reshape(-1, 5, 1, 1, 1)
        h, w = x.shape[2:]
        out = pad(x, (2, 2, 2, 2), mode="replicate")
        out = cast(Tensor, sum(kernel[:, i] * out[:, :, i : i + h] for i in range(5)))
        out = cast(Tensor, sum(kernel[:, i] * out[..., i : i + w] for i in range(5)))
        return torch.where((u[:, 11] < self.blur_rate).reshape(-1, 1, 1, 1), out, x)


def grey(x: Tensor) -> Tensor:
    """Images (n, c, h, w) in one channel; those that do not have three stay as they are."""
    if x.shape[1] != 3:
        return x
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=x.dtype, device=x.device)
    return (x * weights.reshape(1, 3, 1, 1)).sum(1, keepdim=True)


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of (n, 3, h, w) by `turns` (n), as a rotation of the YIQ chroma plane."""
    to_yiq = torch.tensor(
        [[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]],
        dtype=x.dtype, device=x.device,
    )  # fmt: skip
    angle = 2 * math.pi * turns
    cos, sin = torch.cos(angle), torch.sin(angle)
    one, zero = torch.ones_like(cos), torch.zeros_like(cos)
    spin = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=1)
    matrix = torch.linalg.inv(to_yiq) @ spin.reshape(-1, 3, 3) @ to_yiq  # (n, 3, 3)
    return (matrix @ x.flatten(2)).reshape(x.shape).clamp(0, 1)
