"""UnSplit's input part: columns and a clone of the bottom that together give the embeddings.

From nothing but the architecture of the victim's bottom f, the receiver of embeddings z_i looks for
a clone f~ and for columns x~_i, in turn:
    x~: minimise  ||f~(x~_i) - z_i||^2        f~: minimise  mean_i ||f~(x~_i) - z_i||^2
from x~ = 0, the mean of every column. Score: x~. With ``weights = "granted"`` f~ is f itself and
only the columns are sought: the upper bound of whoever has the model.

Attacker: the party that receives embeddings (the active party), honest but curious, after training.
Needs the victim's model (``peer_model = true``), of which it uses the architecture alone unless
``weights = "granted"``; no auxiliary row. Its control is the mean of every column.
Known failure cases: with both free every pair that fits is as good as the true one, and behind a
dense layer there are many: a residual near 0 with R^2 near or below 0 is the right answer, which
says that embeddings alone do not fix what they are of; a bottom that is not injective, even if it
is granted. Category codes are not differentiable, so those tables are declined.
Differences from the paper: no total variation, which has no meaning for tables; weights start anew.

Source: Erdogan, Kupcu, Cicek, "UnSplit: Data-oblivious model inversion, model stealing, and label
inference attacks against split learning", WPES 2022, arXiv:2108.09033, section 3.2 (1000 rounds of
100 and 100 steps, Adam with amsgrad, 1e-3).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from vflsec.attacks.grn import check_victims, not_numbers
from vflsec.core.party import step
from vflsec.inference.adversary_model import Joint
from vflsec.inference.gradient_replay import by_embedding
from vflsec.nn import optim
from vflsec.nn.replicas import Replicas
from vflsec.plugin import Attack, Guess, View, as_global, check, registry

ALIASES = ("unsplit_inversion",)
FAMILY = "features"


@registry.attack
@dataclass(frozen=True)
class UnsplitInput(Attack):
    """Hyper-parameters.

    Attributes:
        weights: of the clone: ``free`` or ``granted``.
        rounds: of columns and clone in turn; published: 1000.
        input_steps, model_steps: of each round.
        lr: of Adam, for columns and clone; None takes the published 1e-3 with a free clone, and
            0.02 with granted weights, which fix where the columns are.
    """

    weights: Literal["free", "granted"] = "free"
    rounds: check.Count = 5
    input_steps: check.Count = 100
    model_steps: check.Count = 100
    lr: Annotated[float | None, check.positive] = None
    needs = frozenset({"embedding:last+", "peer_model"})
    target: ClassVar[str] = "feature"
    seconds: ClassVar[float] = 7

    def declines(self, view: View) -> str:
        """That a victim's columns are not all numbers, or ''."""
        return not_numbers(view, "unsplit_input")

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        each = by_embedding(self, views, rngs)
        if each is not None:
            return each
        for view in views:
            check_victims(view, "unsplit_input")
        rows = [v.targets["train"] for v in views]
        z = torch.stack(
            [
                v.received("embedding", "last").of_rows(r).flatten(1)
                for v, r in zip(views, rows, strict=True)
            ]
        )
        clone = Replicas(
            [self._clone(v, g) for v, g in zip(views, rngs, strict=True)],
            device=z.device, dtype=z.dtype,
        )  # fmt: skip
        width = sum(views[0].schema[p].shape[0] for p in views[0].victims)
        x = torch.zeros(*z.shape[:2], width).to(z).requires_grad_()
        rate = self.lr or (1e-3 if self.weights == "free" else 0.02)
        of_x, of_clone = (optim.Adam(p, lr=rate) for p in ([x], clone.parameters()))
        weights = clone.parameters() if self.weights == "free" else []

        def misfit() -> Tensor:
            return (clone(x, train=False) - z).square().sum(2).mean(1)

        n = z.shape[1]
        for _ in range(self.rounds):
            for _ in range(self.input_steps):
                step(of_x, [x], torch.autograd.grad(n * misfit().sum(), [x]))
            for _ in range(self.model_steps if weights else 0):
                step(of_clone, weights, torch.autograd.grad(misfit().sum(), weights))
        size = (z - z.mean(1, keepdim=True)).square().sum(2).mean(1).clamp_min(1e-12)
        left = (misfit() / size).tolist()
        return [
            Guess(
                self.target, rows[r], x[r].detach(),
                notes={"victim": "+".join(v.victims), "misfit": round(left[r], 6),
                       "white_box": self.weights == "granted"},
            )
            for r, v in enumerate(views)
        ]  # fmt: skip

    def _clone(self, view: View, rng: torch.Generator) -> nn.Module:
        """The victims' bottoms as they are, or with weights drawn anew."""
        bottoms = [copy.deepcopy(view.models[p]["bottom"]) for p in view.victims]
        if self.weights == "free":
            with as_global(rng):
                for module in (m for f in bottoms for m in f.modules()):
                    reset = getattr(module, "reset_parameters", None)
                    if callable(reset):
                        reset()
        return Joint(bottoms, [view.schema[p].shape for p in view.victims])
