"""Direct label inference: without a top model a gradient's one negative entry is the label.

When the logits are the plain sum of the parties' embeddings, every party receives
g_i = (p_i - e_{y_i}) / b: all entries are positive except that of the label. Score of class c is
-g_ic, so the guess is the smallest entry; this survives float saturation, where "the negative
entry" may not exist. Rows that are zero throughout are declined.

Attacker: any passive party; needs gradients and no labelled row; any number of classes.
By default the rows of one sample are averaged over epochs, which averages fresh noise out; a
coalition averages its copies too.
Does not apply: behind a trainable top model, whose weights the passive party does not know.

Source: Fu, Zhang, Ji, Chen, Wu, Guo, Zhou, Liu, Wang, "Label inference attacks against vertical
federated learning", USENIX Security 2022, section 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.view import Facts, View

ALIASES = ("dli", "direct_label_inference")


@registry.attack
@dataclass(frozen=True)
class Direct(Attack):
    """Hyper-parameters.

    Attributes:
        accumulate: average each row's gradients over epochs first.
        epoch: which epoch is used if not: ``first`` or ``last``.
    """

    accumulate: bool = True
    epoch: Literal["first", "last"] = "first"
    world: ClassVar[dict[str, Any]] = {"top": (), "linear_top": False, "aggregation": "sum"}

    def __post_init__(self) -> None:
        check.one_of("direct.epoch", self.epoch, ("first", "last"))

    @property
    def form(self) -> str:
        """In which form the messages are recorded, see :class:`vflsec.view.Need`."""
        return "mean" if self.accumulate else self.epoch

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"gradient:{self.form}"})

    def applicable(self, facts: Facts) -> str:
        if facts.top or facts.aggregation == "concat":
            return (
                "direct reads labels from gradients of summed logits; here a trainable top model "
                "stands in between. It applies with top = [], linear_top = false and "
                'aggregation = "sum".'
            )
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        tables = [view.received("gradient", self.form, p) for p in view.adversary]
        rows = tables[0].rows
        # Every party gets the same gradient; what noise the copies carry averages out.
        g = torch.stack([t.of_rows(rows) for t in tables]).mean(0)
        return Guess(self.target, rows, -g, abstain=(g == 0).all(dim=1))
