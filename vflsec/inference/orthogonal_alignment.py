"""Which rotation lays one sample over another, when nobody says which row belongs to which."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

STARTS = 8
ROWS = 256  # by which all starts are compared
MOST = 1000  # by which the best of them is chosen and turned on
PLANES = 60  # in which one sweep turns at most
GAIN = 0.999


def rotate_nearest(
    near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], turn: Tensor, rng: torch.Generator
) -> Tensor:
    """The rotation, with or without a mirror, that brings a sample nearest to another.

    Near by energy distance (Szekely, Rizzo, "Energy statistics", J. Stat. Plan. Inference 143,
    2013), of which rotations change  E|a Q - b|  only. From `turn` and from rotations drawn at
    random, plane after plane is turned, in sixteenths of a circle and mirrored, to where this is
    least; then the best of them in smaller steps.

    Args:
        near: sample to be rotated (q, k), and numbers beside it (q, c) that are not.
        far: the other sample (n, k), (n, c).
        turn: (k, k); stays unless another is nearer by a thousandth.
        rng: draws rows, starts and the order of planes.

    Returns:
        Q (k, k).
    """
    k = len(turn)
    drawn = torch.linalg.qr(torch.randn(STARTS - 1, k, k, generator=rng)).Q
    tried = torch.cat([turn.unsqueeze(0), drawn.to(turn)])
    few, many = (_apart(_some(near, n, rng), _some(far, n, rng)) for n in (ROWS, MOST))
    wide, fine = _moves(turn)
    if k == 1:
        tried = torch.stack([turn, -turn])
    for _ in range(3):
        tried = _sweep(tried, wide, few, rng)
    best = tried[int(torch.stack([many(q) for q in tried]).argmin())].unsqueeze(0)
    for _ in range(2):
        best = _sweep(best, fine, many, rng)
    return best[0] if float(many(best[0])) < GAIN * float(many(turn)) else turn


def _some(of: tuple[Tensor, Tensor], most: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    at = torch.randperm(len(of[0]), generator=rng)[:most].to(of[0].device)
    return of[0][at], of[1][at]


def _apart(
    near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor]
) -> Callable[[Tensor], Tensor]:  # fmt: skip
    """Mean distance of two samples as a function of the rotations (..., k, k) of the first."""
    (a, own), (b, other) = near, far
    fixed = torch.cdist(own, other).square() + a.square().sum(1, keepdim=True) + b.square().sum(1)

    def distance(q: Tensor) -> Tensor:
        return torch.sub(fixed, a @ q @ b.T, alpha=2).clamp_min_(0).sqrt_().mean((-1, -2))

    return distance


def _sweep(
    q: Tensor, moves: Tensor, distance: Callable[[Tensor], Tensor], rng: torch.Generator
) -> Tensor:
    """Rotations (s, k, k) after the best of `moves` (m, 2, 2) in one plane after the other."""
    planes = torch.combinations(torch.arange(q.shape[1]))
    for i in torch.randperm(len(planes), generator=rng)[:PLANES].tolist():
        at = planes[i].to(q.device)
        there = q.unsqueeze(1).repeat(1, len(moves), 1, 1)
        there[..., at] = q[..., at].unsqueeze(1) @ moves
        best = torch.stack([distance(of).argmin() for of in there])
        q = there[torch.arange(len(q)), best]
    return q


def _moves(like: Tensor) -> tuple[Tensor, Tensor]:
    """Turns of a plane with and without a mirror (32, 2, 2), and small turns (9, 2, 2)."""
    wide = [2 * math.pi * i / 16 for i in range(16)]
    fine = [0.0, 0.05, -0.05, 0.1, -0.1, 0.2, -0.2, 0.4, -0.4]
    plain, small = (
        torch.tensor([[[math.cos(t), math.sin(t)], [-math.sin(t), math.cos(t)]] for t in of])
        for of in (wide, fine)
    )
    mirrored = plain @ torch.diag(torch.tensor([1.0, -1.0]))
    return torch.cat([plain, mirrored]).to(like), small.to(like)
