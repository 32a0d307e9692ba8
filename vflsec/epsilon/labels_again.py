"""Labels of canaries released again and again, by the hook of a policy that is called anew.

Each call is the first of a run of its own: other coins, other draws from a stream, and an empty
memory, for a policy may remember its answers over a run. The other rows keep their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vflsec.core.federation import collect_context, hide_labels
from vflsec.core.rng import Streams
from vflsec.epsilon.canaries import Planted
from vflsec.epsilon.released_labels import Ints

if TYPE_CHECKING:
    from vflsec.train.cohort import Training

MOST, FEW, LEAST = 256, 64, 16
"""Calls: at most, at most where rows are treated together, and at least."""
LABELS = 2**20
"""So many labels of one training are released at most, or in `LEAST` calls."""


def tally_released(labels: Tensor, planted: Sequence[Planted]) -> list[Ints]:
    """How often (m, 2, 3) canaries of each coin were released as what, once each, by replica.

    Args:
        labels: released ones, classes (R, N) or shares (R, N, C), of which the likelier candidate
            counts.
        planted: canaries and coins.
    """
    rows, pairs, coins = (
        torch.stack([getattr(of, k) for of in planted]) for k in ("rows", "pairs", "coins")
    )
    return list(_tally(labels, rows, pairs, coins).numpy())


def _tally(labels: Tensor, rows: Tensor, pairs: Tensor, coins: Tensor) -> Tensor:
    every = torch.arange(len(rows)).unsqueeze(1)
    seen = labels[every.to(labels.device), rows.to(labels.device)].cpu()
    alike = (seen.unsqueeze(2) == pairs).long() if seen.dim() == 2 else seen.gather(2, pairs)
    outcome = torch.where(alike[..., 0] == alike[..., 1], 2, alike.argmax(2))
    out = torch.zeros(*rows.shape, 2, 3, dtype=torch.int64)
    out[every, torch.arange(rows.shape[1]), coins, outcome] = 1
    return out


@torch.no_grad()
def ask_again(twin: Training, place: int, planted: Sequence[Planted]) -> list[Ints]:
    """What :func:`tally_released` counts over many calls of the hook of defense `place`.

    Args:
        twin: trained on the canaries.
        place: of a defense that releases labels that are classes, among its defenses.
        planted: in each replica.
    """
    stack, policy = twin.stack, twin.defenses[place]
    (own,) = [b.own for b in twin.fed.active.bindings if b.policy is policy]
    given, context = hide_labels(stack), collect_context(stack)
    draws = Streams(twin.seeds, "canary", "again", place, device=stack.device, dtype=own.rng.dtype)
    tosses = Streams(twin.seeds, "canary", "again", "coins", place)
    calls = min(MOST if policy.by_row else FEW, max(LEAST, LABELS // given.shape[1]))
    rows, pairs = (torch.stack([getattr(of, k) for of in planted]) for k in ("rows", "pairs"))
    total = torch.zeros(*rows.shape, 2, 3, dtype=torch.int64)
    for _ in range(calls):
        coins = tosses.integers(2, rows.shape[1:])
        carried = pairs.gather(2, coins.unsqueeze(2)).squeeze(2)
        y = given.scatter(1, rows.to(given.device), carried.to(given.device))
        fresh = replace(own, rng=draws, memory={}, context=dict(context), uses=None)
        total += _tally(policy.labels(y, fresh), rows, pairs, coins)
    return list(total.numpy())
