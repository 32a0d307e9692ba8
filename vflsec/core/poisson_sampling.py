"""Poisson batches: every row comes into every batch by a coin of its own, for DP-SGD's accountants.

Source: Abadi et al., "Deep learning with differential privacy", CCS 2016, arXiv:1607.00133; batches
of one width that are cut: Chua et al., "Scalable DP-SGD: shuffling vs. Poisson subsampling",
NeurIPS 2024, arXiv:2411.04205.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from vflsec.core.party import Party
from vflsec.core.policy_binding import Binding
from vflsec.core.rng import Streams
from vflsec.errors import PolicyError

CUT = 1e-15


def find_sampled_policies(parties: Iterable[Party]) -> list[Binding]:
    """The policies that ask for Poisson batches; none or one of every party that trains.

    Raises:
        PolicyError: some parties that train have none.
    """
    parties = list(parties)
    found = [b for p in parties for b in p.bindings if b.policy.poisson and any(b.own.active)]
    if found:
        there = {b.own.party for b in found}
        bare = [p.name for p in parties if p.modules and p.parameters() and p.name not in there]
        if bare:
            what, remedy = found[0].policy.name, 'Set party = "all", or accountant = "shuffled".'
            got = f"{', '.join(bare)} without"
            raise PolicyError.must(f"{what}: Poisson batches", "be at every party", got, remedy)
    return found


def draw_batches(
    rows: Tensor,
    shuffled: Sequence[Tensor],
    bound: Sequence[Binding],
    coins: Streams,
    phase: str,
    epoch: int,
) -> Iterator[Tensor]:
    """The batches of one epoch, (R, w) sample ids each.

    All have one width w that hardly ever is too small; ``own.sample`` of the policies says which
    rows were drawn, the others only fill. Replicas whose policies are off keep their shuffled
    batches, filled up.

    Args:
        rows: sample ids (R, n) to draw from.
        shuffled: the batches (R, b) of an epoch without sampling; the first gives the size drawn on
            average.
        bound: of :func:`find_sampled_policies`.
        coins: a stream of this walk.
        phase, epoch: under which policies count.
    """
    n, size = rows.shape[1], shuffled[0].shape[1]
    rate = size / n
    from scipy import stats

    width = min(n, int(stats.binom.isf(CUT, n, rate)) + 1)
    cut = float(stats.binom.sf(width, n, rate))
    on = (bound[0].own.strength > 0).to(rows.device).unsqueeze(1)
    place = torch.arange(width, device=rows.device).unsqueeze(0)
    for batch in shuffled:
        drawn = (coins.uniform((n,)) < rate).to(rows.device)
        count = drawn.sum(1, keepdim=True).clamp(max=width)
        first = drawn.long().argsort(dim=1, descending=True, stable=True)
        order = first.gather(1, torch.minimum(place, (count - 1).clamp_min(0)))
        filled = batch[:, place[0].clamp(max=batch.shape[1] - 1)]
        mask = place < torch.where(on, count, batch.shape[1])
        for b in bound:
            b.own.sample = (mask, size)
            if b.own.uses is not None:
                b.own.uses.sampled(phase, epoch, rate, cut)
        yield torch.where(on, rows.gather(1, order), filled)
    for b in bound:
        b.own.sample = None
        if b.own.uses is not None:
            b.own.uses.drawn_all()
