"""Replay at inference: the attacker sends a target row's embedding instead of its own.

In training the attacker behaves, and keeps the embedding it sends for the rows of one class whose
labels it knows. At inference it replaces its embedding of any row it likes by their mean, so that
the active party sees a member of that class. Success rate: the share of test rows of other classes
that are then predicted as the class; beside it the share without the attack.

Attacker: a malicious passive party, at inference only. Needs known rows of the class.
Known failure cases: where the active party's own columns decide, a foreign embedding changes
little; a check that compares embeddings with those of similar rows would notice.

Source: Qiu, Zhang, Ji, Li, Pu, Yang, Wang, "Hijack vertical federated learning models as one
party", IEEE Transactions on Dependable and Secure Computing (2024), arXiv:2212.00322, replay
attack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.message import Message
from vflsec.policy import Own, Policy
from vflsec.view import View

ALIASES = ("replay_attack",)
FAMILY = "Wrong predictions on demand"


@registry.attack
@dataclass(frozen=True)
class Replay(Attack):
    """Hyper-parameters.

    Attributes:
        goal: the class that predictions are pushed to.
    """

    goal: int = 1
    needs = frozenset({"known_rows"})
    target: ClassVar[str] = "integrity"
    splits: ClassVar[tuple[str, ...]] = ("test",)

    def __post_init__(self) -> None:
        check.integer("replay.goal", self.goal, low=0)

    def policy(self) -> Policy:
        return ReplayedEmbedding(self.goal)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        raise ThreatModelError("replay guesses nothing: it is judged by what predictions become.")


@dataclass(frozen=True)
class ReplayedEmbedding(Policy):
    """Keeps the embeddings of known rows of the goal, and sends their mean when it attacks."""

    goal: int
    covers = frozenset({"embedding"})
    owner = "passive"

    def outgoing(self, message: Message, own: Own) -> Tensor:
        z, rows = message.tensor, message.rows
        if rows is None:
            return z
        if message.phase != "predict":
            keep(own, z, rows, self.goal)
        elif own.memory.get("attacking") and "kept" in own.memory:
            return own.choose(kept_mean(own).unsqueeze(1).to(z).expand_as(z).contiguous(), z)
        return z


def keep(own: Own, values: Tensor, rows: Tensor, goal: int | None) -> None:
    """Keep what passes of the known rows of a class: the latest value of each, by replica.

    `values` (R, b, ...), `rows` (R, b); `goal` None keeps all known rows. The grant is in
    ``own.memory["known"]``, R of them.
    """
    kept = own.memory.setdefault("kept", [{} for _ in own.memory["known"]])
    for r, known in enumerate(own.memory["known"]):
        wanted = (known.rows if goal is None else known.of_class(goal)).to(rows.device)
        for at in torch.isin(rows[r], wanted).nonzero().squeeze(1).tolist():
            kept[r][int(rows[r, at])] = values[r, at].detach().clone()


def kept_mean(own: Own) -> Tensor:
    """The mean of what was kept, (R, ...); zeros where nothing was."""
    found = [torch.stack(list(k.values())).mean(0) if k else None for k in own.memory["kept"]]
    shape = next((f for f in found if f is not None), None)
    if shape is None:
        raise ThreatModelError("no known row of the goal class took part in training.")
    return torch.stack([torch.zeros_like(shape) if f is None else f for f in found])
