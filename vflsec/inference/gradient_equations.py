"""The gradient of own parameters as equations for the gradients of a batch's rows.

At fixed weights J = sum_i (dz_i/dtheta)^T g_i, with z_i = f(x_i): linear in the rows g_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from vflsec.core.view import Update
from vflsec.errors import ThreatModelError

ITERATIONS = 20
CUTOFF = 1e-10
"""Eigenvalues below this share of the largest count as zero: their directions are undetermined."""


@dataclass(frozen=True)
class System:
    """J = A g for one batch, by its normal equations, over gradient rows that add up to zero.

    Attributes:
        gram: A^T A, (b (C-1), b (C-1)).
        right: A^T J, (b (C-1),).
        basis: (C, C-1) orthonormal, of the vectors that add up to zero.
        logits: own z (b, C).
        size: squared length of J.
        equations: length of J.
    """

    gram: Tensor
    right: Tensor
    basis: Tensor
    logits: Tensor
    size: float
    equations: int

    @cached_property
    def factor(self) -> Tensor | None:
        """Cholesky factor of the Gram matrix; None if that is singular, within CUTOFF.

        Its extreme eigenvalues are found by iteration, which takes a small part of the time of an
        eigendecomposition.
        """
        if self.equations < len(self.gram):
            return None
        factor, failed = torch.linalg.cholesky_ex(self.gram)
        if int(failed):
            return None
        n = len(self.gram)
        start = torch.cos(torch.arange(n, dtype=self.gram.dtype, device=self.gram.device))
        large = small = start / start.norm()
        for _ in range(ITERATIONS):
            large = self.gram @ large
            large = large / large.norm()
            small = torch.cholesky_solve(small.unsqueeze(1), factor).squeeze(1)
            small = small / small.norm()
        least, most = (float(v @ (self.gram @ v)) for v in (small, large))
        return factor if least > CUTOFF * most else None

    @property
    def determined(self) -> bool:
        """True if every row is determined."""
        return self.factor is not None

    def solve(self) -> Tensor:
        """The least-squares gradient rows of smallest norm, (b, C)."""
        if self.factor is not None:
            flat = torch.cholesky_solve(self.right.unsqueeze(1), self.factor).squeeze(1)
        else:
            values, vectors = torch.linalg.eigh(self.gram)
            use = values > CUTOFF * values[-1]
            inverse = torch.where(use, 1 / values, torch.zeros_like(values))
            flat = vectors @ (inverse * (vectors.T @ self.right))
        return flat.reshape(len(self.logits), -1) @ self.basis.T

    @property
    def noise(self) -> float | None:
        """Variance of an equation by what the solution leaves, where that is determined."""
        if self.factor is None:
            return None
        left = max(float(self.misfit(self.solve())), 0.0) * self.size
        return left / max(self.equations - len(self.gram), 1)

    def scaled(self, rows: float, factor: float) -> System:
        """J / factor = (A / rows) (rows g): the same equations for rows times g."""
        return replace(
            self, gram=self.gram / rows**2, right=self.right / (rows * factor),
            size=self.size / factor**2,
        )  # fmt: skip

    def misfit(self, g: Tensor) -> Tensor:
        """||A g - J||^2 / ||J||^2 of gradient rows (..., b, C) that add up to zero."""
        flat = (g @ self.basis).flatten(-2)
        value = ((flat @ self.gram) * flat).sum(-1) - 2 * flat @ self.right + self.size
        return value / max(self.size, 1e-300)

    @property
    def factor_seen(self) -> float:
        """||J|| over its root mean square for even labels and p = softmax of the own logits."""
        b, classes = self.logits.shape
        mean = ((torch.softmax(self.logits, dim=-1) - 1 / classes) @ self.basis).flatten()
        even = float(mean @ self.gram @ mean + self.gram.trace() / classes) / b**2
        return math.sqrt(self.size / max(even, 1e-300))

    def angle(self, g: Tensor) -> Tensor:
        """1 - the cosine of the angle between A g and J, of rows (..., b, C) that add up to 0."""
        flat = (g @ self.basis).flatten(-2)
        square = ((flat @ self.gram) * flat).sum(-1).clamp_min(1e-300)
        return 1 - (flat @ self.right) / (square * max(self.size, 1e-300)).sqrt()


def linear_system(modules: Mapping[str, nn.Module], columns: Tensor, update: Update) -> System:
    """The equations that one recorded step gives.

    Args:
        modules: own modules; ``bottom`` must be what maps columns to logits.
        columns: own rows by sample id.
        update: the recorded step, with weights before it.
    """
    if "bottom" not in modules:
        raise ThreatModelError("batch_inference needs a model of its own to differentiate.")
    module = modules["bottom"]
    names = [k for k in update.gradients if k.startswith("bottom.")]
    weights = {k.removeprefix("bottom."): update.weights[k].double() for k in names}
    fixed = {
        k: v.double() if v.is_floating_point() else v
        for k, v in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items()
        if k not in weights
    }
    x = columns[update.rows].double()

    def entry(theta: dict[str, Tensor], row: Tensor, direction: Tensor) -> Tensor:
        return (
            functional_call(module, {**fixed, **theta}, (row.unsqueeze(0),))[0] * direction
        ).sum()

    with torch.no_grad():
        logits = functional_call(module, {**fixed, **weights}, (x,))
    basis = zero_sum_basis(logits.shape[1]).to(logits)
    each = vmap(vmap(grad(entry), (None, None, 0)), (None, 0, None))(weights, x, basis.T)
    a = torch.cat([v.detach().flatten(2) for v in each.values()], dim=2).flatten(0, 1)
    j = torch.cat([update.gradients[f"bottom.{k}"].double().flatten() for k in each])
    return System(a @ a.T, a @ j, basis, logits, float(j @ j), len(j))


def zero_sum_basis(classes: int) -> Tensor:
    """(C, C-1) orthonormal columns that add up to zero (Helmert)."""
    q = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for k in range(1, classes):
        q[:k, k - 1] = 1.0
        q[k, k - 1] = -k
        q[:, k - 1] /= (k * (k + 1)) ** 0.5
    return q
