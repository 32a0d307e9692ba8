"""Laplace noise on one-hot labels, turned into class shares by Bayes' rule in every step (ALIBI).

Each label is released once as o = one-hot(y) + Laplace(2 / eps) in every coordinate, on a grid (of
2^-24, below epsilon 2 a coarser one) so that no last bit tells the label, and memoised.
In a step the target of a row is the posterior P(j | o) proportional to prior_j exp(-||o - e_j||_1 /
b), b = 2 / eps, with the model's current prediction (taken as a constant) as prior; for validation
rows the prior is uniform. Only o is computed from the label, so any number of steps is free. The
swept strength is 1 / epsilon.

Hook: labels and loss. Owner: the active party.
Guarantee: pure epsilon-label-DP for each sample. Does not stop: inference of what features predict.

Source: Malek, Mironov, Prasad, Shilov, Tramer, "Antipodes of label differential privacy: PATE and
ALIBI", NeurIPS 2021, arXiv:2106.03408, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.defenses.label_dp import Released
from vflsec.nn.loss import cross_entropy
from vflsec.plugin import Own, registry


@registry.defense
@dataclass(frozen=True)
class Alibi(Released):
    """No hyper-parameters."""

    accountant = "Laplace mechanism (L1 sensitivity 2)"
    by_row = True

    def labels(self, y: Tensor, own: Own) -> Tensor:
        """The noisy vectors (R, n, C); zeros where the label is unknown."""
        self.check_classes(y)
        hot = one_hot(y, own.classes, torch.float64)
        noise = own.rng.laplace(hot.shape[1:], active=own.active, dtype=torch.float64)
        noisy = accountants.round_to_grid(hot, noise.to(y.device), 2.0 * own.column(hot))
        out = own.choose(torch.where((y >= 0).unsqueeze(2), noisy, hot), hot)
        return out.to(own.rng.dtype)

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        if y.dim() == 2:
            return None  # classes that a model named, not what was released
        log_p = torch.log_softmax(logits.detach(), dim=-1)
        prior = log_p if own.context.get("train", True) else torch.zeros_like(log_p)
        scale = 2.0 * own.column(log_p).clamp_min(1e-12)
        target = own.choose(posterior(y.to(log_p), prior, scale), y.to(log_p))
        return cross_entropy(logits, target)


def one_hot(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Labels (R, n) as vectors (R, n, C); zeros where the label is -1."""
    hot = torch.nn.functional.one_hot(y.clamp_min(0), classes).to(dtype)
    return hot * (y >= 0).unsqueeze(2).to(dtype)


def posterior(noisy: Tensor, log_prior: Tensor, scale: Tensor) -> Tensor:
    """P(class | noisy vector), (R, b, C), for Laplace noise of `scale` and a prior in logarithms.

    ||o - e_j||_1 = sum_k |o_k| + |o_j - 1| - |o_j|, whose first part is the same for all classes.
    """
    distance = (noisy - 1).abs() - noisy.abs()
    return torch.softmax(log_prior - distance / scale, dim=-1)
