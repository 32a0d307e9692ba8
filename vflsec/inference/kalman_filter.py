"""Vectors of rows, learned from sums over batches: a Kalman filter that forgets covariances.

Each row i has a vector x_i with mean m_i and variance v_i in every entry, independent of others.
A batch says J = A^T (x + e) + n, with e_i ~ N(0, r) of its rows and n ~ N(0, s) of its equations.
With W = diag(v + r), G = A A^T and K = W^1/2 G W^1/2 + s, what is then known is
    m' = m + v W^-1/2 K^-1 W^1/2 A (J - A^T m),
    v' = v - v^2 (1 - s diag K^-1) / (v + r),
so what is told often becomes sure, and a batch counts the less the louder it is. r is what makes
|J - A^T m|^2 as large as expected.

Source: Kalman, "A new approach to linear filtering and prediction problems", J. Basic Engineering
1960. Keeping the diagonal alone, and r from one batch, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.nn.rows import sums

QUIET = 1e-4  # least r, as a share of the variance before anything is known
JITTER = 1e-10


@dataclass(frozen=True)
class Rows:
    """What is known of the vectors of rows: `mean` (n, k) and `variance` (n,); both are written."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def unknown(cls, n: int, k: int, variance: float, like: Tensor) -> Rows:
        """Of mean zero and this variance, with the dtype and device of `like`."""
        return cls(like.new_zeros(n, k), like.new_full((n,), variance))

    def see(
        self, at: Tensor, gram: Tensor, right: Tensor, size: float, equations: int, *,
        prior: float, noise: float | None = None,
    ) -> None:  # fmt: skip
        """Learn from a batch.

        Args:
            at: (b,) places of its rows; a row that stands there twice gets the mean.
            gram, right: G (b k, b k) and A J (b k,).
            size: |J|^2.
            equations: length of J.
            prior: variance before anything is known.
            noise: s, if known; else that of rows whose vectors have one entry more, which no
                equation of A is about.
        """
        k = self.mean.shape[1]
        scale = float(gram.diagonal().mean())
        if not scale > 0:
            return
        m, v = self.mean[at].flatten(), self.variance[at].repeat_interleave(k)
        off = size - 2 * float(m @ right) + float(m @ gram @ m)
        expected = float(gram.diagonal() @ v)
        r = max((off - expected) / (scale * len(gram) * (1 + 1 / k)), QUIET * prior)
        s = r * scale * len(gram) / (k * equations) if noise is None else noise
        root = (v + r).sqrt()
        inner = root.unsqueeze(1) * gram * root
        s = max(s, JITTER * float(inner.diagonal().mean()))
        inner.diagonal().add_(s)
        factor = torch.linalg.cholesky(inner)
        told = root * (right - gram @ m)
        m = m + v / root * torch.cholesky_solve(told.unsqueeze(1), factor).squeeze(1)
        left = s * torch.cholesky_inverse(factor).diagonal()
        v = v * (1 - v / (v + r) * (1 - left)).clamp_min(1e-12)
        self._write(at, m.reshape(-1, k), v.reshape(-1, k).mean(1))

    def _write(self, at: Tensor, mean: Tensor, variance: Tensor) -> None:
        rows, place = at.unique(return_inverse=True)
        count = torch.bincount(place).to(mean)
        self.mean[rows] = sums(mean, place, len(rows)) / count.unsqueeze(1)
        self.variance[rows] = sums(variance, place, len(rows)) / count
