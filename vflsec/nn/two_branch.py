"""Two models side by side on the same rows: a unique and a common part of a representation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vflsec.nn.replicas import Replicas, apply, stacked


class Twin(nn.Module):
    """Rows (b, ...) -> [unique(x), common(x)], (b, 2d)."""

    def __init__(self, unique: nn.Module, common: nn.Module) -> None:
        super().__init__()
        self.unique, self.common = unique, common

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.unique(x), self.common(x)], dim=-1)


@stacked(Twin)
def _twin(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    assert isinstance(module, Twin)
    parts = [
        apply(s, f"{prefix}{name}.", inner, x, train) for name, inner in module.named_children()
    ]
    return torch.cat(parts, dim=-1)
