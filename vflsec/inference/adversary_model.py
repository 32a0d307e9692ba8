"""An adversary's own trainable model and its input rows, for one party or a coalition."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vflsec.core.view import View
from vflsec.errors import ThreatModelError
from vflsec.nn.replicas import Composite, Replicas, Run


class Joint(Composite):
    """Bottoms side by side: rows (b, sum of flat widths) -> embeddings side by side (b, sum of d).

    Args:
        bottoms: one for each party.
        shapes: shape of one input row of each party.
    """

    def __init__(self, bottoms: Sequence[nn.Module], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)
        self.shapes = [tuple(s) for s in shapes]

    def combine(self, run: Run, x: Tensor) -> Tensor:
        parts = x.split([math.prod(s) for s in self.shapes], dim=-1)
        made = [
            run(f"bottoms.{k}", p.reshape(*p.shape[:-1], *s)).flatten(x.dim() - 1)
            for k, (p, s) in enumerate(zip(parts, self.shapes, strict=True))
        ]
        return torch.cat(made, dim=-1)


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


class Answers:
    """Logits (R, b, C) of the adversary's own top model for embeddings of the other parties.

    Args:
        views: of the label party, one for each replica.
        rows: sample ids (R, n) whose own embeddings stand beside.

    Raises:
        ThreatModelError: the top model gets something else than embeddings.
    """

    def __init__(self, views: Sequence[View], rows: Tensor) -> None:
        first = views[0]
        if (got := first.facts.top_input) != "embeddings":
            name = first.facts.algorithm
            raise ThreatModelError(f"the top model of {name} gets {got}, not embeddings.")
        self.facts, self.parts = first.facts, max(1, len(first.victims))
        self.own = torch.stack(
            [v.embed(r, first.party).flatten(1) for v, r in zip(views, rows, strict=True)]
        )
        self.top = None
        if self.facts.top:
            tops = [v.models[first.party]["top"] for v in views]
            self.top = Replicas(tops, device=self.own.device, dtype=self.own.dtype)

    def __call__(self, z: Tensor, at: Tensor | None = None) -> Tensor:
        """For z (R, b, d), the others' embeddings side by side, of the rows `at` (R, b) or all."""
        own = self.own if at is None else pick_rows(self.own, at)
        if self.facts.aggregation == "concat":
            fused = torch.cat([own, z], dim=2)
        else:
            fused = own + z.reshape(*z.shape[:2], self.parts, -1).sum(2)
            if self.facts.aggregation == "mean":
                fused = fused / (self.parts + 1)
        return fused if self.top is None else self.top(fused, train=False)


def pick_rows(x: Tensor, at: Tensor) -> Tensor:
    """Rows `at` (R, b) of x (R, n, d)."""
    return x.gather(1, at.unsqueeze(2).expand(-1, -1, x.shape[2]))
