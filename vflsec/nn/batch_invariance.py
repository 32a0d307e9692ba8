"""Whether a replica's numbers depend on its company: a test of this machine's batched products.

A cell alone is trained beside a twin and must equal itself among twenty, bit for bit. Libraries of
products (MKL, OpenBLAS) may choose another order of sums by where a matrix lies in memory, and in a
stack of odd widths every replica lies differently. Importing the package asks MKL not to where it
would (`vflsec.runtime.mkl`); nothing can rule it out, so it is tried, with the very functions that
training calls, in both precisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from vflsec.nn.dense import Layer, dense
from vflsec.nn.replicas import LEAST

SHAPES = ((64, 37, 5), (17, 9, 3), (33, 7, 11), (23, 1, 5), (61, 14, 37), (16, 30, 1))
"""Rows of a batch, inputs and outputs of a layer that fill no whole vectors."""

MANY, PLACES = 20, (7, 19)

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Sequence[Tensor]]


def _step(x: Tensor, weight: Tensor, bias: Tensor, slope: Tensor) -> Sequence[Tensor]:
    """A stacked layer's output (R, b, o), and gradients of inputs, weight and bias."""
    given = [t.detach().requires_grad_() for t in (x, weight, bias)]
    out = dense([Layer(given[1], given[2], True)], given[0])
    return out.detach(), *torch.autograd.grad((out * slope).sum(), given)


def find_variant_layers(
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    places: Sequence[int] = PLACES,
    step: Step = _step,
) -> list[str]:
    """Layers on which a replica among twenty is not what it is beside a twin, bit for bit.

    Args:
        shapes: rows, inputs and outputs of each layer.
        places: which of the twenty are compared.
        step: what a training step makes of inputs (R, b, i), weights (R, o, i), biases (R, o) and
            slopes (R, b, o).

    Returns:
        such as ``64 rows, 37 to 5, float32``; empty where company does not matter.
    """
    out = []
    for b, i, o in shapes:
        for dtype in (torch.float32, torch.float64):
            rng = torch.Generator().manual_seed(b * 10_000 + i * 100 + o)
            stack = [
                torch.randn(MANY, *size, generator=rng, dtype=dtype)
                for size in ((b, i), (o, i), (o,), (b, o))
            ]
            together = step(*stack)
            same = all(
                torch.equal(a[0], c[r])
                for r in places
                for a, c in zip(step(*(t[[r] * LEAST] for t in stack)), together, strict=True)
            )
            if not same:
                out.append(f"{b} rows, {i} to {o}, {str(dtype).removeprefix('torch.')}")
    return out


@cache
def find_warning() -> str:
    """What is said where company matters on this machine, '' where it does not."""
    return _said(find_variant_layers())


def _said(found: Sequence[str]) -> str:
    if not found:
        return ""
    where = "; ".join(found[:3]) + (" and others" if len(found) > 3 else "")
    return (
        "on this machine trainings alone and among others may differ in the last bits (layers of "
        f"{where}), and so may a resumed or divided audit. Set MKL_CBWR=AUTO,STRICT, or choose "
        "widths that are multiples of 16."
    )
