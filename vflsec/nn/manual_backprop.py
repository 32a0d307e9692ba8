"""Gradients of plain networks one after another, without a graph.

A stack of linear layers and ReLU needs no autograd: :func:`run` computes it and notes on its output
how to come back, :func:`join` puts outputs together, :func:`follow` goes on from there, and
:func:`slopes` walks back. Where nothing was noted, all of them are what autograd does. Both ways
call the same kernels in the same order, so they give the same bits; which one is taken is decided
in :meth:`vflsec.core.party.Party.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from vflsec.nn.dense import Layer, backward, forward
from vflsec.nn.flat_parameters import gradients_like
from vflsec.nn.replicas import Replicas

Back = Callable[[Tensor, bool], Iterable[tuple[Tensor, Tensor]]]
"""From the gradient of an output: what it was made of, each with its gradient. The second argument
tells whether that of the inputs is wanted, too."""

_NOTE = "_way_back"
_MARK = "_by_slopes"

STEP = ("step", "up", "fuse", "logits", "differentiate", "own_term", "down")
"""The methods of which a step of split training is made."""

Method = TypeVar("Method", bound=Callable[..., object])


def walked(method: Method) -> Method:
    """Mark a method of :data:`STEP` that comes back by what is here, and by no other way.

    A term of the loss may have a graph of its own if it uses each parameter once: then two numbers
    are added for it in either way.
    """
    setattr(method, _MARK, True)
    return method


@cache
def is_walked(kind: type) -> bool:
    """True if a whole step of this class of algorithms is :func:`walked`.

    Whoever overrides a part of it gets the graph.
    """
    return all(hasattr(getattr(kind, name, None), _MARK) for name in STEP)


def is_noted(x: Tensor) -> bool:
    """True if `x` was made here, so that :func:`slopes` knows the way back."""
    return hasattr(x, _NOTE)


def _note(x: Tensor, back: Back, sources: Sequence[Tensor]) -> Tensor:
    setattr(x, _NOTE, (back, sources))
    return x


@torch.no_grad()
def run(stack: Replicas, x: Tensor) -> Tensor:
    """Outputs (R, b, o) of a plain stack for inputs (R, b, ...)."""
    assert stack.plain is not None
    layers = stack.plain
    rows = stack.flattened(x)
    outs = forward(layers, rows)
    out = outs[-1]
    kept = [*outs[:-1], out.detach()]  # not itself: it would keep itself alive
    versions = _versions(layers, rows, out)

    def back(slope: Tensor, down: bool) -> Iterable[tuple[Tensor, Tensor]]:
        if _versions(layers, rows, kept[-1]) != versions:
            raise RuntimeError("numbers needed for gradients were changed in place.")
        return _through(layers, rows, kept, slope, x if down else None)

    return _note(out, back, (x,))


def follow(stack: Replicas, x: Tensor) -> Tensor:
    """Outputs of a stack in training, noted if its inputs are."""
    return run(stack, x) if is_noted(x) else stack(x)


def _versions(layers: Sequence[Layer], rows: Tensor, out: Tensor) -> int:
    """How often what is needed on the way back, and others can reach, was changed in place."""
    changes = rows._version + out._version
    for layer in layers:
        changes += layer.weight._version
    return changes


def _through(
    layers: Sequence[Layer], rows: Tensor, outs: Sequence[Tensor], slope: Tensor, x: Tensor | None
) -> Iterable[tuple[Tensor, Tensor]]:
    params = [t for layer in layers for t in layer[:2]]
    wanted = [t for t in params if t is not None and t.requires_grad]
    if not wanted and x is None:
        return []
    made = gradients_like(wanted)
    told = iter(made)
    given = [next(told) if t is not None and t.requires_grad else None for t in params]
    into = list(zip(given[::2], given[1::2], strict=True))
    below = backward(layers, rows, outs, slope, into, down=x is not None)
    found = list(zip(wanted, made, strict=True))
    if x is not None and below is not None:
        found.append((x, below.reshape(x.shape)))
    return found


def join(parts: Sequence[Tensor], how: str) -> Tensor:
    """Parts (R, b, d_k) side by side (``concat``), or their ``sum`` or ``mean``."""
    if not any(is_noted(x) for x in parts):
        return _joined(parts, how)

    def back(slope: Tensor, down: bool) -> Iterable[tuple[Tensor, Tensor]]:
        if how == "concat":
            return zip(parts, slope.split([x.shape[-1] for x in parts], dim=-1), strict=True)
        return [(x, slope / len(parts) if how == "mean" else slope) for x in parts]

    return _note(_joined_quietly(parts, how), back, parts)


def _joined(parts: Sequence[Tensor], how: str) -> Tensor:
    if how == "concat":
        return torch.cat(list(parts), dim=-1)
    total = torch.stack(list(parts)).sum(0)
    return total / len(parts) if how == "mean" else total


_joined_quietly = torch.no_grad()(_joined)


def slopes(y: Tensor, wanted: Sequence[Tensor], slope: Tensor) -> Sequence[Tensor]:
    """Gradients of `wanted`, where that of `y` is `slope`.

    Raises:
        RuntimeError: `y` does not depend on one of them, or on something with a graph of its own.
    """
    if not is_noted(y):
        return torch.autograd.grad(y, wanted, slope)
    found = _walk(y, slope, {id(t) for t in wanted})
    if any(id(t) not in found for t in wanted):
        raise RuntimeError("one of the tensors to differentiate with respect to was not used.")
    return [found[id(t)] for t in wanted]


@torch.no_grad()
def _walk(y: Tensor, slope: Tensor, ends: set[int]) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    todo = [(y, slope)]
    while todo:
        here, g = todo.pop()
        back, sources = getattr(here, _NOTE)
        for source, gradient in back(g, any(is_noted(s) or id(s) in ends for s in sources)):
            at = id(source)
            if is_noted(source):
                todo.append((source, gradient))
            elif at in ends:
                found[at] = found[at] + gradient if at in found else gradient
            elif source.grad_fn is not None:
                raise RuntimeError("a way back without a graph ends in a graph.")
    return found
