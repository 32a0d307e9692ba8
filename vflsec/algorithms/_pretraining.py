"""Self-supervised pre-training of the FedHSSL family: the steps, whoever combines them.

A global iteration has up to three steps. (1) Cross-party: on every aligned batch the parties
exchange their projections z_c and pull their predictions towards the others'. (2) Local, guided:
every party trains its local tower on all its rows with two views of a row, and pulls it towards its
own frozen cross tower by gamma. (3) Partial model aggregation (PMA): the tops of the local towers
and their heads are averaged. No label is used anywhere.

Source: He, Kang et al., arXiv:2208.08934 (2022), algorithm 1, eqs. 3-6, appendix A, and its public
code where the paper is silent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vflsec.core.federation import Federation
from vflsec.core.party import Party, clip_gradients, group_parameters, step
from vflsec.nn import optim
from vflsec.nn.augment import Corruption, ImageViews
from vflsec.nn.replicas import Replicas
from vflsec.nn.ssl import Queue, byol_distance, ema, info_nce, negative_cosine, nt_xent


@dataclass(frozen=True)
class Recipe:
    """What is done in pre-training; see the algorithms for the meaning of the fields."""

    ssl: str
    byol_form: str
    temperature: float
    lr: float
    optimizer: str
    momentum: float
    weight_decay: float
    schedule: str
    iterations: int
    local_updates: int = 1
    views: str = "one"
    ema: float = 0.0
    clip_norm: float = 0.0
    gamma: float = 0.0
    guide_mode: str = "eval"
    guidance_queue: str = "none"
    average: tuple[str, ...] = ()
    average_buffers: bool = True
    average_ema: bool = False
    reset_momentum: bool = False
    server: str = "active"


@dataclass
class Tower:
    """Encoder, projector and predictor of one party, and their optimizers."""

    encoder: Replicas
    projector: Replicas
    predictor: Replicas | None
    optimizers: list[tuple[Any, list[Tensor]]] = field(default_factory=list)

    @property
    def params(self) -> list[Tensor]:
        """Trainable tensors in a fixed order: encoder, projector, predictor."""
        heads = [self.projector, *([self.predictor] if self.predictor else [])]
        return [p for m in (self.encoder, *heads) for p in m.parameters()]

    def project(self, x: Tensor, *, train: bool = True) -> Tensor:
        """Rows (R, b, ...) -> projections z (R, b, D)."""
        return self.projector(self.encoder(x, train=train), train=train)

    def predict(self, z: Tensor) -> Tensor:
        """Projections -> predictions p (R, b, D); the identity without a predictor."""
        return z if self.predictor is None else self.predictor(z)

    def start(self, party: Party, recipe: Recipe) -> None:
        """Fresh optimizers; the predictor's learning rate stays constant."""
        party.note_unprotected("pre-training")
        predictor = self.predictor.parameters() if self.predictor else []
        body, heads = self.encoder.parameters(), self.projector.parameters()
        if recipe.optimizer == "adagrad":  # for click data: heads keep SGD
            parts = [("adagrad", body, []), ("sgd", heads, predictor)]
        else:
            parts = [(recipe.optimizer, [*body, *heads], predictor)]
        for name, annealed, constant in parts:
            made = _optimizer(name, annealed, constant, recipe)
            self.optimizers.append((party.wrap(made), [*annealed, *constant]))

    def update(self, loss: Tensor, clip_norm: float = 0.0) -> None:
        """One step on a loss (R,); with `clip_norm` each replica's gradient is clipped."""
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss.sum(), self.params)
        if clip_norm:
            grads = clip_gradients(grads, clip_norm)
        of = {id(p): g for p, g in zip(self.params, grads, strict=True)}
        for made, params in self.optimizers:
            step(made, params, [of[id(p)] for p in params])

    def anneal(self, factor: float) -> None:
        """Set the learning rates that are annealed to `factor` of where they started."""
        for made, _ in self.optimizers:
            for group in getattr(made, "param_groups", ()):
                if group.get("annealed"):
                    group["lr"] = group["start"] * factor


def _optimizer(name: str, annealed: list[Tensor], constant: list[Tensor], recipe: Recipe) -> Any:
    made = []
    for params, flag in ((annealed, True), (constant, False)):
        own = {"annealed": flag, "start": recipe.lr}
        if name == "adagrad":
            made += [{"params": params, **own}] if params else []
        else:
            made += group_parameters(params, **own)
    decay = recipe.weight_decay
    if name == "adam":
        return optim.Adam(made, lr=recipe.lr, weight_decay=decay)
    if name == "adagrad":
        return optim.Adagrad(made, lr=recipe.lr, weight_decay=decay)
    return optim.SGD(made, lr=recipe.lr, momentum=recipe.momentum, weight_decay=decay)


@dataclass
class Member:
    """One party in pre-training.

    Attributes:
        party: it.
        cross, local: its towers; None where the method has none.
        augment: rows (R, b, ...) -> a random view of them.
        target: the moving average of the local tower (BYOL, MoCo), without a predictor.
        queues: MoCo's keys, one queue a direction.
    """

    party: Party
    cross: Tower | None = None
    local: Tower | None = None
    augment: Corruption | ImageViews | None = None
    target: Tower | None = None
    queues: tuple[Queue, Queue] | None = None


class Pretraining:
    """The steps over all members, the active party first."""

    def __init__(self, fed: Federation, recipe: Recipe, members: list[Member]) -> None:
        self.fed, self.recipe, self.members = fed, recipe, members
        for m in members:
            for tower in (m.cross, m.local):
                if tower is not None:
                    tower.start(m.party, recipe)

    def similarity(self, p: Tensor, z: Tensor) -> Tensor:
        """How far predictions (R, b, D) are from constant targets, (R,)."""
        if self.recipe.ssl == "byol" and self.recipe.byol_form == "distance":
            return byol_distance(p, z)
        return negative_cosine(p, z)

    def cross_step(self, rows: Tensor) -> None:
        """One exchange on aligned rows (R, b), then `local_updates` updates on it (eq. 5).

        All projections are computed before any update; what was received is a constant.
        """
        fed, active = self.fed, self.members[0].party.name
        x, own = {}, {}
        for m in self.members:
            assert m.cross is not None
            name = m.party.name
            if name != active:
                fed.send("ids", active, name, rows, rows, name="batch")
            x[name] = fed.columns(name, rows)
            own[name] = m.cross.project(x[name])
        received: dict[str, list[Tensor]] = {active: []}
        for m in self.members[1:]:
            name = m.party.name
            received[name] = [fed.send("embedding", active, name, own[active], rows, name="cross")]
            received[active].append(
                fed.send("embedding", name, active, own[name], rows, name="cross")
            )
        for m in self.members:
            assert m.cross is not None
            name = m.party.name
            for e in range(self.recipe.local_updates):
                z = own[name] if e == 0 else m.cross.project(x[name])
                m.cross.update(self.cross_loss(m.cross, z, received[name]))

    def cross_loss(self, tower: Tower, z: Tensor, received: list[Tensor]) -> Tensor:
        """The mean over received projections, (R,). With MoCo this is NT-Xent within the batch."""
        if self.recipe.ssl == "moco":
            terms = [nt_xent(z, other, self.recipe.temperature) for other in received]
        else:
            p = tower.predict(z)
            terms = [self.similarity(p, other) for other in received]
        return torch.stack(terms).sum(0) / len(terms)

    def local_step(self, m: Member, rows: Tensor) -> None:
        """One update of a local tower on own rows (R, b) (eq. 6)."""
        assert m.local is not None
        assert m.augment is not None
        x = self.fed.columns(m.party.name, rows)
        both = self.recipe.views == "both" or isinstance(m.augment, ImageViews)
        views = (m.augment(x) if both else x, m.augment(x))
        m.local.update(self.local_loss(m, views), self.recipe.clip_norm)

    def local_loss(self, m: Member, views: tuple[Tensor, Tensor]) -> Tensor:
        """The symmetrised loss of two views plus gamma times the guidance, (R,)."""
        assert m.local is not None
        if m.target is not None:
            ema(m.target.encoder, m.local.encoder, self.recipe.ema)
            ema(m.target.projector, m.local.projector, self.recipe.ema)
        z = [m.local.project(v) for v in views]
        if m.target is None:
            targets = z
        else:
            with torch.no_grad():
                targets = [m.target.project(v) for v in views]
        p = [m.local.predict(value) for value in z]
        if m.queues is not None:
            tau = self.recipe.temperature
            loss = 0.5 * (
                info_nce(p[0], targets[1], m.queues[0].keys, tau)
                + info_nce(p[1], targets[0], m.queues[1].keys, tau)
            )
        else:
            loss = 0.5 * (self.similarity(p[0], targets[1]) + self.similarity(p[1], targets[0]))
        if self.recipe.gamma:
            loss = loss + self.recipe.gamma * self._guidance(m, views, p)
        if m.queues is not None:
            m.queues[0].push(targets[1])
            m.queues[1].push(targets[0])
        return loss

    def _guidance(self, m: Member, views: tuple[Tensor, Tensor], p: list[Tensor]) -> Tensor:
        """The pull towards the own cross tower on the same views; that tower is frozen."""
        assert m.cross is not None
        with torch.no_grad():
            train = self.recipe.guide_mode == "train"
            guides = [m.cross.project(v, train=train) for v in views]
        if self.recipe.ssl != "moco":
            terms = [self.similarity(a, g) for a, g in zip(p, guides, strict=True)]
        elif self.recipe.guidance_queue == "none":
            tau = self.recipe.temperature
            terms = [nt_xent(a, g, tau) for a, g in zip(p, guides, strict=True)]
        else:
            assert m.queues is not None
            terms = []
            for a, g, queue in zip(p, guides, m.queues, strict=True):
                terms.append(info_nce(a, g, queue.keys, self.recipe.temperature))
                queue.push(g)
        return terms[0] + terms[1]

    def after_iteration(self, iteration: int) -> None:
        """PMA, then the learning rates of the next global iteration."""
        if self.recipe.average and len(self.members) > 1:
            self.aggregate()
        if self.recipe.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * (iteration + 1) / self.recipe.iterations))
            for m in self.members:
                for tower in (m.cross, m.local):
                    if tower is not None:
                        tower.anneal(factor)

    def aggregate(self) -> None:
        """Average the shared parts of all local towers through the server."""
        shared = {m.party.name: self._shared(m) for m in self.members}
        first = next(iter(shared.values()))
        for part, stack in first.items():
            for name in stack.params:
                tensors = {p: parts[part].params[name] for p, parts in shared.items()}
                self._spread(tensors, self._mean(tensors, "parameters"), "parameters")
        if self.recipe.average_buffers:
            self._average_buffers(shared)
        for m in self.members:
            self._after_average(m)

    def _shared(self, m: Member) -> dict[str, Replicas]:
        assert m.local is not None
        there = {
            "top": m.local.encoder.sub("top"),
            "projector": m.local.projector,
            "predictor": m.local.predictor,
        }
        return {k: v for k in self.recipe.average if (v := there[k]) is not None}

    def _mean(self, tensors: dict[str, Tensor], name: str) -> Tensor:
        """What the server has after all parties sent theirs, in party order."""
        server = self._server
        total: Tensor | None = None
        for party, own in tensors.items():
            value = own.detach()
            if party != server:  # a copy: the party goes on training its own
                value = self.fed.send("state", party, server, value.clone(), name=name)
            total = value if total is None else total + value
        assert total is not None
        return total / len(tensors)

    @property
    def _server(self) -> str:
        active = self.members[0].party.name
        return active if self.recipe.server == "active" else "server"

    @torch.no_grad()
    def _spread(self, tensors: dict[str, Tensor], mean: Tensor, name: str) -> None:
        server = self._server
        for party, own in tensors.items():
            sends = party != server
            own.copy_(self.fed.send("state", server, party, mean, name=name) if sends else mean)

    @torch.no_grad()
    def _average_buffers(self, shared: dict[str, dict[str, Replicas]]) -> None:
        """Running statistics and counters travel as one vector; counters come back as integers."""
        buffers = {
            party: [b for stack in parts.values() for b in stack.buffers.values()]
            for party, parts in shared.items()
        }
        dtype = self.fed.stack.dtype
        if not next(iter(buffers.values())):
            return
        flat = {party: _flat(own, dtype) for party, own in buffers.items()}
        self._spread(flat, self._mean(flat, "buffers"), "buffers")
        for party, vector in flat.items():
            sizes = [b[0].numel() for b in buffers[party]]
            for b, part in zip(buffers[party], vector.split(sizes, dim=1), strict=True):
                b.copy_((part if b.is_floating_point() else part.round()).reshape(b.shape))

    def _after_average(self, m: Member) -> None:
        assert m.local is not None
        if self.recipe.average_ema and m.target is not None:
            shared = {"top": m.target.encoder.sub("top"), "projector": m.target.projector}
            for part, mine in self._shared(m).items():
                if part in shared:
                    ema(shared[part], mine, 0.0)
        if self.recipe.reset_momentum:
            averaged = {id(p) for s in self._shared(m).values() for p in s.params.values()}
            for made, params in m.local.optimizers:
                for p in params:
                    if id(p) in averaged:
                        made.state.pop(p, None)


def _flat(buffers: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Buffers (R, ...) side by side as one (R, n) tensor."""
    return torch.cat([b.reshape(len(b), -1).to(dtype) for b in buffers], dim=1)
