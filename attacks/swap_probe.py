"""Swapped embeddings: a row's gradient is short if the foreign embedding sent for it has its label.

In each epoch from `start` on, the attacker sends for one row in `period` not its own embedding but
the mean of those that known rows of one class c had in the epoch before. The prediction is pushed
to c, and the gradient that comes back is |p - y| long: short if the row is of class c, long if not.
    s_ic = - mean over probes of row i with c of log |g|, less the mean of the same epoch and c
Score of class c: s_ic, 0 where never probed. Classes take turns, so a row needs C probes for all.
The plain length is used: its ratio to the length without a swap ranks worse, because the latter
tells how well the row was fitted, which is no secret. Gradients of swapped rows do not reach the
own model.

Attacker: a malicious passive party in training, which alters one row in `period`. Needs received
gradients per row and at least one known row; with balanced classes too, where lengths alone say
nothing. Known rows are neither swapped nor scored.
Known failure cases: noise that makes all gradients of a batch equally long (iso, max_norm); an
active party whose own columns decide, as the swap then moves little; a check of embeddings against
those of similar rows; early stopping before every row had its turn.

Source: Bai, Chen, Zhang, Zhang, Weng, "VILLAIN: Backdoor attacks against vertical split learning",
USENIX Security 2023, section on label inference by embedding swapping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vflsec.attacks.replay import keep
from vflsec.core.exchange_order import Exchanged, exchange
from vflsec.inference.clustering_points import Points
from vflsec.nn.rows import sums, widen
from vflsec.plugin import Attack, Guess, Known, Message, Own, Policy, View, check, registry

ALIASES = ("embedding_swap", "villain_labels")
FAMILY = "swapped_embeddings"


@registry.attack
@dataclass(frozen=True)
class SwapProbe(Attack):
    """Hyper-parameters.

    Attributes:
        start: first epoch, from 0, in which rows are swapped; known rows are seen before.
        period: one row in so many is swapped in an epoch; after so many epochs each was once.
    """

    start: check.Count = 1
    period: check.Count = 5
    needs = frozenset({"gradient:all", "known_rows"})
    world = {"patience": 0}

    def policy(self) -> Policy:
        return Swap(self.start, self.period)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known = view.require_known()
        table = view.received("gradient", "all")
        donor = donors(table.rows, table.epoch, known, self.start, self.period)
        length = torch.linalg.vector_norm(table.tensor.flatten(1).double(), dim=1)
        rows, place = table.rows.unique(return_inverse=True)
        scores = torch.zeros(len(rows), view.facts.classes, dtype=torch.float64).to(length.device)
        for c in known.labels.unique().tolist():
            at = donor == c
            total = sums(standing(length[at], table.epoch[at]), place[at], len(rows))
            times = torch.bincount(place[at], minlength=len(rows))
            scores[:, c] = -total / times.clamp_min(1)
        rest = Points(rows, scores).without(known.rows)
        probed = torch.isin(rest.rows, table.rows[donor >= 0]).double()
        notes = {"probed": round(float(probed.mean()), 4) if len(probed) else 0.0}
        return Guess(self.target, rest.rows, np.asarray(rest.x.cpu()), notes=notes)


def donors(
    rows: Tensor, epoch: Tensor | int, known: Known, start: int, period: int,
    classes: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The class whose embedding each row (n,) carries in an epoch, or -1 for its own; (n,) int64.

    A fixed function of row id and epoch, so that policy and inference need not speak.

    Args:
        epoch: of each row (n,), or of all.
        known: the grant; its rows are never swapped.
        start, period: see :class:`SwapProbe`.
        classes: which take turns; by default those of which a row is known.
    """
    classes = (known.labels.unique() if classes is None else classes).to(rows.device)
    turn = torch.as_tensor(epoch, device=rows.device) - start
    spread = (rows * 2654435761) % 10007
    due = (turn >= 0) & (spread % period == turn % period)
    due &= ~torch.isin(rows, known.rows.to(rows.device))
    if not len(classes):
        return torch.full_like(rows, -1)
    whose = classes[(spread // period + turn.clamp_min(0) // period) % len(classes)]
    return torch.where(due, whose, torch.full_like(rows, -1))


def standing(length: Tensor, epoch: Tensor) -> Tensor:
    """Log lengths (n,) less the mean of those of the same epoch (n,).

    Not the median: where lengths lie in two heaps it is now in one of them, now in the other.
    """
    out = torch.zeros_like(length)
    for e in epoch.unique():
        there = length[epoch == e]
        logs = there.clamp_min(max(1e-6 * float(there.max()), 1e-30)).log()
        out[epoch == e] = logs - logs.mean()
    return out


def centres(own: Own) -> dict[Exchanged, list[dict[int, Tensor]]]:
    """The mean embedding of the known rows of each class, by exchange and replica, of what was
    kept.
    """
    out: dict[Exchanged, list[dict[int, Tensor]]] = {}
    for of, replicas in own.memory.get("kept", {}).items():
        for kept, known in zip(replicas, own.memory["known"], strict=True):
            by: dict[int, list[Tensor]] = {}
            for row, label in zip(known.rows.tolist(), known.labels.tolist(), strict=True):
                if row in kept:
                    by.setdefault(label, []).append(kept[row])
            means = {c: torch.stack(found).mean(0) for c, found in by.items()}
            out.setdefault(of, []).append(means)
    return out


def swapped(z: Tensor, which: Tensor, means: list[dict[int, Tensor]]) -> Tensor:
    """Embeddings (R, b, d), those of class c in `which` (R, b) replaced by the class's mean."""
    out = z.clone()
    for r, by in enumerate(means):
        for c, mean in by.items():
            out[r, which[r] == c] = mean.to(z)
    return out


def without(g: Tensor, rows: Tensor) -> Tensor:
    """Gradients (R, b, ...) with those of `rows` (R, b) set to zero."""
    return g.masked_fill(widen(rows, g), 0.0)


@dataclass(frozen=True)
class Swap(Policy):
    """Swaps embeddings by the timetable of :func:`donors`, and learns nothing from what returns."""

    start: int
    period: int
    covers = frozenset({"embedding"})
    owner = "passive"

    def outgoing(self, message: Message, own: Own) -> Tensor:
        z, rows = message.tensor, message.rows
        if rows is None or message.phase == "predict":
            return z
        when = (message.phase, message.epoch)
        if own.memory.get("when") != when:
            own.memory["means"] = centres(own)
            own.memory["when"] = when
        of = exchange(own.memory, message)
        keep(own, z, rows, None, of)
        means = own.memory["means"].get(of, [])
        return own.choose(swapped(z, self._which(rows, message, own), means), z)

    def incoming(self, message: Message, own: Own) -> Tensor:
        if message.kind != "gradient" or message.rows is None or "means" not in own.memory:
            return message.tensor
        away = self._which(message.rows, message, own) >= 0
        return own.choose(without(message.tensor, away), message.tensor)

    def _which(self, rows: Tensor, message: Message, own: Own) -> Tensor:
        return torch.stack(
            [
                donors(of, message.epoch, known, self.start, self.period)
                for of, known in zip(rows, own.memory["known"], strict=True)
            ]
        )
