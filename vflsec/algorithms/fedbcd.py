"""FedBCD: FedSplitNN with Q local updates for every exchange.

One round on a batch: embeddings go up and their gradients G^k go down once, as in FedSplitNN; then
every party makes Q updates without a word. Passive party k recomputes its embedding with its
current weights and continues the backward pass of the *stale* G^k; the active party recomputes its
own embedding and the loss with its current weights and the *stale* embeddings of the others.
In the parallel form all parties start from the same exchange; in the sequential form the active
party makes its Q updates first and sends the gradients of the last one. With Q = 1 both are
FedSplitNN, bit for bit. A proximal term mu (theta - theta_ref) may be added from the second update
on, with theta_ref the weights after the first.

Messages a round and passive party: those of one FedSplitNN step, so 1/Q as many an update; each
message says as much about the labels as there. This is the stale-gradient form; the authors'
Taylor-loss form, in which the active party sends label-dependent terms in clear, is left out.

Source: Liu, Zhang, Kang et al., "FedBCD: A communication-efficient collaborative learning framework
for distributed features", arXiv:1912.11187 (2019); proximal term from its public code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from vflsec.algorithms.splitnn import Exchange, SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation
from vflsec.core.party import Party
from vflsec.core.view import Facts
from vflsec.errors import PolicyError
from vflsec.nn.manual_backprop import walked
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FedBCD(SplitNN):
    """Hyper-parameters beside those of FedSplitNN; an epoch is one pass of rounds.

    Attributes:
        local_updates: Q >= 1, updates of every party for one exchange.
        order: ``parallel`` or ``sequential``.
        proximal: mu >= 0, weight of the pull towards the weights after a round's first update.
    """

    local_updates: check.Count = 5
    order: Annotated[str, check.among("parallel", "sequential")] = "parallel"
    proximal: check.NonNegative = 0.0

    @walked
    def step(self, fed: Federation, rows: Tensor) -> None:
        """One round on sample ids (R, b)."""
        batch = self.up(fed, rows)
        more = self.local_updates - 1
        own, cut = self.differentiate(fed, batch)
        if self.order == "parallel":
            self.down(fed, batch, cut)
        if fed.active.optimizer is None:
            more = 0  # a label holder without a model: nothing changes between exchanges
        else:
            fed.active.update(own, rows=lambda: self.own_rows(fed, batch), ids=rows)
        pull = _Proximal(fed.active, self.proximal)
        for _ in range(more):
            cut = self._active_again(fed, batch, pull)
        if self.order == "sequential":
            self.down(fed, batch, cut)
        pulls = {p.name: _Proximal(p, self.proximal) for p in self.passive(fed)}
        for _ in range(more):
            for party in self.passive(fed):
                self._passive_again(fed, party, batch, pulls[party.name])

    def _active_again(self, fed: Federation, batch: Exchange, pull: _Proximal) -> Any:
        """One more update with a fresh own embedding; returns the embeddings' gradients."""
        active = fed.active
        if active in self.holders(fed):
            batch.got[active.name] = active.run("bottom", batch.x[active.name], self)
        own, cut = self.differentiate(fed, batch)
        rows = None if self.proximal else partial(self.own_rows, fed, batch)
        active.update(pull(own), rows=rows, ids=batch.rows)
        return cut

    def _passive_again(
        self, fed: Federation, party: Party, batch: Exchange, pull: _Proximal
    ) -> None:
        """One more update with a fresh embedding and the stale gradient."""
        x = batch.x[party.name]
        z = party.run("bottom", x, self)
        penalty = fed.penalty(party.name, x, {party.name: z}, None)
        if party.name not in batch.gradients:
            raise PolicyError(f"{self.name}: {party.name} needs gradients by row. Use splitnn.")
        gradient = batch.gradients[party.name]
        if self.proximal:
            party.continue_backward(z, gradient, penalty, pull)
        else:
            party.continue_backward(z, gradient, penalty, x=x, ids=batch.rows)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        facts = super().planned_facts(active, parties, classes)
        known = {"local_updates": self.local_updates, "order": self.order}
        return replace(facts, extra={**facts.extra, **known})


class _Proximal:
    """Adds mu (theta - theta_ref) to gradients, with theta_ref the weights at construction."""

    def __init__(self, party: Party, mu: float) -> None:
        self.mu, self.now = mu, party.parameters()
        self.reference = [p.detach().clone() for p in self.now] if mu else []

    def __call__(self, gradients: Any) -> Any:
        if not self.mu:
            return gradients
        with torch.no_grad():
            return [
                g + self.mu * (p - r)
                for g, p, r in zip(gradients, self.now, self.reference, strict=True)
            ]
