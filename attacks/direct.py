"""Direct label inference: without a top model a gradient's one negative entry is the label.

When the logits are the plain sum of the parties' embeddings, every party receives
g_i = (p_i - e_{y_i}) / b: all entries are positive except that of the label. Score of class c is
-g_ic, so the guess is the smallest entry; this survives float saturation, where "the negative
entry" may not exist. Rows that are zero throughout are declined. Soft labels turn this round (the
true class becomes the *least* likely one, so its entry is the largest) or rename the classes: where
known rows were granted, the reading that fits them is taken (`vflsec.inference.score_orientation`).

Of several labels at once the gradient of logit k is p_k - y_k, whose sign is label k.

Attacker: any passive party; needs gradients and no labelled row, but uses those it was granted; any
number of classes.
By default the rows of one sample are averaged over epochs, which averages fresh noise out; a
coalition averages its copies too.
Does not apply: behind a trainable top model, whose weights the passive party does not know. Renamed
classes are found where rows of nearly all classes are known, swapped ones where a row of each is.

Source: Fu, Zhang, Ji, Chen, Wu, Guo, Zhou, Liu, Wang, "Label inference attacks against vertical
federated learning", USENIX Security 2022, section 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec.core.attack import ReadsGradients
from vflsec.inference.score_orientation import read
from vflsec.plugin import Facts, Guess, View, registry

ALIASES = ("dli", "direct_label_inference")
FAMILY = "single_gradients"


@registry.attack
@dataclass(frozen=True)
class Direct(ReadsGradients):
    """Hyper-parameters: those of an attack on gradients."""

    labelwise: ClassVar[bool] = True
    world = {"top": (), "linear_top": False, "aggregation": "sum"}

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"gradient:{self.recorded_form}"})

    def applicable(self, facts: Facts) -> str:
        return self.explain_top(facts)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        tables = [view.received("gradient", self.recorded_form, p) for p in view.adversary]
        rows = tables[0].rows
        # Every party gets the same gradient; what noise the copies carry averages out.
        g = torch.stack([t.of_rows(rows) for t in tables]).mean(0)
        k = view.facts.extra.get("of_label")
        if k is not None:  # p - y of this label, as two classes would have it
            g = torch.stack([-g[:, k], g[:, k]], dim=1)
        scores, reading = read(g, rows, view.known)
        empty = (g == 0).all(dim=1)
        return Guess(self.target, rows, scores, abstain=empty, notes={"reading": reading})
