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

from vflsec.core.exchange_order import Exchanged, exchange
from vflsec.plugin import (
    Attack,
    Message,
    Own,
    Policy,
    ThreatModelError,
    check,
    registry,
)

ALIASES = ("replay_attack",)
FAMILY = "wrong_predictions"
NO_GOAL_ROW = "no known row of the goal class took part in training."


@registry.attack
@dataclass(frozen=True)
class Replay(Attack):
    """Hyper-parameters.

    Attributes:
        goal: the class that predictions are pushed to.
    """

    goal: check.Whole = 1
    needs = frozenset({"known_rows"})
    target: ClassVar[str] = "integrity"
    splits: ClassVar[tuple[str, ...]] = ("test",)

    def policy(self) -> Policy:
        return ReplayedEmbedding(self.goal)


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
            keep(own, z, rows, self.goal, sent(own, message))
        elif own.memory.get("attacking"):
            of = sent_like(own, message)
            if of is not None:
                mean = kept_mean(own, of).unsqueeze(1)
                return own.choose(mean.to(z).expand_as(z).contiguous(), z)
        return z


def sent(own: Own, message: Message) -> Exchanged:
    """The exchange that a message of a training step is of; what it held last is remembered."""
    of = exchange(own.memory, message)
    own.memory.setdefault("sent", {})[of] = message.tensor
    return of


def sent_like(own: Own, message: Message) -> Exchanged | None:
    """The exchange of training that a message (R, b, ...) at inference goes on; None if none does.

    Of those of its name, or else of its width, where there are several: the one whose last message
    had the nearest mean and standard deviation. Inference has no steps to tell them apart by.
    """
    z, held = message.tensor, own.memory.get("sent", {})
    fit = [of for of, last in held.items() if last.shape[2:] == z.shape[2:]]
    fit = [of for of in fit if of[1] == message.name] or fit
    if len(fit) < 2:
        return next(iter(fit), None)
    return min(fit, key=lambda of: float((_moments(held[of]).to(z) - _moments(z)).square().sum()))


def _moments(z: Tensor) -> Tensor:
    """Mean and standard deviation over the rows of (R, b, ...), (2, R, ...)."""
    return torch.stack([z.mean(1), z.std(1, correction=0)])


def keep(own: Own, values: Tensor, rows: Tensor, goal: int | None, of: Exchanged) -> None:
    """Keep what passes of the known rows of a class: the latest value of each, by replica.

    `values` (R, b, ...), `rows` (R, b), of one exchange of the step; `goal` None keeps all known
    rows. The grant is in ``own.memory["known"]``, R of them.
    """
    kept = own.memory.setdefault("kept", {}).setdefault(of, [{} for _ in own.memory["known"]])
    for r, known in enumerate(own.memory["known"]):
        wanted = (known.rows if goal is None else known.of_class(goal)).to(rows.device)
        for at in torch.isin(rows[r], wanted).nonzero().squeeze(1).tolist():
            kept[r][int(rows[r, at])] = values[r, at].detach().clone()


def kept_mean(own: Own, of: Exchanged) -> Tensor:
    """The mean of what was kept of an exchange, (R, ...); zeros where nothing was."""
    found = [torch.stack(list(k.values())).mean(0) if k else None for k in own.memory["kept"][of]]
    shape = next((f for f in found if f is not None), None)
    if shape is None:
        raise ThreatModelError(NO_GOAL_ROW)
    return torch.stack([torch.zeros_like(shape) if f is None else f for f in found])
