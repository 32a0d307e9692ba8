"""Noise along each gradient row that gives all rows of a batch the same mean squared length.

Row g_i becomes g_i (1 + s e_i) with e_i ~ N(0, M^2 / ||g_i||^2 - 1) and M = max_j ||g_j||, one
number a row. At strength s = 1, the published form, E||row||^2 = M^2 for every row; the longest row
is unchanged. The strength scales the noise. Zero rows have no direction and stay zero, which gives
them away.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: none. Does not stop: norms, of which the squares alone are equal on average: short rows
come out 0.78 M long in the mean, and mostly shorter than M (an AUC of 0.68 for rows of at most M /
2 beside rows of M, 0.95 by a row's mean length over 30 releases); direction attacks, since noise
lies along the row (a row keeps its line, and its sign except with probability Phi(-1 / sd), 0.42 at
||g|| / M = 0.2 and 0.02 at 0.9, so the class of long rows keeps its side); completion of the
trained bottom.

Source: Li et al., "Label leakage and protection in two-party split learning", ICLR 2022,
arXiv:2102.08504, section 4.1 (max_norm).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.policy import read_batch
from vflsec.plugin import Message, Own, Policy, registry


@registry.defense
@dataclass(frozen=True)
class MaxNorm(Policy):
    """No hyper-parameters."""

    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "noise relative to the published form (1)"
    covers = frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = read_batch(self, message)  # (R, b, m)
        squared = g.square().sum(2)  # (R, b)
        ratio = squared.amax(1, keepdim=True) / torch.where(squared > 0, squared, 1.0)
        sd = (ratio - 1.0).clamp_min(0.0).sqrt() * own.column(squared)
        noise = own.rng.normal(squared.shape[1:], active=own.active)
        noisy = g * (1.0 + sd * noise).unsqueeze(2) + 0.0  # no sign on zeros
        return own.choose(noisy.reshape(message.tensor.shape), message.tensor)
