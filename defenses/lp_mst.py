"""Labels released in stages, each with the last stage's model as prior (LP-MST, LP-2ST).

The training rows are split at random into T parts, the first with share `first`. Part 1 (and the
validation rows) is released by randomised response, a model is trained on it from scratch, and its
softmax for a row of part 2 is the prior with which that row's label is released by RRWithPrior; the
next model is trained from scratch on all that is released, and so on. Each label is released once,
so the parts compose in parallel. The swept strength is 1 / epsilon.

The published recipe for images also divides the logits by a temperature before they become a prior
(0.5 or 0.6): `temperature`. It mixes rows, which is the defense `mixup` beside this one. That later
stages leave out earlier rows whose released label the last model finds unlikely is not built.

Hook: labels, and relabel between trainings. Owner: the active party.
Guarantee: epsilon-label-DP for each sample. Does not stop: inference of what features predict,
which here even sharpens the labels; what earlier trainings send counts as seen.

Source: Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep learning with label differential privacy",
NeurIPS 2021, arXiv:2102.06062, algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from vflsec.defenses.label_dp import Released
from vflsec.defenses.rr_prior import draw, matrix
from vflsec.plugin import Own, check, registry

ALIASES = ("lp_2st", "lp2st", "lpmst")


@registry.defense
@dataclass(frozen=True)
class LPMST(Released):
    """Hyper-parameters.

    Attributes:
        stages: T, at least 2.
        first: share of the training rows in part 1; the others are of equal size.
        temperature: T > 0; the prior is softmax(logits / T).
    """

    stages: Annotated[int, check.at_least(2)] = 2
    first: check.OpenUnit = 0.6
    temperature: check.Positive = 1.0
    accountant = "randomised response with prior, in parallel"

    @property
    def trainings(self) -> int:  # type: ignore[override]
        return self.stages

    def labels(self, y: Tensor, own: Own) -> Tensor:
        self.check_classes(y)
        rows = own.context.get("labelled")
        if rows is None:
            rows = torch.arange(y.shape[1], device=y.device).expand(y.shape[0], -1)
        order = own.rng.uniform(rows.shape[1:], active=own.active).argsort(dim=1, stable=True)
        shuffled = rows.gather(1, order.to(rows.device))
        cut = max(1, min(rows.shape[1] - 1, round(self.first * rows.shape[1])))
        later = torch.tensor_split(shuffled[:, cut:], self.stages - 1, dim=1)
        own.memory["truth"], own.memory["parts"] = y, [shuffled[:, :cut], *later]
        uniform = torch.full((own.classes,), 1 / own.classes, dtype=torch.float64)
        made = torch.stack([_matrix(uniform, s) for s in own.strength.tolist()])
        coins = own.rng.uniform(y.shape[1:], active=own.active, dtype=torch.float64)
        drawn = torch.where(y >= 0, draw(made.to(y.device), y.clamp_min(0), coins), y)
        drawn = drawn.scatter(1, shuffled[:, cut:], -1)
        own.memory["released"] = answers = own.choose(drawn, y)
        return answers

    def relabel(
        self, y: Tensor, stage: int, predict: Callable[[Tensor], Tensor], own: Own
    ) -> Tensor:
        """The labels of the next stage (R, n): part `stage` + 1 drawn under the model's prior."""
        parts = own.memory["parts"]
        rows = parts[stage]  # (R, k)
        truth = own.memory["truth"].gather(1, rows)
        coins = own.rng.uniform(rows.shape[1:], active=own.active, dtype=torch.float64)
        likely = torch.softmax(predict(rows).double() / self.temperature, dim=-1).cpu()  # (R, k, C)
        answers, out = own.memory["released"].clone(), y.clone()
        for r, s in enumerate(own.strength.tolist()):
            if s <= 0:
                continue
            made = matrix(likely[r], 1.0 / s).to(y.device)  # (k, C, C)
            drawn = draw(made, truth[r].unsqueeze(1).clamp_min(0), coins[r].unsqueeze(1))
            answers[r, rows[r]] = torch.where(truth[r] >= 0, drawn.squeeze(1), -1)
            out[r] = answers[r]
        own.memory["released"] = answers
        return out


def _matrix(prior: Tensor, strength: float) -> Tensor:
    if strength <= 0:
        return torch.eye(len(prior), dtype=torch.float64)
    return matrix(prior, 1.0 / strength)
