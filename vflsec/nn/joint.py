"""An adversary's own trainable model and its input rows, for one party or a coalition."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vflsec.errors import ThreatModelError
from vflsec.nn.replicas import Replicas, apply, stacked
from vflsec.view import View

__all__ = ["Joint", "own_model", "own_rows"]


class Joint(nn.Module):
    """Bottoms side by side: rows (b, sum of flat widths) -> embeddings side by side (b, sum of d).

    Args:
        bottoms: one for each party.
        shapes: shape of one input row of each party.
    """

    def __init__(self, bottoms: Sequence[nn.Module], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)
        self.shapes = [tuple(s) for s in shapes]

    def forward(self, x: Tensor) -> Tensor:
        parts = x.split([math.prod(s) for s in self.shapes], dim=1)
        made = [
            f(p.reshape(len(p), *s)).flatten(1)
            for f, p, s in zip(self.bottoms, parts, self.shapes, strict=True)
        ]
        return torch.cat(made, dim=1)


@stacked(Joint)
def _joint(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    assert isinstance(module, Joint)
    parts = x.split([math.prod(shape) for shape in module.shapes], dim=2)
    made = [
        apply(
            s, f"{prefix}bottoms.{k}.", f, p.reshape(*p.shape[:2], *module.shapes[k]), train
        ).flatten(2)
        for k, (f, p) in enumerate(zip(module.bottoms, parts, strict=True))
    ]
    return torch.cat(made, dim=2)


def own_model(view: View, part: str = "bottom") -> nn.Module | None:
    """A copy of the adversary's model from :func:`own_rows` to its embedding; None without one.

    Args:
        view: of one party or a coalition.
        part: ``bottom`` as trained, ``initial`` as it was before, or one tower (``bottom.cross``).
    """
    try:
        bottoms = [copy.deepcopy(view.model(part, p)) for p in view.holders]
    except ThreatModelError:
        return None
    if len(bottoms) < 2:
        return bottoms[0] if bottoms else None
    return Joint(bottoms, [view.schema[p].shape for p in view.holders])


def own_rows(view: View, rows: Tensor) -> Tensor:
    """Input rows for :func:`own_model`: a party's own columns, or a coalition's, flat."""
    parts = [view.columns[p][rows] for p in view.holders]
    return parts[0] if len(parts) == 1 else torch.cat([x.flatten(1) for x in parts], dim=1)
