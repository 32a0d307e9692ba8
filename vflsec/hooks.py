"""Where a party's own policies act on what it owns: columns, labels, loss, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from vflsec.binding import Binding
from vflsec.counts import Guarded, heard, lent, plain
from vflsec.nn import chain
from vflsec.nn.loss import cross_entropy, slope
from vflsec.party import Party
from vflsec.task import Stack

__all__ = ["Hooks", "cross_entropy"]


class Hooks:
    """The half of a :class:`vflsec.federation.Federation` that asks policies about own things."""

    stack: Stack
    parties: dict[str, Party]
    labels: Tensor
    phase: str
    epoch: int
    attacked: str

    @cached_property
    def active(self) -> Party:
        """The party that holds the labels."""
        return self.parties[self.stack.first.active]

    def columns(self, party: str, rows: Tensor, *, train: bool = True) -> Tensor:
        """Own input rows (R, b, ...) of a party for ids (R, b), after its column policies."""
        x = self.stack.columns(party, rows)
        if train or self.attacked == party:
            for b in self.parties[party].bindings:
                if b.policy.overrides("columns"):
                    b.own.context = {"rows": rows, "schema": self.stack.first.schema[party]}
                    hook = partial(b.policy.columns, x, b.own)
                    x = b.treated("columns", x, hook, self.phase, self.epoch)
        return x

    def targets(self, rows: Tensor) -> Tensor:
        """What the active party trains on for sample ids (R, b): (R, b) or (R, b, C).

        To be handed to :meth:`losses`. Where a policy claims something of the loss alone, any other
        use is noted and ends its claim.
        """
        index = rows if self.labels.dim() == 2 else rows.unsqueeze(-1)
        if self.labels.dim() == 3:
            index = index.expand(-1, -1, self.labels.shape[2])
        y = self.labels.gather(1, index)
        counters = tuple(b.own.uses for b in self._by_loss() if b.own.uses is not None)
        silent = self.stack.silent(rows)
        guarded = counters or silent is not None
        return Guarded.over(y, rows, counters, silent) if guarded else y

    def _by_loss(self) -> list[Binding]:
        """The active party's policies that protect labels by the loss alone."""
        return [b for b in self.active.bindings if b.policy.counted == "loss"]

    def loss(self, logits: Tensor, y: Tensor, *, train: bool = True) -> Tensor:
        """Mean of :meth:`losses` over a batch, by replica, (R,)."""
        return self.losses(logits, y, train=train).mean(1)

    def losses(self, logits: Tensor, y: Tensor, *, train: bool = True) -> Tensor:
        """Loss of each row, (R, b): cross entropy, or what the active party's policy says.

        `logits` (R, b, C); `y` (R, b) int64 or (R, b, C) class shares. Of a quantity the squared
        error, of several labels the mean of their binary cross entropies.
        """
        given, y = y, plain(y)
        for b in self.active.bindings:
            if b.policy.overrides("loss"):
                b.own.context = {"train": train}
                rows = b.policy.loss(logits, y, b.own)
                if rows is not None:
                    b.acted = True
                    self._count_loss(given, b, train)
                    return heard(rows, given)
        self._count_loss(given, None, train)
        return heard(self.stack.first.label.losses(logits, y), given)

    def descend(
        self, logits: Tensor, y: Tensor, terms: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradients of :meth:`loss` and further terms (R,), summed over replicas, of `wanted`."""
        if not chain.noted(logits):
            total = self.loss(logits, y).sum()
            for term in terms:
                total = total + term.sum()
            return list(torch.autograd.grad(total, list(wanted)))
        if y.dim() == 2 and not isinstance(y, Guarded):
            start = slope(logits, y)
        else:
            leaf = logits.detach().requires_grad_()
            (start,) = torch.autograd.grad(self.loss(leaf, y).sum(), leaf)
        grads = list(chain.slopes(logits, wanted, start))
        for term in terms:
            more = torch.autograd.grad(term.sum(), list(wanted), allow_unused=True)
            grads = [g if m is None else g + m for g, m in zip(grads, more, strict=True)]
        return grads

    def _count_loss(self, y: Tensor, by: Binding | None, train: bool) -> None:
        """Labels were used by the loss of `by`, or by plain cross entropy."""
        for b in self._by_loss() if isinstance(y, Guarded) else ():
            assert isinstance(y, Guarded)
            assert b.own.uses is not None
            if b is by:
                b.own.uses.add(y.rows, "" if train else "validation")
            else:
                b.own.uses.passed("another loss than its own uses the labels")

    def decode(self, logits: Tensor) -> Tensor:
        """Logits (R, b, C) as the active party uses them for prediction, after its policies."""
        for b in reversed(self.active.bindings):
            if b.policy.overrides("decode"):
                hook = partial(b.policy.decode, logits, b.own)
                logits = b.treated("predictions", logits, hook, self.phase)
        return logits

    def penalty(
        self, party: str, x: Tensor, h: dict[str, Tensor], y: Tensor | None
    ) -> Tensor | None:
        """The sum of a party's penalty terms (R,), or None."""
        total: Tensor | None = None
        rows = y.rows if isinstance(y, Guarded) else None
        for b in self.parties[party].bindings:
            if b.policy.overrides("penalty"):
                term = b.policy.penalty(x, h, lent(y, rows, b.own.active), b.own)
                if term is not None:
                    b.acted = True
                    total = term if total is None else total + term
        return total
