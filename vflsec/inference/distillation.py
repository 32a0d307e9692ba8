"""Losses by which a model of one party's columns learns from a teacher that saw two parties'.

All take and give stacked tensors: representations (R, n, d), logits (R, n), labels (R, n) in
{0, 1}; every loss is (R,).

Source: Li, Yao, Liu, "Vertical semi-federated learning for efficient online advertising",
arXiv:2209.15635 (2022), equations 3 to 5 (CME family), 8 (CSI), 12 to 14 (PRC). The printed bCME
subtracts the identity from a matrix whose target is zero; here its off-diagonal part is meant, as
in dCME.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-12


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Mean over rows of KL[softmax(p) || softmax(q)], logits (R, n, C)."""
    log_p, log_q = torch.log_softmax(p, dim=-1), torch.log_softmax(q, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)


def _unit(h: Tensor) -> Tensor:
    return torch.nn.functional.normalize(h, dim=-1)


def cross_matrix(student: Tensor, teacher: Tensor) -> Tensor:
    """C = S T' - T T' (R, n, n) of length-normalised rows; no gradient into the teacher."""
    s, t = _unit(student), _unit(teacher).detach()
    return s @ t.transpose(1, 2) - t @ t.transpose(1, 2)


def imitation(student: Tensor, teacher: Tensor, labels: Tensor, form: str = "dcme") -> Tensor:
    """How far a student's representations are from a teacher's, seen from all rows of a batch.

    ``cme``: mean of C's squares. ``bcme``: mean square of the diagonal plus that of the rest.
    ``dcme``: the same, but rows averaged within each class first; a class that is absent counts 0.

    Args:
        student, teacher: (R, n, d), n >= 2.
        labels: (R, n), used by ``dcme``.
        form: ``cme``, ``bcme`` or ``dcme``.
    """
    c2 = cross_matrix(student, teacher).square()
    n = c2.shape[1]
    if form == "cme":
        return c2.flatten(1).sum(1) / n**2
    diagonal = c2.diagonal(dim1=1, dim2=2)
    rest = c2.sum(2) - diagonal
    by_row = diagonal + rest / max(1, n - 1)  # (R, n)
    if form == "bcme":
        return by_row.mean(1)
    total = torch.zeros_like(by_row[:, 0])
    for value in (0, 1):
        here = (labels == value).to(by_row)
        total = total + (by_row * here).sum(1) / here.sum(1).clamp_min(1)
    return total


def csi(
    own: Tensor,
    own_keys: Tensor,
    imitated: Tensor,
    keys: Tensor,
    tau: float,
    reduction: str = "sum",
) -> Tensor:
    """Consistency of similarities: the squared Frobenius norm of the difference of two (m, n)
    matrices of softmax(similarity / tau).

    Args:
        own: U_A of the teacher, unaligned rows (R, m, d_A).
        own_keys: H_A of the teacher, aligned rows (R, n, d_A).
        imitated: U_B of the student, unaligned rows (R, m, d_B); the only one with a gradient.
        keys: H_B of the teacher, aligned rows (R, n, d_B).
        tau: temperature > 0. A softmax over n keys moves by about 1 / (n tau) as a similarity does,
            so a high one leaves next to nothing.
        reduction: over the m rows, ``sum`` as printed or ``mean``.
    """
    target = _unit(own).detach() @ _unit(own_keys).detach().transpose(1, 2)
    found = _unit(imitated) @ _unit(keys).detach().transpose(1, 2)
    gap = torch.softmax(target / tau, dim=-1) - torch.softmax(found / tau, dim=-1)
    by_row = gap.square().sum(2)
    return by_row.sum(1) if reduction == "sum" else by_row.mean(1)


def order_matrix(logits: Tensor) -> Tensor:
    """R_ij = sigma(y_i - y_j), (R, n, n), from logits (R, n)."""
    return torch.sigmoid(logits.unsqueeze(2) - logits.unsqueeze(1))


def prc(learner: Tensor, guide: Tensor, labels: Tensor, *, normalised: bool = True) -> Tensor:
    """Pairwise ranking consistency: the learner follows the guide's order within each class and
    puts positives before negatives.

    |R_L - R_G| / |R_G| over pairs of positives, plus the same over pairs of negatives, minus |R_L|
    over pairs (positive, negative), Frobenius norms; no gradient into the guide. With
    `normalised` the last term is divided by sqrt(positives x negatives), which the paper does not.

    Args:
        learner, guide: logits (R, n).
        labels: (R, n) in {0, 1}.
    """
    mine, theirs = order_matrix(learner), order_matrix(guide).detach()
    total = torch.zeros_like(mine[:, 0, 0])
    sides = [(labels == v).to(mine) for v in (0, 1)]
    for side in sides:
        block = side.unsqueeze(2) * side.unsqueeze(1)
        gap = torch.linalg.vector_norm((block * (mine - theirs)).flatten(1), dim=1)
        size = torch.linalg.vector_norm((block * theirs).flatten(1), dim=1)
        total = total + gap / size.clamp_min(TINY)
    pairs = sides[1].unsqueeze(2) * sides[0].unsqueeze(1)
    apart = torch.linalg.vector_norm((pairs * mine).flatten(1), dim=1)
    if normalised:
        apart = apart / (sides[0].sum(1) * sides[1].sum(1)).sqrt().clamp_min(1)
    return total - apart
