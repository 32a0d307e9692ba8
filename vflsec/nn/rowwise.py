"""What each row of a batch adds to the gradients of stacked modules.

The replica axis does the work: R modules on b rows are taken as R b modules on one row each, so
that any stacked module and any loss of an algorithm works unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from vflsec.errors import PolicyError
from vflsec.nn.replicas import Replicas


def split_rows(x: Tensor) -> Tensor:
    """Rows (R, b, ...) as the only row of R b replicas, (R b, 1, ...)."""
    return x.flatten(0, 1).unsqueeze(1)


def row_gradients(
    modules: Mapping[str, Replicas], b: int, total: Callable[[Mapping[str, Replicas]], Tensor]
) -> list[Tensor]:
    """Each row's part (R, b, ...) of the gradient of every trainable tensor, part by part.

    Args:
        modules: stacked modules of one party by part.
        b: rows of the batch.
        total: the loss summed over rows and replicas, from R b copies of the modules.

    Raises:
        PolicyError: rows do not have parts of their own: batch normalisation mixes them, and
            dropout would draw again.
    """
    for part, stack in modules.items():
        for inner in stack.template.modules():
            mixes = isinstance(inner, nn.modules.batchnorm._BatchNorm)
            draws = isinstance(inner, nn.modules.dropout._DropoutNd) and inner.p > 0
            if mixes or draws:
                raise PolicyError(
                    f"no gradients of single rows with {type(inner).__name__} in {part!r}. "
                    "Use LayerNorm, and no dropout."
                )
    wide = {part: stack.widen(b) for part, stack in modules.items()}
    params = [p for stack in wide.values() for p in stack.parameters()]
    grads = torch.autograd.grad(total(wide), params, allow_unused=True)
    out = []
    for p, g in zip(params, grads, strict=True):
        g = torch.zeros_like(p) if g is None else g
        out.append(g.reshape(-1, b, *p.shape[1:]))
    return out
