"""Reads labels off gradient pairs that are sent in plain: the sign of a gradient is the label.

The gradient of a row's loss by its score is p - y for classes and f - y for a number. Before the
first tree every row has the same p or f, so that

    two classes:     y = p - g
    several classes: y = argmin_c g_c
    a quantity:      y = f - g

exactly, for every row. Of a row that was left out of the first round (GOSS) the first one in which
it came is read: p lies in (0, 1), so that the sign of g still names the class. A row that no
round had scores 0.

Attacker: any passive party of a system that computes gradients at the label holder and broadcasts
them (XGBoost's vertical mode without encryption). Needs no known row.
Known failure cases: encrypted gradient pairs; randomised labels, of which it reads the randomised.

Source: the protocol itself; XGBoost 1.7 to 3.3, vertical federated learning, ``ApplyWithLabels``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec.inference.leaf_groups import count_trees_a_round, find_trees
from vflsec.plugin import Attack, Guess, View, registry

ALIASES = ("open_gradients",)
FAMILY = "open_trees"


@registry.attack
@dataclass(frozen=True)
class GradientPair(Attack):
    """No hyper-parameters."""

    needs = frozenset({"gradient_pair:all"})
    reads_others = False
    quantities: ClassVar[bool] = True
    labelwise: ClassVar[bool] = True
    world = {"algorithm": "secureboost", "profile": "xgboost-open", "trees": 10}

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        table = view.received("gradient_pair", "all")
        tree, outputs = find_trees(view, table), count_trees_a_round(view)
        rows = view.targets["train"].sort().values
        scores = torch.zeros(len(rows), outputs, dtype=torch.float64, device=rows.device)
        late = torch.argsort(tree, stable=True).flip(0)  # the first round is written last
        late = late[torch.isin(table.rows[late], rows)]
        at = torch.searchsorted(rows, table.rows[late])
        for c in range(outputs):
            mine = tree[late] % outputs == c
            place, values = at[mine], -table.tensor[late][mine][:, 0].double()
            for k in tree[late][mine].unique().flip(0):
                now = tree[late][mine] == k
                scores[place[now], c] = values[now]
        if "of_label" in view.facts.extra:
            scores = scores[:, [int(view.facts.extra["of_label"])]]
        return Guess(self.target, rows, scores.squeeze(1) if scores.shape[1] == 1 else scores)
