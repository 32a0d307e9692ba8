"""Backdoor by gradient replacement: rows with a trigger are trained as if they were of one class.

The attacker writes a trigger (a fixed value in a few of its own columns) into a share of its
training rows, and for those rows puts the mean of the gradients that the known rows of the goal
class got last, times gamma, in the place of the received one; where a step has several exchanges,
of those of the same exchange. Its bottom learns to map the trigger to an embedding of that class.
At inference the trigger in any row turns the prediction. Success rate: the share of triggered test
rows of other classes that are predicted as the class; beside it the share without trigger.

Attacker: a malicious passive party in training and at inference. Needs received gradients per row
and known rows of the class; labels stay unknown otherwise.
Known failure cases: where the active party's own columns decide; under noise on gradients, or where
only batch sums of gradients are received, there is nothing worth copying.

Source: Liu, Yi, Chen, "Backdoor attacks and defenses in feature-partitioned collaborative
learning", arXiv:2007.03608 (2020), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.attacks.replay import keep, kept_mean
from vflsec.core.exchange_order import exchange
from vflsec.nn.rows import widen
from vflsec.plugin import (
    Attack,
    Message,
    Own,
    Policy,
    check,
    registry,
)

ALIASES = ("backdoor", "label_replacement")
FAMILY = "wrong_predictions"


@registry.attack
@dataclass(frozen=True)
class GradientReplacement(Attack):
    """Hyper-parameters.

    Attributes:
        goal: the class that triggered rows are to get.
        share: of training rows that carry the trigger.
        columns: how many columns the trigger takes, from the last.
        value: what it writes there, in standard deviations of the column.
        gamma: factor on the copied gradient.
    """

    goal: check.Whole = 1
    share: check.Unit = 0.05
    columns: check.Count = 3
    value: check.Finite = 3.0
    gamma: check.Positive = 3.0
    needs = frozenset({"gradient:last", "known_rows"})
    target: ClassVar[str] = "integrity"
    splits: ClassVar[tuple[str, ...]] = ("test",)

    def policy(self) -> Policy:
        return Trigger(self)


@dataclass(frozen=True)
class Trigger(Policy):
    """Writes the trigger into own rows, and replaces their gradients."""

    attack: GradientReplacement

    def columns(self, x: Tensor, own: Own) -> Tensor:
        rows = own.context["rows"]
        poisoned = self._poisoned(rows, own)
        changed = x.clone()
        flat = changed.flatten(2)
        last = flat[..., -self.attack.columns :]  # a part of `changed`
        last[:] = torch.where(poisoned.unsqueeze(2), self.attack.value, last)
        return own.choose(flat.reshape(x.shape), x)

    def incoming(self, message: Message, own: Own) -> Tensor:
        g, rows = message.tensor, message.rows
        if message.kind != "gradient" or rows is None:
            return g
        of = exchange(own.memory, message)
        keep(own, g * message.scale, rows, self.attack.goal, of)
        kept = own.memory["kept"][of]
        if not any(kept):
            return g
        copied = self.attack.gamma * kept_mean(own, of).unsqueeze(1) / message.scale
        there = torch.tensor([bool(k) for k in kept], device=g.device)
        swap = self._poisoned(rows, own) & there.unsqueeze(1)
        swap = widen(swap, g)
        return own.choose(torch.where(swap, copied.to(g), g), g)

    def _poisoned(self, rows: Tensor, own: Own) -> Tensor:
        """Which rows carry the trigger: all when attacking, else a fixed share by row id."""
        if own.memory.get("attacking"):
            return torch.ones_like(rows, dtype=torch.bool)
        return (rows * 2654435761) % 10007 < self.attack.share * 10007
