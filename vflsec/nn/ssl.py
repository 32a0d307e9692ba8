"""Parts of self-supervised learning on the replica axis: similarity losses, heads, EMA, queues.

Every loss takes (R, b, D) tensors and gives one number for each replica, (R,); the second argument
is always a constant (its gradient is stopped here, so a caller cannot forget it).

Sources: Chen, He, "Exploring simple siamese representation learning", CVPR 2021 (SimSiam); Grill et
al., "Bootstrap your own latent", NeurIPS 2020 (BYOL); He, Fan, Wu, Xie, Girshick, "Momentum
contrast", CVPR 2020 (MoCo); Chen, Kornblith, Norouzi, Hinton, "A simple framework for contrastive
learning", ICML 2020 (NT-Xent); He, Kang et al., arXiv:2208.08934 (2022), eqs. 1-2, table II.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vflsec.core.rng import Streams
from vflsec.nn.replicas import Replicas


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """-cos(p, sg(z)), mean over the batch, (R,) in [-1, 1]: SimSiam, and BYOL as it is coded.

    Args:
        p: predictions (R, b, D).
        z: targets (R, b, D), held constant.
    """
    return -(normalize(p, dim=-1) * normalize(z.detach(), dim=-1)).sum(-1).mean(1)


def byol_distance(p: Tensor, z: Tensor) -> Tensor:
    """||p/||p|| - sg(z)/||z|| ||^2, mean over the batch, (R,): BYOL as printed.

    Equal to 2 + 2 x :func:`negative_cosine`, so its gradient is twice as large.
    """
    return (normalize(p, dim=-1) - normalize(z.detach(), dim=-1)).square().sum(-1).mean(1)


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, temperature: float = 0.5) -> Tensor:
    """Cross entropy of telling the key k_i of query q_i from the negatives, batch mean, (R,).

    Everything is L2-normalised here. With no negatives the loss is exactly 0.

    Args:
        q: queries (R, b, D).
        k: positive keys (R, b, D), held constant.
        negatives: (R, n, D), held constant; n may be 0.
        temperature: divides the cosines.
    """
    q, k = normalize(q, dim=-1), normalize(k.detach(), dim=-1)
    positive = (q * k).sum(-1, keepdim=True)  # (R, b, 1)
    others = q @ normalize(negatives.detach(), dim=-1).transpose(1, 2)  # (R, b, n)
    logits = torch.cat([positive, others], dim=-1) / temperature
    return -torch.log_softmax(logits, dim=-1)[..., 0].mean(1)


def nt_xent(own: Tensor, other: Tensor, temperature: float = 0.5) -> Tensor:
    """Normalised cross entropy over the 2b vectors of a batch and its partners, (R,).

    Each vector's positive is its partner; the other 2b - 2 are negatives; mean over both halves.

    Args:
        own: (R, b, D).
        other: partners (R, b, D), held constant.
        temperature: divides the cosines.
    """
    b = own.shape[1]
    both = torch.cat([normalize(own, dim=-1), normalize(other.detach(), dim=-1)], dim=1)
    sim = both @ both.transpose(1, 2) / temperature  # (R, 2b, 2b)
    itself = torch.eye(2 * b, dtype=torch.bool, device=own.device)
    sim = sim.masked_fill(itself, -torch.inf)
    partner = torch.arange(2 * b, device=own.device).roll(b)
    log_p = torch.log_softmax(sim, dim=-1)
    return -log_p[:, torch.arange(2 * b, device=own.device), partner].mean(1)


@torch.no_grad()
def ema(target: Replicas, online: Replicas, momentum: float) -> None:
    """target <- momentum x target + (1 - momentum) x online, parameters only, in place.

    Buffers of normalisation layers are not averaged: target towers stay in train mode and use the
    statistics of their own batch.
    """
    for name, t in target.params.items():
        t.mul_(momentum).add_(online.params[name].detach(), alpha=1 - momentum)


class Queue:
    """The last `size` keys of every replica, first in first out.

    It starts with normalised Gaussian noise. A batch is enqueued after it was used, so it is never
    its own negative.

    Args:
        size: number of keys, a multiple of the batch.
        width: D.
        rng: streams for the initial keys.

    Attributes:
        keys: (R, size, D).
    """

    def __init__(self, size: int, width: int, rng: Streams) -> None:
        self.keys = normalize(rng.normal((size, width)), dim=-1)
        self.at = 0

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Replace the oldest keys by these, (R, b, D); they are normalised first."""
        b = keys.shape[1]
        where = (self.at + torch.arange(b, device=keys.device)) % self.keys.shape[1]
        self.keys[:, where] = normalize(keys.detach(), dim=-1)
        self.at = (self.at + b) % self.keys.shape[1]


def projector(inputs: int, hidden: int, out: int) -> nn.Sequential:
    """Three linear layers with batch normalisation, ReLU after the first two.

    Paper: [512, 512, 512], or [512, 512, 128] with MoCo: 790,016 and 592,256 parameters.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, out), nn.BatchNorm1d(out),
    )  # fmt: skip


def predictor(width: int, hidden: int) -> nn.Sequential:
    """Two linear layers, width -> hidden -> width; paper 512 -> 128 -> 512: 131,840 parameters."""
    return nn.Sequential(
        nn.Linear(width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, width),
    )  # fmt: skip
