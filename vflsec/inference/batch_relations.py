"""How rows of one batch stand to each other, added over batches: what each batch is turned by.

A sign, a factor or a rotation that is drawn once for a batch leaves the angles between its rows as
they were. With h_it the message of row i in batch t, less the mean of that batch, at length 1,
    S_ij = sum over the batches t of both of <h_it, h_jt>, by visits of i ,
and rows of one class stand together in the leading eigenvectors of S, found by orthogonal
iteration without making S. Batches of the same rows every time tell nothing of other batches, so
that the vectors would tell rows of a batch with known rows alone, and by them look good.

Source: signs and rotations from products of pairs: Singer, "Angular synchronization by eigenvectors
and semidefinite programming", Applied and Computational Harmonic Analysis 2011; orthogonal
iteration: Golub and Van Loan, "Matrix computations", section 7.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vflsec.nn.rows import sums

KEPT = 4
"""Eigenvectors that are given; with as many more the iteration is soon done."""
STEPS = 20
MOST = 1 << 22
"""Numbers of messages that are read: of more, epochs evenly spread, but at least LEAST."""
LEAST = 4
ALIKE = 1e-9  # of a message's length, below which it is that of its whole batch


def find_leading(g: Tensor, place: Tensor, epoch: Tensor, step: Tensor) -> Tensor | None:
    """The leading eigenvectors (n, 4) of S, fewer of fewer rows; None where batches hardly change.

    Args:
        g: messages (v, m), finite.
        place: of which of the n rows each is, (v,) int64; every row has one.
        epoch, step: when each came, (v,) int64.
    """
    n, read = int(place.max()) + 1, _spread(g, epoch)
    if not _mixed(place[read], epoch[read], step[read]):
        return None
    h, at = _laid_out(g, place, step, read, n)
    every = at.flatten()
    visits = torch.bincount(every, minlength=n + 1)[:n].clamp_min(1).to(h).unsqueeze(1)
    width = min(2 * KEPT, n)
    turn = torch.arange(1, n + 1, device=g.device, dtype=torch.float64).unsqueeze(1)
    found = torch.sin(turn * torch.arange(1, width + 1, device=g.device) * 12.9898).to(h)
    small = torch.eye(width).to(h)
    for _ in range(STEPS):
        found = torch.linalg.qr(found).Q
        there = torch.cat([found, found.new_zeros(1, width)]).index_select(0, every)
        told = h @ (h.transpose(1, 2) @ there.unflatten(0, at.shape))  # (batches, b, width)
        made = sums(told.flatten(0, 1), every, n + 1)[:n] / visits
        small, found = found.T @ made, made
    vectors = torch.linalg.eigh((small + small.T) / 2).eigenvectors  # smallest first
    leading = (found @ vectors.flip(1)[:, :KEPT]).double()
    ahead = torch.sin(turn * 12.9898).T @ leading  # either sign is an eigenvector: one is taken
    return torch.where(ahead < 0, -leading, leading)


def _spread(g: Tensor, epoch: Tensor) -> Tensor:
    """Which messages (v,) are read."""
    epochs = epoch.unique()
    many = max(LEAST, MOST * len(epochs) // max(g.numel(), 1))
    if many >= len(epochs):
        return torch.ones_like(epoch, dtype=torch.bool)
    at = torch.linspace(0, len(epochs) - 1, many, device=epoch.device).round().long()
    return torch.isin(epoch, epochs[at])


def _mixed(place: Tensor, epoch: Tensor, step: Tensor) -> bool:
    """Whether pairs of rows of one batch part from one epoch to the next, nearly as by chance.

    Of fixed batches whose borders move, half of the pairs stay together; one batch of all rows has
    none to part.
    """
    kept, pairs, likely = 0.0, 0.0, 0.0
    before: tuple[Tensor, Tensor] | None = None
    epochs = epoch.unique()
    for e in epochs:
        of = epoch == e
        held, batch = place[of], step[of]
        order = torch.argsort(held, stable=True)
        held, batch = held[order], batch[order]
        if before is None and len(epochs) == 1:
            before = held, batch
        if before is not None:
            mine = torch.isin(held, before[0])
            at = torch.searchsorted(before[0], held[mine])
            was, now = (x.unique(return_inverse=True)[1] for x in (before[1][at], batch[mine]))
            many = torch.bincount(now)
            kept += _pairs(torch.bincount(was * len(many) + now))
            pairs += _pairs(many)
            likely += _pairs(many) ** 2 / max(_pairs(many.sum()), 1.0)
        before = held, batch
    return kept <= likely + (pairs - likely) / 4


def _pairs(many: Tensor) -> float:
    return float((many.double() * (many - 1)).sum())


def _laid_out(
    g: Tensor, place: Tensor, step: Tensor, read: Tensor, n: int
) -> tuple[Tensor, Tensor]:
    """Centred unit messages by batch (batches, b, m), float32, and their rows; n where none is."""
    chosen = read.nonzero().squeeze(1)
    chosen = chosen[torch.argsort(place[chosen], stable=True)]
    chosen = chosen[torch.argsort(step[chosen], stable=True)]
    batch, many = step[chosen].unique_consecutive(return_inverse=True, return_counts=True)[1:]
    within = torch.arange(len(chosen), device=g.device) - (many.cumsum(0) - many)[batch]
    x = g.index_select(0, chosen).double()
    mean = sums(x, batch, len(many)) / many.unsqueeze(1)
    size = x.norm(dim=1)
    left = x.sub_(mean.index_select(0, batch))
    length = left.norm(dim=1)
    alike = length <= ALIKE * size
    left[alike], length[alike] = 0.0, 0.0  # rounding is no direction
    x = left.div_(length.clamp_min_(1e-300).unsqueeze(1)).float()
    h = x.new_zeros(len(many), int(many.max()), x.shape[1])
    at = torch.full(h.shape[:2], n, device=g.device)
    h[batch, within], at[batch, within] = x, place[chosen]
    return h, at
