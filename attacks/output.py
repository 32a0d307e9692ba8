"""Returned predictions: where the passive party gets the result, the result is the label.

Some deployments send the prediction p_i back to every party that took part in it. Score of class c
is log p_ic; nothing has to be learnt, and the accuracy of the attack is that of the main task. What
is no share, below 0 or above 1 as noise makes it, is taken as it is.

Attacker: any passive party that receives predictions; any number of classes; no labelled row.
Does not apply where predictions stay with the active party (the default of the algorithms here; set
``returns_predictions = true`` to audit a system that returns them). No encryption of training
messages changes anything about it.

Source: this package's own baseline; the threat is that of Luo, Wu, Xiao, Ooi, "Feature inference
attack on model predictions in vertical federated learning", ICDE 2021, arXiv:2010.10152, section
III, read from the passive party's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec.plugin import Attack, Guess, View, registry

ALIASES = ("returned_predictions",)
FAMILY = "predictions"


@registry.attack
@dataclass(frozen=True)
class Output(Attack):
    """No hyper-parameters: the last prediction of each row is its score."""

    needs = frozenset({"prediction:last"})
    splits: ClassVar[tuple[str, ...]] = ("test",)
    labelwise: ClassVar[bool] = True
    world = {"returns_predictions": True}

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        table = view.received("prediction", "last", view.party)
        p = table.tensor.double()
        shares = bool(((p >= 0) & (p <= 1 + 1e-6)).all())
        return Guess(self.target, table.rows, p.clamp_min(1e-30).log() if shares else p)
