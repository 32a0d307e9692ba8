"""VILLAIN: a backdoor by a trigger on the embedding of rows whose label swapped embeddings reveal.

1. Epochs `start` to `start + period - 1`: every row once carries the mean embedding of the known
   rows of the goal class. The rows whose gradient then is the shortest in its epoch are taken for
   members of the class, as in ``swap_probe``.
2. From the next epoch on, a `share` of all rows, the known rows of the class and those with the
   shortest gradients, are sent as  z_j + beta D , with z_j the embedding of another row of the
   batch (``carrier = "other"``) or their own. D has length d, the mean standard deviation, on the
   `size` coordinates of largest standard deviation, and 0 elsewhere. Its signs are those of minus
   the sum of the gradients that the known rows of the class got (``signs = "gradient"``), or the
   published +, +, -, -, ... (``"fixed"``). Each time a share `dropout` of D's coordinates is left
   out, and the rest is scaled by a factor drawn from `shift`. All labels stay true, so that the top
   model learns: D means the goal. Where a step has several exchanges, each embedding has a D of its
   own, and the gradients are those that differ the most between the known rows of the class and the
   other known rows.
3. At inference beta D is added to the embedding of any row.
Success rate: the share of test rows of other classes that are predicted as the goal with the
trigger; beside it the share without. Gradients of altered rows do not reach the own model.

Attacker: a malicious passive party in training and at inference. Needs received gradients per row
and at least one known row of the goal; its columns and its own model stay honest.
Known failure cases: where the active party's own columns decide; noise that makes all gradients
equally long leaves only the known rows to poison, and noise that outweighs the known rows'
gradients gives the trigger wrong signs; early stopping that goes back to an epoch before the
poison; a check of embeddings against those of similar rows. The published trigger is ten times
smaller (beta 0.4) and its attacker learns faster; in a few hundred steps that turns nothing here.

Source: Bai, Chen, Zhang, Zhang, Weng, "VILLAIN: Backdoor attacks against vertical split learning",
USENIX Security 2023; embeddings of other rows under the trigger after Shen et al., "LFBA:
label-free backdoor attack in vertical federated learning", AAAI 2025; signs are this package's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.attacks.replay import NO_GOAL_ROW, keep, sent, sent_like
from vflsec.attacks.swap_probe import centres, donors, standing, swapped, without
from vflsec.core.exchange_order import Exchanged, exchange
from vflsec.nn.rows import widen
from vflsec.plugin import (
    Attack,
    Message,
    Own,
    Policy,
    ThreatModelError,
    check,
    registry,
)

ALIASES = ("trigger_backdoor", "embedding_backdoor")
FAMILY = "wrong_predictions"


@registry.attack
@dataclass(frozen=True)
class Villain(Attack):
    """Hyper-parameters.

    Attributes:
        goal: the class that triggered rows are to get.
        start, period: when rows are probed, see ``swap_probe``.
        share: of all training rows that are poisoned.
        size: how many coordinates the trigger takes; at most all.
        beta: strength of the trigger, in standard deviations of these coordinates.
        dropout: share of the trigger's coordinates left out each time, in training.
        shift: the trigger's factor is drawn between these, in training.
        carrier: whose embedding a poisoned row carries: ``other`` or ``own``.
        signs: of the trigger's coordinates: ``gradient``, or the published ``fixed`` pattern.
    """

    goal: check.Whole = 1
    start: check.Count = 1
    period: check.Count = 4
    share: check.Unit = 0.05
    size: check.Count = 32
    beta: check.NonNegative = 4.0
    dropout: check.BelowOne = 0.25
    shift: tuple[check.NonNegative, check.NonNegative] = (0.6, 1.2)
    carrier: Literal["other", "own"] = "other"
    signs: Literal["gradient", "fixed"] = "gradient"
    needs = frozenset({"gradient:all", "known_rows"})
    target: ClassVar[str] = "integrity"
    splits: ClassVar[tuple[str, ...]] = ("test",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shift) != 2 or self.shift[0] > self.shift[1]:
            raise check.fail("villain.shift", "two numbers, the smaller first", self.shift)

    def policy(self) -> Policy:
        return Poison(self)


@dataclass(frozen=True)
class Poison(Policy):
    """Probes rows, poisons those that look like the goal, and pulls the trigger at inference."""

    attack: Villain
    covers = frozenset({"embedding"})
    owner = "passive"

    def outgoing(self, message: Message, own: Own) -> Tensor:
        z, rows = message.tensor, message.rows
        if rows is None:
            return z
        if message.phase == "predict":
            return self._triggered(message, own) if own.memory.get("attacking") else z
        when = (message.phase, message.epoch)
        if own.memory.get("when") != when:
            self._plan(message.epoch, own)
            own.memory["when"] = when
        of = sent(own, message)
        triggers = own.memory.setdefault("triggers", {})
        if "chosen" in own.memory and of not in triggers:
            triggers[of] = self._trigger(z, own)
        keep(own, z, rows, self.attack.goal, of)
        means = own.memory["means"].get(of, [])
        out = swapped(z, self._probed(rows, message.epoch, own), means)
        poisoned = self._poisoned(rows, own)
        if bool(poisoned.any()):
            order = own.rng.permutations(z.shape[1]).to(z.device)
            other = self.attack.carrier == "other"
            carrier = torch.stack([of[at] for of, at in zip(z, order)]) if other else z
            drawn = carrier + self._augmented(triggers[of], own, z.shape[1]).to(z)
            out = torch.where(widen(poisoned, z), drawn, out)
        return own.choose(out, z)

    def _triggered(self, message: Message, own: Own) -> Tensor:
        """An embedding at inference with the trigger."""
        z = message.tensor
        kept = own.memory.get("kept", {})
        if not any(any(by) for of, by in kept.items() if of[0] == "embedding"):
            raise ThreatModelError(NO_GOAL_ROW)
        trigger = own.memory.get("triggers", {}).get(sent_like(own, message))
        return z if trigger is None else own.choose(z + trigger.to(z).unsqueeze(1), z)

    def incoming(self, message: Message, own: Own) -> Tensor:
        g, rows = message.tensor, message.rows
        if message.kind != "gradient" or rows is None or "means" not in own.memory:
            return g
        probed = self._probed(rows, message.epoch, own) >= 0
        altered = probed | self._poisoned(rows, own)
        of = exchange(own.memory, message)
        if "chosen" not in own.memory:
            members = [k.of_class(self.attack.goal).to(rows.device) for k in own.memory["known"]]
            other = torch.stack([~torch.isin(ids, m) for ids, m in zip(rows, members)])
            pulls = own.memory.setdefault("pull", {})
            pulls[of] = pulls.get(of, 0.0) - without(g, other).sum(1)
            keep(own, g * message.scale, rows, None, of)
        length = torch.linalg.vector_norm(g.flatten(2), dim=2)
        self._note(length, rows, probed, message.epoch, own, of)
        return own.choose(without(g, altered), g)

    def _probed(self, rows: Tensor, epoch: int, own: Own) -> Tensor:
        """The goal where rows (R, b) are swapped, else -1; each row once."""
        if epoch >= self.attack.start + self.attack.period:
            return torch.full_like(rows, -1)
        goal = torch.tensor([self.attack.goal])
        known = own.memory["known"]
        return torch.stack(
            [
                donors(of, epoch, k, self.attack.start, self.attack.period, goal)
                for of, k in zip(rows, known)
            ]
        )

    def _note(
        self, length: Tensor, rows: Tensor, probed: Tensor, epoch: int, own: Own, of: Exchanged
    ) -> None:
        """Remember the gradients' lengths (R, b) of probed rows, by row id, and who was there."""
        lengths = own.memory.setdefault("lengths", {})
        held = lengths.setdefault(of, torch.full((2, len(rows), 0), torch.nan))
        more = int(rows.max()) + 1 - held.shape[2]
        if more > 0:
            blank = torch.full((2, len(rows), more), torch.nan)
            held = lengths[of] = torch.cat([held, blank], dim=2)
        seen = own.memory.setdefault("seen", [set() for _ in rows])
        for r, (at, on) in enumerate(zip(rows.cpu(), probed.cpu(), strict=True)):
            if epoch == 0:
                seen[r].update(at.tolist())
            held[0, r, at[on]] = length[r].cpu()[on].to(held)
            held[1, r, at[on]] = float(epoch)

    def _plan(self, epoch: int, own: Own) -> None:
        """At the start of an epoch: the donors, and after the probes the rows to poison."""
        own.memory["means"] = centres(own)
        if epoch < self.attack.start + self.attack.period or "lengths" not in own.memory:
            return
        if "chosen" in own.memory:
            return
        own.memory["telling"] = [
            sorted(own.memory["lengths"], key=lambda of: -self._gap(of, r, own))
            for r in range(len(own.memory["known"]))
        ]
        own.memory["chosen"] = [self._choice(r, own) for r in range(len(own.memory["known"]))]

    def _gap(self, of: Exchanged, r: int, own: Own) -> float:
        """How far gradients of known rows of the goal are from the other known rows' in one
        exchange: the squared distance of their means over the mean square; 0 where none came.
        """
        if len(own.memory["lengths"]) == 1:
            return 0.0
        kept = own.memory["kept"][of][r]
        members = set(own.memory["known"][r].of_class(self.attack.goal).tolist())
        on = torch.tensor([row in members for row in kept], dtype=torch.bool)
        if not bool(on.any()):
            return 0.0
        g = torch.stack(list(kept.values())).flatten(1).double().cpu()
        far = g[on].mean(0) - (g[~on].mean(0) if bool((~on).any()) else 0.0)
        return float((far.square().sum() / g.square().sum(1).mean()).nan_to_num())

    def _trigger(self, z: Tensor, own: Own) -> Tensor:
        """The trigger (R, ...) for embeddings (R, b, ...) of one exchange."""
        sd = z.flatten(2).std(1, correction=0)  # (R, d)
        top = sd.topk(min(self.attack.size, sd.shape[1]), dim=1)
        sign = torch.tensor([1.0, 1.0, -1.0, -1.0]).to(z).repeat(-(-top.indices.shape[1] // 4))
        sign = sign[: top.indices.shape[1]].expand_as(top.values)
        pulls = {of: p for of, p in own.memory["pull"].items() if p.shape[1:] == z.shape[2:]}
        if self.attack.signs == "gradient" and pulls:
            best = [next(of for of in by if of in pulls) for by in own.memory["telling"]]
            pull = torch.stack([pulls[of][r] for r, of in enumerate(best)])
            sign = pull.flatten(1).gather(1, top.indices).sign().to(z)
        trigger = torch.zeros_like(sd)
        trigger.scatter_(1, top.indices, self.attack.beta * top.values.mean(1, keepdim=True) * sign)
        return trigger.reshape(len(z), *z.shape[2:])

    def _choice(self, r: int, own: Own) -> Tensor:
        """Ids of the rows to poison in replica `r`, ascending: the known ones first."""
        count = math.ceil(self.attack.share * len(own.memory["seen"][r]))
        known = own.memory["known"][r].of_class(self.attack.goal).cpu()
        if not len(known):
            return known
        length, epoch = own.memory["lengths"][own.memory["telling"][r][0]][:, r]
        rows = (~length.isnan()).nonzero().squeeze(1)
        order = torch.argsort(standing(length[rows], epoch[rows]), stable=True)
        return torch.cat([known, rows[order]])[:count].sort().values

    def _poisoned(self, rows: Tensor, own: Own) -> Tensor:
        if "chosen" not in own.memory:
            return torch.zeros_like(rows, dtype=torch.bool)
        chosen = own.memory["chosen"]
        return torch.stack([torch.isin(of, c.to(of.device)) for of, c in zip(rows, chosen)])

    def _augmented(self, trigger: Tensor, own: Own, b: int) -> Tensor:
        """The trigger (R, ...) as it is added to each row of a batch, (R, b, ...)."""
        trigger = trigger.unsqueeze(1)
        low, high = self.attack.shift
        stays = own.rng.uniform((b, *trigger.shape[2:])) >= self.attack.dropout
        factor = low + (high - low) * own.rng.uniform((b, *([1] * (trigger.dim() - 2))))
        return trigger * (stays * factor).to(trigger)
