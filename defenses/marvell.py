"""Gaussian noise shaped to hide one batch's labels in its gradients at the least power (Marvell).

The rows of a batch of two classes are taken as Gaussians with means D apart (g = ||D||^2) and mean
coordinate variances u (negatives) and v (positives) in d dimensions. Noise with covariance of
eigenvalue lam1 along D and lam2 across it, of its own for each class, minimises

    sumKL = 1/2 [ (d-1) (lam20 + u)/(lam21 + v) + (d-1) (lam21 + v)/(lam20 + u)
                  + (lam10 + u + g)/(lam11 + v) + (lam11 + v + g)/(lam10 + u) ] - d

under a budget p lam11 + p (d-1) lam21 + (1-p) lam10 + (1-p) (d-1) lam20 = P with lam1 >= lam2 >= 0
(index 1 for positives, with share p). In power mode P = strength x g; in sumKL mode the least power
is found at which sumKL <= 1 / strength. Any detector of one noised row then has a balanced error of
at least 1/2 - sqrt(sumKL) / 4 if the Gaussian picture holds.

A batch of one class has no D; it gets isotropic noise of the same strength relative to its longest
row, E||e||^2 = strength x max ||g_i||^2. (The published code sends such a batch as it is.)

Hook: outgoing, on gradients. Owner: the active party. Two classes only.
Guarantee: none. The bound assumes Gaussian classes and the batch's own estimates, and holds for one
release. Does not stop: adding up a row's releases over epochs, spectral or similarity attacks on
accumulated gradients or on embeddings, completion of the trained bottom.

Source: Li, Sun, Yang, Yang, Xu, Lu, Zhou, "Label leakage and protection in two-party split
learning", ICLR 2022, arXiv:2102.08504, theorem 1 and section 4.2. The solver is our own: for a
given lam2 the best lam1 of both classes is known in closed form, which leaves a convex search in
one bounded variable; everything is divided by the largest of g, u and v first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vflsec.core.policy import read_batch
from vflsec.errors import ConfigError
from vflsec.plugin import Message, Own, Policy, check, registry

GOLDEN = (math.sqrt(5) - 1) / 2
Numbers = float | Tensor


@dataclass(frozen=True)
class Solution:
    """Noise variances along (1) and across (2) the mean difference, for class 0 and class 1.

    Attributes:
        lam10, lam20, lam11, lam21: variances of negatives (0) and positives (1).
        sum_kl: symmetrised divergence of the two noised classes.

    Floats for numbers, float64 tensors for tensors.
    """

    lam10: Numbers
    lam20: Numbers
    lam11: Numbers
    lam21: Numbers
    sum_kl: Numbers


def solve(u: Numbers, v: Numbers, d: int, g: Numbers, p: Numbers, power: Numbers) -> Solution:
    """The least sumKL at a power budget; numbers, or tensors of one shape.

    Args:
        u, v: mean coordinate variance of negatives and positives, >= 0.
        d: dimension, >= 1.
        g: squared distance of the class means, > 0.
        p: share of positives, in (0, 1).
        power: budget P >= 0, in the units of g.

    Raises:
        ConfigError: a number outside its range.
    """
    check.integer("marvell.solve: d", d)
    given = {"u": u, "v": v, "g": g, "p": p, "power": power}
    plain = not any(isinstance(x, Tensor) for x in given.values())
    t = {k: torch.as_tensor(x, dtype=torch.float64) for k, x in given.items()}
    for name, strict in (("u", False), ("v", False), ("g", True), ("p", True), ("power", False)):
        x = t[name]
        ok = torch.isfinite(x) & ((x > 0) if strict else (x >= 0)) & ((x < 1) | (name != "p"))
        if not bool(ok.all()):
            rule = "in (0, 1)" if name == "p" else f"finite and {'>' if strict else '>='} 0"
            raise check.fail(f"marvell.solve: {name}", rule, given[name])
    same: Any = torch.broadcast_tensors(*(t[k] for k in given))
    u_, v_, g_, p_, power_ = same
    unit = torch.maximum(g_, torch.maximum(u_, v_))
    swap = u_ > v_  # the class with the larger variance gets no noise across; call it class 1
    low, high = torch.where(swap, v_, u_) / unit, torch.where(swap, u_, v_) / unit
    share = torch.where(swap, 1 - p_, p_)
    a, b, c, kl = _ordered(low, high, d, g_ / unit, share, power_ / unit)
    a, b, c, zero = a * unit, b * unit, c * unit, torch.zeros_like(b)
    found = [
        torch.where(swap, c, a), torch.where(swap, zero, b),
        torch.where(swap, a, c), torch.where(swap, b, zero), kl,
    ]  # fmt: skip
    return Solution(*(float(x) for x in found)) if plain else Solution(*found)


def _ordered(
    u: Tensor, v: Tensor, d: int, g: Tensor, p: Tensor, power: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lam10, lam20, lam11 and sumKL for u <= v, where lam21 = 0."""
    q = 1 - p

    def at(b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Best lam10, lam11 and sumKL for lam20 = b."""
        left = (power - q * (d - 1) * b).clamp_min(0.0)
        s = left + p * v + q * u
        ratio = torch.sqrt((s + p * g) / (s + q * g))  # (lam10 + u) / (lam11 + v) at the optimum
        best = s * ratio / (p + q * ratio) - u
        a = torch.minimum(torch.maximum(best, b), left / q)
        c = ((left - q * a) / p).clamp_min(0.0)
        # (x+g)/y + (y+g)/x - 2 and x/y + y/x - 2, written without cancellation
        x, y = a + u, c + v
        along = _square(x - y, x * y) + _ratio(g, y) + _ratio(g, x)
        gap = _square(b + u - v, (b + u) * v) if d > 1 else torch.zeros_like(b)
        return a, c, 0.5 * ((d - 1) * gap + along)

    left = torch.zeros_like(u)
    right = torch.minimum(power / (q * d), v - u) if d > 1 else torch.zeros_like(u)
    ends = (left, right)
    for _ in range(48):  # to 1e-10 of the interval
        width = GOLDEN * (right - left)
        inner = torch.stack([right - width, left + width])
        one, two = at(inner)[2]
        right, left = (
            torch.where(one <= two, inner[1], right),
            torch.where(one <= two, left, inner[0]),
        )
    candidates = [*ends, (left + right) / 2]
    values = torch.stack([at(b)[2] for b in candidates])
    b = torch.stack(candidates).gather(0, values.argmin(0, keepdim=True)).squeeze(0)
    a, c, kl = at(b)
    return a, b, c, kl


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    """x / y with 0 / 0 = 0: no distance within no variance."""
    return torch.where(x > 0, x / y, torch.zeros_like(x))


def _square(difference: Tensor, product: Tensor) -> Tensor:
    """difference^2 / product with 0 / 0 = 0."""
    return _ratio(difference.square(), product)


def least_power(u: Tensor, v: Tensor, d: int, g: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """The least power at which sumKL <= `target` (> 0): sections of its logarithm, to 1e-9."""
    unit = torch.maximum(g, torch.maximum(u, v))
    low, high = (torch.full_like(g, x) for x in (-60.0, 60.0))
    parts = torch.arange(1, 17, dtype=g.dtype).unsqueeze(1) / 17
    for _ in range(10):  # 120 / 17^10 < 1e-9
        inner = low + (high - low) * parts  # (16, R)
        enough = torch.as_tensor(solve(u, v, d, g, p, unit * inner.exp()).sum_kl) <= target
        below = (~enough).sum(0)  # sumKL falls with power
        step = (high - low) / 17
        low, high = low + step * below, low + step * (below + 1)
    power = unit * high.exp()
    unneeded = solve(u, v, d, g, p, torch.zeros_like(g)).sum_kl <= target
    return torch.where(torch.as_tensor(unneeded), torch.zeros_like(power), power)


@registry.defense
@dataclass(frozen=True)
class Marvell(Policy):
    """Hyper-parameters.

    Attributes:
        mode: ``power``: P = strength x g; ``sum_kl``: least P with sumKL <= 1 / strength.
    """

    mode: Literal["power", "sum_kl"] = "power"
    strengths: ClassVar[str] = "noise power / squared class distance, or 1 / sumKL"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"sum_kl": lambda x: 1.0 / x}
    covers = frozenset({"gradient"})

    def check_task(self, classes: int) -> None:
        """Refuse all but two classes.

        Raises:
            ConfigError: `classes` is not 2.
        """
        if classes != 2:
            raise ConfigError(
                f"{self.name}: needs two classes, got {classes}. Use iso, noise or label_dp."
            )

    def outgoing(self, message: Message, own: Own) -> Tensor:
        x = read_batch(self, message)  # (R, b, m)
        y = own.labels
        if own.classes != 2:
            raise self.refuse(message, f"it needs two classes, got {own.classes}.")
        if y is None:
            raise self.refuse(message, "rows have no label.")
        if y.dim() != 2:
            raise self.refuse(message, "shares are no class.")
        if not any(own.active):
            return message.tensor
        along = own.rng.normal(x.shape[1:2], active=own.active)  # (R, b)
        across = own.rng.normal(x.shape[1:], active=own.active)  # (R, b, m)
        noise = torch.zeros_like(x)
        both = []
        for r, on in enumerate(own.active):
            if on and 0 < int((y[r] == 1).sum()) < y.shape[1]:
                both.append(r)
            elif on:  # one class: isotropic noise of the same strength
                length = torch.linalg.vector_norm(x[r], dim=1).amax()
                scale = math.sqrt(float(own.strength[r]) / x.shape[2])
                noise[r] = across[r] * (length * scale)
        if both:
            self._shape(noise, x, y, along, across, both, own.strength[both])
        return own.choose((x + noise).reshape(message.tensor.shape), message.tensor)

    def _shape(
        self, noise: Tensor, x: Tensor, y: Tensor, along: Tensor, across: Tensor,
        both: list[int], strength: Tensor,
    ) -> None:  # fmt: skip
        """Fill in the noise of the replicas `both`, whose batch has two classes."""
        direction, stats = [], []
        for r in both:
            negative, positive = (x[r][y[r] == c].double() for c in (0, 1))
            delta = positive.mean(0) - negative.mean(0)
            direction.append(delta)
            stats.append(
                (
                    float(negative.var(0, correction=0).mean()),
                    float(positive.var(0, correction=0).mean()),
                    float(delta.square().sum()),
                    len(positive) / y.shape[1],
                )
            )
        u, v, g, p = torch.tensor(stats, dtype=torch.float64).T
        apart = g > 0  # equal means need no noise along them and have no direction
        safe = torch.where(apart, g, 1.0)
        d = x.shape[2]
        if self.mode == "power":
            power = strength * g
        else:
            power = torch.where(apart, least_power(u, v, d, safe, p, 1 / strength), 0.0)
        made = solve(u, v, d, safe, p, power)
        four = (made.lam10, made.lam11, made.lam20, made.lam21)
        lams = [torch.as_tensor(lam).to(x.device) for lam in four]
        for k, r in enumerate(both):
            unit = direction[k] / math.sqrt(float(safe[k]))
            one = y[r] == 1
            lam1 = torch.where(one, lams[1][k], lams[0][k])
            lam2 = torch.where(one, lams[3][k], lams[2][k])
            coefficient = along[r].double() * (lam1 - lam2).clamp_min(0.0).sqrt()
            shaped = coefficient.unsqueeze(1) * unit
            shaped = shaped + lam2.sqrt().unsqueeze(1) * across[r].double()
            noise[r] = shaped.to(x.dtype)
