"""Stacked linear layers with ReLU between as one step, and its way back by hand.

One function instead of a node of the autograd graph for every product: forward and backward are the
same few kernels, in place where nobody can tell. :func:`forward` and :func:`backward` are the only
ones who call them, with a graph (:class:`Dense`) and without (:mod:`vflsec.nn.manual_backprop`),
so both give the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vflsec.nn.flat_parameters import gradients_like
from vflsec.nn.reduced_precision import FULL, bmm

CACHED = 1 << 18
"""Numbers of the widest layer that are treated at a time, so that they stay in the cache."""

FEW = 128
"""Rows of a batch up to which no product is turned for its longer side; see `_weight_gradient`."""

_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class Layer(NamedTuple):
    """R linear layers.

    Attributes:
        weight: (R, o, i).
        bias: (R, o), or None.
        relu: True if a ReLU follows.
        products: with how many digits products are taken, see `vflsec.nn.reduced_precision`.
        across, lifted: `weight` as (R, i, o) and `bias` as (R, 1, o), without a graph, where they
            are at hand; see :meth:`at_hand`.
    """

    weight: Tensor
    bias: Tensor | None
    relu: bool
    products: str = FULL
    across: Tensor | None = None
    lifted: Tensor | None = None

    def at_hand(self) -> Layer:
        """The same with the views that a product takes of it, for layers that are run often."""
        lifted = None if self.bias is None else self.bias.detach().unsqueeze(1)
        return self._replace(across=self.weight.detach().mT, lifted=lifted)


How = tuple[bool, str]
"""What a layer has beside its numbers: ``relu`` and ``products``."""


def _chunks(replicas: int, numbers: int) -> tuple[tuple[int, int], ...]:
    """Ranges of at least two replicas of so many numbers each, that fit the cache if they can."""
    return _ranges(replicas, numbers, CACHED)


@cache
def _ranges(replicas: int, numbers: int, cached: int) -> tuple[tuple[int, int], ...]:
    parts = max(1, replicas // max(2, cached // max(1, numbers)))
    edges = [replicas * k // parts for k in range(parts + 1)]
    return tuple(itertools.pairwise(edges))


def _spans(layers: Sequence[Layer], x: Tensor) -> tuple[tuple[int, int], ...]:
    replicas, rows, widest = x.shape
    if x.is_cuda:  # a GPU has no such cache, and launches cost more than they save
        return ((0, replicas),)
    for layer in layers:
        widest = max(widest, layer.weight.shape[1])
    return _chunks(replicas, rows * widest)


def forward(layers: Sequence[Layer], x: Tensor) -> list[Tensor]:
    """What every layer puts out, (R, b, o) each, for inputs (R, b, i); called without a graph."""
    spans = _spans(layers, x)
    if len(spans) == 1:
        outs = []
        for layer in layers:
            x = _product(x, layer)
            outs.append(x.relu_() if layer.relu else x)
        return outs
    made = [x.new_empty(*x.shape[:2], layer.weight.shape[1]) for layer in layers]
    for a, b in spans:
        h = x[a:b]
        for layer, out in zip(layers, made, strict=True):
            h = _product(h, _part(layer, a, b), out[a:b])
            if layer.relu:
                h.relu_()
    return made


def _part(layer: Layer, a: int, b: int) -> Layer:
    bias = None if layer.bias is None else layer.bias[a:b]
    return Layer(layer.weight[a:b], bias, layer.relu, layer.products)


def _product(x: Tensor, layer: Layer, out: Tensor | None = None) -> Tensor:
    weight, bias, _, products, across, lifted = layer
    if across is None:
        across, lifted = weight.mT, None if bias is None else bias.unsqueeze(1)
    if lifted is None:
        return bmm(x, across, products, out)
    if products == FULL:
        return torch.baddbmm(lifted, x, across, out=out)
    return torch.add(bmm(x, across, products), lifted, out=out)


def backward(
    layers: Sequence[Layer],
    x: Tensor,
    outs: Sequence[Tensor],
    slope: Tensor,
    into: Sequence[tuple[Tensor | None, Tensor | None]],
    *,
    down: bool,
) -> Tensor | None:
    """Gradients of the parameters, and of the inputs; called without a graph.

    Args:
        layers, x, outs: of :func:`forward`.
        slope: gradient of the last output, (R, b, o).
        into: for every layer where the gradients of weight and bias are written, None where nobody
            asks for one.
        down: True if the gradient of `x` is wanted.

    Returns:
        It, (R, b, i), or None.
    """
    spans = _spans(layers, x)
    if len(spans) == 1:
        return _backward(layers, x, outs, slope, into, down)
    below = torch.empty_like(x, memory_format=torch.contiguous_format) if down else None
    for a, b in spans:
        part = _backward(
            [_part(layer, a, b) for layer in layers], x[a:b],
            [out[a:b] for out in outs], slope[a:b],
            [tuple(None if t is None else t[a:b] for t in pair) for pair in into],  # type: ignore[misc]
            down, None if below is None else below[a:b],
        )  # fmt: skip
        assert (part is None) == (below is None)
    return below


def _backward(
    layers: Sequence[Layer],
    x: Tensor,
    outs: Sequence[Tensor],
    slope: Tensor,
    into: Sequence[tuple[Tensor | None, Tensor | None]],
    down: bool,
    below: Tensor | None = None,
) -> Tensor | None:
    own = False  # whether `slope` was made here and may be written to
    for k in range(len(layers) - 1, -1, -1):
        weight, products = layers[k].weight, layers[k].products
        if layers[k].relu:
            target = slope if own else torch.empty_like(outs[k])
            slope = _threshold_backward(slope, outs[k], 0, grad_input=target)
        given = x if k == 0 else outs[k - 1]
        to_weight, to_bias = into[k]
        if to_bias is not None:
            torch.sum(slope, 1, out=to_bias)
        if to_weight is not None:
            _weight_gradient(slope, given, to_weight, products)
        if k or down:
            slope = bmm(slope, weight, products, below if k == 0 else None)
            own = True
    return slope if down else None


def _weight_gradient(slope: Tensor, x: Tensor, out: Tensor, products: str) -> None:
    """g^T x (R, o, i) of slopes (R, b, o) and inputs (R, b, i): products of MKL are faster with the
    longer side last, but of few rows turning it back costs more. Both give the same bits.
    """
    if slope.shape[2] <= x.shape[2] or slope.shape[1] <= FEW:
        bmm(slope.mT, x, products, out)
    else:
        out.copy_(bmm(x.mT, slope, products).mT)


class Dense(torch.autograd.Function):
    """:func:`forward` in a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hows: tuple[How, ...], *params: Tensor | None) -> Tensor:
        outs = forward(_layers(hows, params), x)
        ctx.hows, ctx.given = hows, [p is not None for p in params]
        ctx.save_for_backward(x, *(p for p in params if p is not None), *outs)
        return outs[-1]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:  # type: ignore[override]
        x, *saved = ctx.saved_tensors
        params = [saved.pop(0) if given else None for given in ctx.given]
        wanted = [x if ctx.needs_input_grad[0] else None]
        wanted += [
            p if need else None for p, need in zip(params, ctx.needs_input_grad[2:], strict=True)
        ]
        if torch.is_grad_enabled():  # somebody differentiates this once more
            out = _plain(_layers(ctx.hows, params), x)
            asked = [t for t in wanted if t is not None]
            found = iter(torch.autograd.grad(out, asked, slope, create_graph=True))
            x_grad, *grads = [None if t is None else next(found) for t in wanted]
            return x_grad, None, *grads
        told = iter(gradients_like([p for p in wanted[1:] if p is not None]))
        made = [None if p is None else next(told) for p in wanted[1:]]
        into = list(zip(made[::2], made[1::2], strict=True))
        below = backward(
            _layers(ctx.hows, params), x, saved, slope, into, down=wanted[0] is not None
        )
        return below, None, *made


def _layers(hows: Sequence[How], params: Sequence[Tensor | None]) -> list[Layer]:
    pairs = zip(params[::2], params[1::2], hows, strict=True)
    return [Layer(w, b, *how) for w, b, how in pairs if w is not None]


def _plain(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """The same by single operations, which can be differentiated any number of times."""
    for layer in layers:
        x = _product(x, layer)
        x = torch.relu(x) if layer.relu else x
    return x


def dense(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Stacked layers on inputs (R, b, ..., i) -> (R, b, ..., o)."""
    flat = x if x.dim() == 3 else x.reshape(x.shape[0], -1, x.shape[-1])
    params = [t for layer in layers for t in layer[:2]]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *params)):
        out = Dense.apply(flat, tuple(layer[2:4] for layer in layers), *params)
    else:
        out = forward(layers, flat)[-1]
    return out if x.dim() == 3 else out.reshape(*x.shape[:-1], out.shape[-1])
