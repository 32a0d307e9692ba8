"""Attention with sharpened weights: representations of one party estimated from the other's.

    Attn_T(Q, K, V) = sharp_T(softmax(Q K' / sqrt(d))) V
    sharp_T(p)_j = p_j^(1/T) / sum_i p_i^(1/T)

row by row. Sharpening a softmax is the softmax of the scores divided by T, which is how it is
computed here; T = 1 leaves it as it is and T -> 0 picks the nearest key.

Source: Kang, Liu, Liang, "FedCVT: Semi-supervised vertical federated learning with cross-view
training", arXiv:2008.10838 (2020), and its public code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def weights(queries: Tensor, keys: Tensor, temperature: float = 1.0) -> Tensor:
    """Sharpened attention weights (R, q, k) of queries (R, q, d) on keys (R, k, d)."""
    scores = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[2])
    return torch.softmax(scores / temperature, dim=2)


def attend(queries: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    """Weighted means (R, q, v) of values (R, k, v); every row lies in their convex hull."""
    return weights(queries, keys, temperature) @ values
