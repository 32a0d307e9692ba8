"""One participant: its own modules, its own optimizer, its own policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vflsec.core.policy_binding import Binding
from vflsec.errors import PolicyError
from vflsec.nn import manual_backprop, optim
from vflsec.nn.flat_parameters import LANES, find_blocks
from vflsec.nn.replicas import Replicas
from vflsec.nn.rows import widen
from vflsec.nn.rowwise import row_gradients, split_rows

GRAPH = ("loss", "penalty", "link")
"""Hooks of policies that work on the graph of a step."""


@dataclass
class Party:
    """What one party owns during a run.

    Attributes:
        name: of the party.
        active: True if it holds the labels.
        modules: its stacked modules by part (``bottom``, ``top``, ...).
        bindings: its policies at work, in order.
        optimizer: its optimizer; made by :meth:`start`.
        clip_norm: largest norm of the gradients of one :meth:`update` together, by replica;
            0 = no limit.
        observer: told the gradients and the weights by name before every step; None if nobody
            asked to record them.
        unprotected: own training that no policy of gradients saw, in words.
    """

    name: str
    active: bool
    modules: dict[str, Replicas] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    optimizer: Any = None
    clip_norm: float = 0.0
    observer: Callable[[dict[str, Tensor], dict[str, Tensor]], None] | None = None
    unprotected: list[str] = field(default_factory=list)

    def parameters(self, parts: Sequence[str] | None = None) -> list[Tensor]:
        """Trainable stacked tensors of all (or the given) parts, in a fixed order."""
        chosen = self.modules if parts is None else parts
        return [p for part in chosen for p in self.modules[part].parameters()]

    @property
    def by_hand(self) -> bool:
        """True if its part of a step needs no graph: a bottom and perhaps a top, both plain, and no
        own policy that puts something else between them and their gradients.
        """
        return (
            self.modules.keys() <= {"bottom", "top"}
            and all(stack.plain is not None for stack in self.modules.values())
            and not any(b.policy.overrides(hook) for b in self.bindings for hook in GRAPH)
        )

    def run(self, part: str, x: Tensor, by: Any) -> Tensor:
        """What an own module puts out in a training step of algorithm `by`, with the way back for
        :func:`vflsec.nn.manual_backprop.slopes`.
        """
        stack, kind = self.modules[part], type(by)
        walks = manual_backprop.is_walked(kind)  # type: ignore[arg-type]  # a class is hashable
        return manual_backprop.run(stack, x) if walks and self.by_hand else stack(x)

    def start(
        self,
        optimizer: str,
        lr: float,
        weight_decay: float,
        momentum: float = 0.9,
        embedding_l2: float = 0.0,
    ) -> None:
        """Make a fresh optimizer over all own parameters and let own policies wrap it.

        `embedding_l2` is weight decay of embedding tables on top of `weight_decay`.
        """
        params = self.parameters()
        if not params:
            self.optimizer = None
            return
        tables = self._tables() if embedding_l2 else []
        told = {id(p) for p in tables}
        split = [(weight_decay, [p for p in params if id(p) not in told])]
        if tables:
            split.append((weight_decay + embedding_l2, tables))
        if optimizer == "adagrad":
            made: Any = optim.Adagrad(
                [{"params": p, "weight_decay": w} for w, p in split if p], lr=lr
            )
        else:
            parts = [g for w, p in split for g in group_parameters(p, weight_decay=w)]
            made = (
                optim.Adam(parts, lr=lr)
                if optimizer == "adam"
                else optim.SGD(parts, lr=lr, momentum=momentum)
            )
        self.optimizer = self.wrap(made)

    def _tables(self) -> list[Tensor]:
        """Trainable vectors of categorical columns."""
        return [
            p
            for module in self.modules.values()
            for name, p in module.params.items()
            if p.requires_grad and "tables" in name.split(".")
        ]

    def note_unprotected(self, what: str) -> None:
        """Own models are trained where no policy limits what a row does to them."""
        if what not in self.unprotected:
            self.unprotected.append(what)

    def wrap(self, optimizer: Any) -> Any:
        """An optimizer of this party as its own policies will have it."""
        for b in self.bindings:
            if b.policy.overrides("optimizer"):
                optimizer, b.acted = b.policy.optimizer(optimizer, b.own), True
        return optimizer

    def update(
        self,
        gradients: Sequence[Tensor | None],
        parts: Sequence[str] | None = None,
        rows: Callable[[], list[Tensor]] | None = None,
        ids: Tensor | None = None,
    ) -> None:
        """One optimizer step with these gradients of :meth:`parameters`.

        Args:
            gradients: (R, ...) each.
            parts: whose; all by default.
            ids: sample ids (R, b) of the batch, for policies that claim something of its rows.
            rows: computes what each row of the batch adds to them, (R, b, ...) each, for policies
                that change gradients row by row; None if this step cannot say.

        Raises:
            PolicyError: such a policy is there, and `rows` is None.
        """
        protecting = [b for b in self.bindings if b.policy.overrides("gradients")]
        for b in protecting:
            gradients = self._protect(b, list(gradients), rows, ids)
        if not protecting:
            self.note_unprotected("its steps")
        if self.clip_norm:
            gradients = clip_gradients(gradients, self.clip_norm)
        if self.observer is not None:
            self._observe(self.observer, gradients, self.modules if parts is None else parts)
        step(self.optimizer, self.parameters(parts), gradients)

    def _protect(
        self,
        binding: Binding,
        given: list[Tensor | None],
        rows: Callable[[], list[Tensor]] | None,
        ids: Tensor | None,
    ) -> Sequence[Tensor | None]:
        """The gradients after one policy of gradients, whose uses are counted."""
        policy, own = binding.policy, binding.own
        if rows is None:
            raise PolicyError(
                f"{policy.name}: gradients of {self.name} cannot be split into rows. Use splitnn "
                "without own penalties, or leave the defense out."
            )
        if own.uses is not None and ids is None:
            own.uses.passed(f"{self.name} takes steps on undisclosed rows")
        elif own.uses is not None and ids is not None:
            on = own.sample and own.sample[0]
            own.uses.add(ids, on=on)
            why = f"a row stands twice in a step of {self.name}, and moves it twice as far"
            own.uses.passed(why, find_duplicates(ids, on))
        made, binding.acted = binding.call("gradients", list(given), rows), True
        for before, after in zip(given, made, strict=True):
            if own.uses is not None and before is not None and after is not None:
                own.uses.untouched("own gradients", before, after, own.strength > 0)
        return made

    def _observe(
        self,
        observer: Callable[[dict[str, Tensor], dict[str, Tensor]], None],
        gradients: Sequence[Tensor | None],
        parts: Iterable[str],
    ) -> None:
        """Show the observer what the step is taken with."""
        weights = {
            f"{part}.{name}": p
            for part in parts
            for name, p in self.modules[part].params.items()
            if p.requires_grad
        }
        named = zip(weights, gradients, strict=True)
        observer({k: g for k, g in named if g is not None}, weights)

    def continue_backward(
        self,
        z: Tensor,
        gradient: Tensor,
        penalty: Tensor | None,
        change: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None,
        x: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> None:
        """Continue the backward pass of own embedding `z` (R, b, d), and take one step.

        `change` is applied to the gradients of own parameters before the step. With the rows
        `x` (R, b, ...) that `z` was made of, policies may treat the gradients row by row; `ids`
        (R, b) says which they are.
        """
        params = self.parameters()
        if not params:
            return
        if penalty is None:
            grads = manual_backprop.slopes(z, params, gradient)
        else:
            grads = torch.autograd.grad((z * gradient).sum() + penalty.sum(), params)
        rows: Callable[[], list[Tensor]] | None = None
        if x is not None and penalty is None and change is None:
            rows = partial(self._split, x, gradient)
        self.update(grads if change is None else change(grads), rows=rows, ids=ids)

    def _split(self, x: Tensor, gradient: Tensor) -> list[Tensor]:
        """What each row (R, b, ...) adds to the gradients, by that of its embedding (R, b, d)."""
        inputs, slopes = split_rows(x), split_rows(gradient)
        return row_gradients(
            self.modules, x.shape[1], lambda wide: (wide["bottom"](inputs) * slopes).sum()
        )


def find_duplicates(ids: Tensor, on: Tensor | None = None) -> list[bool]:
    """By replica, whether some sample id of (R, b) stands there twice; of those `on` (R, b)."""
    if on is not None:
        ids = torch.where(on, ids, -1 - torch.arange(ids.shape[1], device=ids.device))
    ordered = ids.sort(dim=1).values
    return [bool(x) for x in (ordered[:, 1:] == ordered[:, :-1]).any(1).tolist()]


def group_parameters(params: Sequence[Tensor], **settings: Any) -> list[dict[str, Any]]:
    """Optimizer groups of stacked parameters (R, ...), fused where that is exact.

    The fused kernels of the CPU round the last few numbers of a tensor, those that do not fill a
    vector register, differently from the others; which numbers these are depends on R. So they only
    get parameters whose every replica fills whole registers. In flat buffers all are stepped by one
    kernel that knows of that, and are one group.
    """
    if params and find_blocks(params) is not None:
        return [{"params": list(params), **settings}]
    whole = [p for p in params if p.is_cuda or p[0].numel() % LANES == 0]
    odd = [p for p in params if not (p.is_cuda or p[0].numel() % LANES == 0)]
    made = [{"params": whole, "fused": True}, {"params": odd, "fused": False}]
    return [{**group, **settings} for group in made if group["params"]]


def clip_gradients(gradients: Sequence[Tensor | None], limit: float) -> list[Tensor | None]:
    """Stacked gradients (R, ...), each replica's shrunk to a joint norm of at most `limit`."""
    squares = [g.flatten(1).square().sum(1) for g in gradients if g is not None]
    factor = (limit / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1)
    return [None if g is None else g * widen(factor, g) for g in gradients]


def step(optimizer: Any, params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """One optimizer step; none where nothing learns and there is no optimizer.

    Gradients of batched matrix products come transposed in memory; fused optimizers on the CPU read
    them in memory order, so they are laid out like their parameters first.
    """
    if optimizer is None:
        return
    if isinstance(optimizer, optim.Fused) and optimizer.flat:
        optimizer.take(params, gradients)
        return
    for p, g in zip(params, gradients, strict=True):
        p.grad = None if g is None else g.contiguous()
    optimizer.step()
    for p in params:
        p.grad = None
