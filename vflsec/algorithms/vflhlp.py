"""VFLHLP: local pre-training of every party, then FedSplitNN held near what was learned.

Stage 1, no message: (a) the active party trains bottom and head on all rows it has labels for,
which gives Theta^1 and Theta^0; (b) each passive party pre-trains its bottom on all its rows
without labels by SCARF, and drops the projector. Stage 2: FedSplitNN on the aligned rows with the
active party's loss L + beta/2 (|theta^1 - Theta^1|^2 + |theta_s^0 - Theta^0|^2), where theta_s^0 is
what of the head's first layer acts on the active party's own embedding, with the bias. The active
party adds this term itself; it does not depend on the embeddings, so it changes no message.
Passive bottoms start from stage 1, the active party's models afresh (`warm_start` from stage 1).
Ablations: ``scarf = false`` is VFLHLP-A, ``constrain = false`` VFLHLP-P; both are FedSplitNN.

Messages: none in stage 1; in stage 2 those of FedSplitNN, so the gradients tell the passive parties
about the labels as they do there.

Source: "VFLHLP: vertical federated learning with hybrid local pre-training", arXiv (May 2024),
algorithm 1, eqs. 5-8; SCARF's settings from Bahri et al., arXiv:2106.15147, with early stopping
on a validation set that is corrupted once: here the passive party's own columns of the validation
rows. Neither beta nor any optimizer setting is published, so sweep beta on a log grid; the default
is the middle of 0.1, 1, 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import Exchange, SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.party import Party, group_parameters, step
from vflsec.core.rng import Streams
from vflsec.core.view import Facts
from vflsec.errors import PolicyError
from vflsec.nn import optim
from vflsec.nn.augment import Corruption
from vflsec.nn.manual_backprop import walked
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.nn.scarf import scarf_loss
from vflsec.plugins import registry

SUPERVISED = "supervised"


@registry.algorithm
@dataclass(frozen=True)
class VFLHLP(SplitNN):
    """Hyper-parameters beside those of FedSplitNN, which stages 1a and 2 use.

    Attributes:
        beta: weight of the constraint, a sum over parameters; 0 is none.
        constrain: False leaves stage 1a and the constraint out (VFLHLP-P).
        scarf: False leaves stage 1b out (VFLHLP-A).
        warm_start: True starts the active party's bottom and head columns at stage 1a's.
        corruption: share of a row's columns that SCARF replaces, in [0, 1]; SCARF: 0.6.
        temperature: tau > 0 of SCARF; SCARF: 1.
        projector: widths of the projector on top of a passive bottom.
        scarf_epochs, scarf_batch_size, scarf_lr: of stage 1b, Adam.
        scarf_patience: epochs without a lower SCARF loss on validation rows before stage 1b ends
            with its best epoch; 0 trains all epochs and keeps the last. SCARF: 3.
    """

    beta: check.NonNegative = 1.0
    constrain: bool = True
    scarf: bool = True
    warm_start: bool = False
    corruption: check.Unit = 0.6
    temperature: check.Positive = 1.0
    projector: tuple[check.Count, ...] = (64, 64)
    scarf_epochs: check.Count = 100
    scarf_batch_size: Annotated[int, check.at_least(2)] = 128
    scarf_lr: check.Positive = 1e-3
    scarf_patience: check.Whole = 3

    quantities: ClassVar[bool] = False
    label_holder: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.projector:
            raise check.fail(f"{self.name}.projector", "at least one width", self.projector)

    @property
    def supervised(self) -> bool:
        """True if stage 1a is of any use."""
        return (self.constrain and self.beta > 0) or self.warm_start

    def build(self, fed: Federation) -> None:
        super().build(fed)
        fed.extra["theta"] = []
        if self.supervised:
            alone = self._alone(fed)
            for part, module in alone.active.modules.items():
                fed.active.modules[f"local_{part}"] = module
            fed.extra["alone"] = alone
        if self.scarf:
            for party in self.passive(fed):
                self._projector(fed, party)

    @property
    def local(self) -> Local:
        """The active party's algorithm of stage 1a."""
        return Local(**{f.name: getattr(self, f.name) for f in fields(SplitNN)}, own_labels=True)

    def _alone(self, fed: Federation) -> Federation:
        """The active party by itself: the same data and policies, models of its own."""
        party = Party(fed.active.name, True, bindings=fed.active.bindings)
        alone = replace(fed, parties={party.name: party})
        self.local.build(alone)
        return alone

    def _projector(self, fed: Federation, party: Party) -> None:
        schema = fed.stack.first.schema[party.name]
        if not schema.cardinalities:
            raise check.fail(f"{self.name}.scarf", f"false: {party.name!r} has no table", True)
        width = self.width(party.name, fed.classes)
        fed.add(party.name, "projector", lambda: mlp([width, *self.projector]))

    def phases(self, fed: Federation) -> list[Phase]:
        (train,) = super().phases(fed)
        train = replace(train, before=lambda: self._begin(fed))
        first = [self._supervised(fed)] if self.supervised else []
        pre = [self._scarf(fed, p) for p in self.passive(fed)] if self.scarf else []
        return [*first, *pre, train]

    def _supervised(self, fed: Federation) -> Phase:
        """Stage 1a: ``local`` on all rows of the active party that have a label."""
        (alone,) = self.local.phases(fed.extra["alone"])
        return replace(alone, name=SUPERVISED, passes=alone.walks(), audited=False, predicts=False)

    def _scarf(self, fed: Federation, party: Party) -> Phase:
        """Stage 1b of one passive party, on all its rows."""
        for b in party.bindings:
            if b.policy.overrides("gradients"):
                raise PolicyError(
                    f"{b.policy.name}: SCARF couples the rows of a batch, so gradients of rows of "
                    f"{party.name!r} cannot be limited. Set scarf = false, or leave it out."
                )
        rows = fed.stack.rows(f"local:{party.name}")
        corrupt = self._corruption(fed, party, "scarf")
        bottom, head = party.modules["bottom"], party.modules["projector"]
        params = [*bottom.parameters(), *head.parameters()]
        optimizer = optim.Adam(group_parameters(params), lr=self.scarf_lr)
        held = self._held_out(fed, party) if self.scarf_patience else []
        party.note_unprotected("pre-training")

        def one(batch: Tensor) -> None:
            x = fed.columns(party.name, batch)
            loss = scarf_loss(head(bottom(x)), head(bottom(corrupt(x))), self.temperature)
            step(optimizer, params, torch.autograd.grad(loss.sum(), params))

        def regret() -> Tensor:
            pairs = [[head(bottom(v, train=False), train=False) for v in pair] for pair in held]
            losses = [scarf_loss(z, other, self.temperature) for z, other in pairs]
            return torch.stack(losses).mean(0)

        name, size = f"scarf:{party.name}", self.scarf_batch_size
        return Phase(
            name, rows, size, self.scarf_epochs, one, audited=False, predicts=False,
            judged={party.name: regret} if held else {}, patience=self.scarf_patience,
            passes=(Pass(name, rows, size, one, smallest=2),),
        )  # fmt: skip

    def _corruption(self, fed: Federation, party: Party, stream: str) -> Corruption:
        rng = Streams(fed.seeds, stream, party.name, device=fed.stack.device, dtype=fed.stack.dtype)
        pool = fed.stack.columns(party.name, fed.stack.rows(f"local:{party.name}"))
        schema = fed.stack.first.schema[party.name]
        return Corruption(schema, pool, self.corruption, "marginal", rng)

    def _held_out(self, fed: Federation, party: Party) -> list[tuple[Tensor, Tensor]]:
        """Batches of the party's own columns of the validation rows, clean and corrupted once."""
        corrupt = self._corruption(fed, party, "scarf_validation")
        batches = fed.stack.rows("validation").split(self.scarf_batch_size, dim=1)
        whole = batches[:-1] if len(batches) > 1 else batches  # the loss depends on the batch
        clean = [fed.stack.columns(party.name, b) for b in whole]
        return [(x, corrupt(x)) for x in clean]

    def _begin(self, fed: Federation) -> None:
        """Before stage 2: keep Theta as constants, drop what served stage 1."""
        for party in self.passive(fed):
            party.modules.pop("projector", None)
        mine = fed.active.modules
        stage1 = {
            part: module
            for part in ("bottom", "top")
            if (module := mine.pop(f"local_{part}", None)) is not None
        }
        pairs = [*_bottoms(mine, stage1), *self._heads(mine, stage1)] if stage1 else []
        if self.warm_start:
            with torch.no_grad():
                for now, target in pairs:
                    now().copy_(target)
        fed.extra["theta"] = pairs if self.constrain and self.beta > 0 else []

    def _heads(
        self, mine: dict[str, Replicas], stage1: dict[str, Replicas]
    ) -> list[tuple[Callable[[], Tensor], Tensor]]:
        """theta_s^0 and Theta^0: the head's first layer, as far as it acts on the own embedding."""
        if not self.has_top:
            return []
        top, reference = mine["top"].params, stage1["top"].params
        if "0.weight" not in top or "0.weight" not in reference:
            raise PolicyError(
                f"{self.name}: a defense replaced the head's first layer, which is constrained. "
                "Set constrain = false, or leave the defense out."
            )
        own = reference["0.weight"].shape[2]
        return [
            (lambda: top["0.weight"][:, :, :own], reference["0.weight"].detach().clone()),
            (lambda: top["0.bias"], reference["0.bias"].detach().clone()),
        ]

    @walked
    def own_term(self, fed: Federation) -> Tensor | None:
        """beta L_cons, (R,)."""
        pairs = fed.extra["theta"]
        if not pairs:
            return None
        squares = [(now() - target).flatten(1).square().sum(1) for now, target in pairs]
        return 0.5 * self.beta * torch.stack(squares).sum(0)

    def own_rows(self, fed: Federation, batch: Exchange) -> list[Tensor]:
        if fed.extra["theta"]:
            raise PolicyError(
                f"{self.name}: the constraint is no sum over rows, so gradients of rows cannot be "
                "limited. Set constrain = false, or leave the defense out."
            )
        return super().own_rows(fed, batch)

    @torch.no_grad()
    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        if fed.phase == SUPERVISED:
            return self.local.predict(fed.extra["alone"], rows)
        return super().predict(fed, rows)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        facts = super().planned_facts(active, parties, classes)
        known = {"scarf": self.scarf, "beta": self.beta if self.constrain else 0.0}
        return replace(facts, extra={**facts.extra, **known})


def _bottoms(
    mine: dict[str, Replicas], stage1: dict[str, Replicas]
) -> list[tuple[Callable[[], Tensor], Tensor]]:
    """theta^1 and Theta^1, parameter by parameter."""
    params = mine["bottom"].params
    return [
        (partial(params.__getitem__, key), target.detach().clone())
        for key, target in stage1["bottom"].params.items()
        if target.requires_grad
    ]
