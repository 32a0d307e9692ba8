"""Products of stacked linear layers with fewer digits than their numbers are kept in.

Where a training asks for it, the factors of every product, forward and back, are rounded first; all
else (weights, sums over rows, messages, the optimizer, the loss) stays in float32. ``tf32`` rounds
to 10 bits after the leading one, as the matrix units of a GPU do, which is where it is fast; where
there are none, on a CPU and on GPUs before Ampere, the same rounding is done by hand, so that its
effect can be seen anywhere. ``bf16`` rounds factors and products to 7 bits, as ``torch.autocast``
does.

torch takes TF32 or not for the whole process. It is asked for around every product and taken back,
so what a process does one after the other never meets; of two trainings in threads of one process
on a GPU, one in ``tf32`` could round products of the other.

Sources: NVIDIA, "NVIDIA A100 Tensor Core GPU Architecture", 2020 (TF32); Kalamkar et al., "A study
of BFLOAT16 for deep learning training", 2019.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

FULL = ""
"""Products of the numbers as they are."""

_REDUCED = ("tf32", "bf16")
_DROPPED = 13  # of the 23 bits that float32 has after the leading one


def find_stored(dtype: str) -> torch.dtype:
    """What numbers of a training are kept as, by its ``dtype``."""
    kept: torch.dtype = torch.float32 if dtype in _REDUCED else getattr(torch, dtype)
    return kept


def find_products(dtype: str) -> str:
    """How products of a training are taken, by its ``dtype``: ``tf32``, ``bf16`` or FULL."""
    return dtype if dtype in _REDUCED else FULL


def bmm(a: Tensor, b: Tensor, products: str, out: Tensor | None = None) -> Tensor:
    """Batched products (R, n, m) of factors (R, n, k) and (R, k, m) in float32.

    Args:
        a, b: factors.
        products: how, see :func:`find_products`.
        out: where they are written.
    """
    if products == "bf16":
        made = torch.bmm(a.bfloat16(), b.bfloat16())
        return made.to(a.dtype) if out is None else out.copy_(made)
    if products == "tf32" and a.is_cuda and _rounds(a.device):
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return torch.bmm(a, b, out=out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    if products == "tf32":
        a, b = round_factors(a), round_factors(b)
    return torch.bmm(a, b, out=out)


@cache
def _rounds(device: torch.device) -> bool:
    """Whether a GPU has units that take TF32: where there are none, torch takes all digits."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def round_factors(x: Tensor) -> Tensor:
    """float32 numbers to the nearest with 10 bits after the leading one, ties to even.

    Its derivative is that of the identity.
    """
    bits = x.detach().view(torch.int32)
    last = (bits >> _DROPPED) & 1
    near = ((bits + ((1 << (_DROPPED - 1)) - 1) + last) & -(1 << _DROPPED)).view(torch.float32)
    near = torch.where(x.detach().isfinite(), near, x.detach())
    return x + (near - x).detach() if x.requires_grad else near
