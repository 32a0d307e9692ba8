"""The factor that received gradients may carry, told from their size.

Where logits vary by 1 over the rows, a gradient by the embedding is about |p - y| / s_z long, with
s_z the spread of an embedding's entries. Source: this package's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

USUAL = 0.03
"""The size of gradients without a factor, in the middle (0.07 to 0.12 in small trainings)."""
AROUND = 30.0
"""How far from that, either way, replays were seen to find labels without a factor."""


def factors(z: Tensor, g: Tensor, prior: Tensor) -> tuple[float, ...]:
    """The factors to try received gradients with: 1, and where it is not usual that of their size.

    Args:
        z, g: embeddings and gradients (n, d).
        prior: class shares (C,).
    """
    spread = z.double().var(0, correction=0).mean().sqrt()
    wrong = (1 - prior.double().square().sum()).clamp_min(1e-6).sqrt()
    length = torch.linalg.vector_norm(g.double(), dim=1).mean()
    size = float(length * spread / wrong) / USUAL
    return (1.0,) if size == 0 or 1 / AROUND < size < AROUND else (1.0, size)
