"""RandAugment as FixMatch uses it: two random changes of an image, each of a random size.

Each change is one of fourteen, alike often, and its size is uniform in the published range
(FixMatch, table 12): contrast stretched to the full range; brightness, colour, contrast and
sharpness between 5 and 95 % of the image's; histogram equalised; none; 4 to 8 bits a channel;
turned by up to 30 degrees; sheared along either side by up to 0.3; values above a threshold
inverted; moved along either side by up to 0.3 of it. Pixels that come from outside are black.
Turning and shearing keep the centre in place and take the nearest pixel; colour leaves grey images
as they are.

Everything is computed for each image by itself from its replica's own draws, in steps that round
alike whatever else is in the batch.

Source: Cubuk, Zoph, Shlens, Le, "RandAugment: practical automated data augmentation with a reduced
search space", NeurIPS 2020, arXiv:1909.13719; Sohn et al., "FixMatch", NeurIPS 2020,
arXiv:2001.07685, appendix; the single changes as in Pillow's ImageOps and ImageEnhance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from vflsec.core.rng import Streams
from vflsec.nn.augment import grey

LEAST, RANGE = 0.05, 0.9
"""Brightness, colour, contrast and sharpness: share of the image's own."""

TURN, SHEAR, MOVE = 30.0, 0.3, 0.3
TENTHS = 300
_COS = [math.cos(math.radians(TURN * i / TENTHS)) for i in range(-TENTHS, TENTHS + 1)]
_SIN = [math.sin(math.radians(TURN * i / TENTHS)) for i in range(-TENTHS, TENTHS + 1)]
"""Of the angles of rotation, in steps of a tenth of a degree."""


def randaugment(x: Tensor, rng: Streams, changes: int = 2) -> Tensor:
    """A changed copy of images (R, b, c, h, w) with values in [0, 1].

    Args:
        x: the images.
        rng: streams of the replicas.
        changes: how many changes each image goes through.
    """
    u = rng.uniform((x.shape[1], changes, 2)).to(x.device).flatten(0, 1)  # (R b, changes, 2)
    out = x.flatten(0, 1).clone()
    for i in range(changes):
        which = (u[:, i, 0] * len(CHANGES)).long()
        for k, change in enumerate(CHANGES.values()):
            rows = (which == k).nonzero().squeeze(1)
            if len(rows):
                out[rows] = change(out[rows], u[rows, i, 1].to(x.dtype))
    return out.reshape(x.shape)


def _wide(m: Tensor) -> Tensor:
    return m.reshape(-1, 1, 1, 1)


def _blend(worse: Tensor, x: Tensor, m: Tensor) -> Tensor:
    return (worse + (LEAST + RANGE * _wide(m)) * (x - worse)).clamp(0, 1)


def _auto_contrast(x: Tensor, m: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    flat = high <= low
    return torch.where(flat, x, (x - low) / torch.where(flat, 1.0, high - low))


def _contrast(x: Tensor, m: Tensor) -> Tensor:
    level = torch.stack([image.mean() for image in grey(x)]).reshape(-1, 1, 1, 1)
    return _blend(level.expand_as(x), x, m)


def _sharpness(x: Tensor, m: Tensor) -> Tensor:
    """Towards the mean of the 3 x 3 pixels around, the middle five times; the rim stays."""
    soft, (h, w) = x.clone(), x.shape[2:]
    if min(h, w) > 2:
        parts = [x[:, :, i : h - 2 + i, j : w - 2 + j] for i in range(3) for j in range(3)]
        soft[:, :, 1:-1, 1:-1] = (cast(Tensor, sum(parts)) + 4 * parts[4]) / 13
    return _blend(soft, x, m)


def _levels(x: Tensor) -> Tensor:
    return (x * 255).round().long()


def _equalize(x: Tensor, m: Tensor) -> Tensor:
    levels = _levels(x).flatten(2)  # (n, c, h w)
    counts = torch.zeros((*levels.shape[:2], 256), dtype=torch.int64, device=x.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    highest = levels.amax(2, keepdim=True)
    step = (levels.shape[2] - counts.gather(2, highest)) // 255
    below = counts.cumsum(2) - counts
    table = ((step // 2 + below) // step.clamp_min(1)).clamp(0, 255)
    out = table.gather(2, levels).to(x.dtype).reshape(x.shape) / 255
    return torch.where((step == 0).unsqueeze(3), x, out)


def _posterize(x: Tensor, m: Tensor) -> Tensor:
    dropped = 4 - (m * 5).long().clamp(0, 4)  # of 8 bits, 4 to 0
    size = (2**dropped).reshape(-1, 1, 1, 1)
    return (_levels(x) // size * size).to(x.dtype) / 255


def _moved(x: Tensor, to: tuple[Tensor | float, ...]) -> Tensor:
    """Each pixel from where a matrix (a, b, e; c, d, f) about the centre takes it: (n,) or a number
    each, columns before rows.
    """
    n, _, h, w = x.shape
    a, b, e, c, d, f = (torch.as_tensor(t, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)
                        for t in to)  # fmt: skip
    down = torch.arange(h, device=x.device, dtype=x.dtype).reshape(1, -1, 1) - (h - 1) / 2
    along = torch.arange(w, device=x.device, dtype=x.dtype).reshape(1, 1, -1) - (w - 1) / 2
    column = (a * along + b * down + e + w / 2).floor().long().expand(n, h, w)
    row = (c * along + d * down + f + h / 2).floor().long().expand(n, h, w)
    there = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    at = (row.clamp(0, h - 1) * w + column.clamp(0, w - 1)).flatten(1).unsqueeze(1)
    taken = x.flatten(2).gather(2, at.expand(-1, x.shape[1], -1)).reshape(x.shape)
    return torch.where(there.unsqueeze(1), taken, 0.0)


def _signed(m: Tensor, most: float) -> Tensor:
    return (2 * m - 1) * most


def _shift(m: Tensor, pixels: int) -> Tensor:
    return _signed(m, MOVE * pixels).round()


def _rotate(x: Tensor, m: Tensor) -> Tensor:
    at = _signed(m, TENTHS).round().long() + TENTHS
    cos, sin = (torch.tensor(t, dtype=x.dtype, device=x.device)[at] for t in (_COS, _SIN))
    return _moved(x, (cos, -sin, 0.0, sin, cos, 0.0))


CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auto_contrast": _auto_contrast,
    "brightness": lambda x, m: _blend(torch.zeros_like(x), x, m),
    "color": lambda x, m: _blend(grey(x).expand_as(x), x, m),
    "contrast": _contrast,
    "equalize": _equalize,
    "identity": lambda x, m: x,
    "posterize": _posterize,
    "rotate": _rotate,
    "sharpness": _sharpness,
    "shear_x": lambda x, m: _moved(x, (1.0, _signed(m, SHEAR), 0.0, 0.0, 1.0, 0.0)),
    "shear_y": lambda x, m: _moved(x, (1.0, 0.0, 0.0, _signed(m, SHEAR), 1.0, 0.0)),
    "solarize": lambda x, m: torch.where(x < _wide(m), x, 1 - x),
    "translate_x": lambda x, m: _moved(x, (1.0, 0.0, _shift(m, x.shape[3]), 0.0, 1.0, 0.0)),
    "translate_y": lambda x, m: _moved(x, (1.0, 0.0, 0.0, 0.0, 1.0, _shift(m, x.shape[2]))),
}
"""Name -> (images (n, c, h, w), sizes (n,) in [0, 1)) -> changed images."""
