"""The contrastive loss of SCARF: a clean row against corrupted rows, in one direction.

With z the projections of clean rows and z~ those of corrupted ones, s_ij = cos(z_i, z~_j) / tau and

    L = 1/N sum_i -log[ e^(s_ii) / (1/N sum_j e^(s_ij)) ],

which is InfoNCE minus log N: the same gradients, 0 when all projections collapse into one, and
negative when rows are told apart. Gradients flow through both sides.

Source: Bahri, Jiang, Tay, Metzler, "SCARF: Self-supervised contrastive learning using random
feature corruption", ICLR 2022, arXiv:2106.15147, algorithm 1; "VFLHLP" (2024), eqs. 5-6, with the
denominator's second norm that of the corrupted row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize


def scarf_loss(z: Tensor, corrupted: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean loss of a batch by replica, (R,).

    Args:
        z: projections of clean rows (R, b, p).
        corrupted: projections of the same rows after corruption (R, b, p).
        temperature: tau > 0.
    """
    s = normalize(z, dim=-1) @ normalize(corrupted, dim=-1).transpose(1, 2) / temperature
    own = torch.diagonal(s, dim1=1, dim2=2)  # (R, b)
    return (torch.logsumexp(s, dim=2) - own).mean(1) - math.log(s.shape[2])
