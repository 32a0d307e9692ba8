"""Modules as plain descriptions: which known layer with which arguments; no code is loaded.

A class of one's own is described where its forward pass, as `torch.fx` records it, is a chain of
known layers, each result the next one's only input. A model of other layers is not described:
whoever audits names its class (``--model``), from their own import path, never from the trace.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_serializer,
)
from torch import Tensor, fx, nn
from torch.nn import functional

from vflsec.core import check
from vflsec.core.view import Schema
from vflsec.errors import TraceError
from vflsec.nn.encoders import POOLINGS, Towers
from vflsec.nn.models import TabularInput


class LayerSpec(BaseModel):
    """A layer by name: arguments that it is built with, or the layers in it by their names."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    layer: Annotated[str, StringConstraints(max_length=80)]
    arguments: dict[str, int | float | bool | str | list[int | None] | None] = {}
    children: Annotated[dict[str, LayerSpec], Field(max_length=256)] = {}
    pooling: str = ""
    width: Annotated[int, Field(ge=0, le=1024)] | None = None
    rows: Annotated[int, Field(ge=2)] | None = None

    @model_serializer
    def _write_given(self) -> dict[str, object]:
        given = self.model_fields_set
        return {k: getattr(self, k) for k in type(self).model_fields if k in given}


Link = tuple[str, nn.Module]
"""Where a layer stands in its module ('' of a function), and the layer."""

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module",
             "OptimizedModule": "_orig_mod"}  # fmt: skip
_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU, functional.relu: nn.ReLU, "relu": nn.ReLU,
    torch.tanh: nn.Tanh, functional.tanh: nn.Tanh, "tanh": nn.Tanh,
    torch.sigmoid: nn.Sigmoid, functional.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    functional.gelu: nn.GELU, functional.elu: nn.ELU, functional.leaky_relu: nn.LeakyReLU,
    functional.dropout: nn.Dropout,
}  # fmt: skip
_IGNORED = ("inplace", "training")  # how, and not what is computed in evaluation


def unwrap(module: nn.Module) -> nn.Module:
    """The module in the wrappers that torch puts around one."""
    while inner := _WRAPPERS.get(type(module).__name__):
        module = getattr(module, inner)
    return module


def find_chain(module: nn.Module) -> list[Link] | None:
    """The layers of `module` in the order in which rows pass them; None if it is no chain."""
    layers = dict(module.named_modules())
    links: list[Link] = []
    last: fx.Node | None = None
    sizes: set[fx.Node] = set()
    try:
        # what it draws is not drawn from the loop's, and what it keeps it forgets
        with torch.random.fork_rng(devices=[]), _restore(module):
            nodes = list(fx.Tracer().trace(module).nodes)
    except Exception:  # somebody's forward pass, which may do anything to what holds no numbers
        return None
    for node in nodes:
        if node.op == "output":
            return links if links and node.args == (last,) else None
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op != "placeholder" and node.args and _is_size(node, last, sizes):
            sizes.add(node)
            continue
        link = _find_link(node, last, sizes, layers)
        if link is None:
            return None
        links.append(link)
        last = node
    return None


@contextlib.contextmanager
def _restore(module: nn.Module) -> Iterator[None]:
    """Give a module its attributes and the numbers of its buffers back."""
    held = [(vars(m), dict(vars(m))) for m in module.modules()]
    buffers = [(b, b.clone()) for b in module.buffers()]
    try:
        yield
    finally:
        for now, before in held:
            now.clear()
            now.update(before)
        with torch.no_grad():
            for buffer, values in buffers:
                buffer.copy_(values)


def _is_size(node: fx.Node, last: fx.Node | None, sizes: set[fx.Node]) -> bool:
    """Whether a node is a size of what came before it, as ``x.view(x.size(0), -1)`` takes."""
    first, rest = node.args[0], tuple(node.args[1:])
    return bool(
        (first is last and node.target == "size" and rest == (0,))
        or (first is last and node.target is getattr and rest == ("shape",))
        or (first in sizes and node.target is operator.getitem and rest == (0,))
    )


def _find_link(
    node: fx.Node, last: fx.Node | None, sizes: set[fx.Node], layers: Mapping[str, nn.Module]
) -> Link | None:
    """One step; None if it takes anything but what came before it and constants."""
    if last is None or not node.args or node.args[0] is not last:
        return None
    rest: tuple[Any, ...] = tuple(node.args[1:])
    named: dict[str, object] = {k: v for k, v in node.kwargs.items() if k not in _IGNORED}
    if node.target in ("view", "reshape") and len(rest) == 2 and rest[1] == -1:
        return ("", nn.Flatten()) if rest[0] in sizes else None
    if any(isinstance(v, fx.Node) for v in (*rest, *named.values())):
        return None
    if node.op == "call_module":
        name = str(node.target)
        return None if rest or named or name not in layers else (name, layers[name])
    layer = _find_layer(node.target, rest, named)
    return None if layer is None else ("", layer)


def _find_layer(target: Any, rest: tuple[Any, ...], named: Mapping[str, Any]) -> nn.Module | None:
    """The layer that does what a function does with these constants; None if none is known."""
    if target in (torch.flatten, "flatten"):
        start = () if rest or "start_dim" in named else (0,)
        return nn.Flatten(*rest, *start, **named)
    made = _FUNCTIONS.get(target)
    try:
        return None if made is None else made(*rest, **named)
    except TypeError:
        return None


def nest_layers(
    links: Sequence[Link], describe: Callable[[nn.Module], LayerSpec | None]
) -> LayerSpec | None:
    """Links as nested layers whose weights keep their names; None if one is not known.

    Args:
        links: of :func:`find_chain`.
        describe: of a layer, or None.
    """
    children: dict[str, LayerSpec] = {}
    names = {name for name, _ in links}
    free = (n for i in itertools.count() if (n := f"function{i}") not in names)
    heads = [name.partition(".")[0] if layer.state_dict() else "" for name, layer in links]
    at = 0
    while at < len(links):
        (name, layer), head = links[at], heads[at]
        end = at + 1
        if not head:  # without weights: it may be called anything, and as often as it is
            head, found = next(free), describe(layer)
        elif name == head:
            found = describe(layer)
        else:
            end = len(heads) - heads[::-1].index(head)
            if set(heads[at:end]) - {head, ""}:
                return None
            inner = [(n.partition(".")[2], m) for n, m in links[at:end]]
            found = nest_layers(inner, describe)
        if found is None or head in children:
            return None
        children[head] = found
        at = end
    return LayerSpec(layer="Sequential", children=children)


_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "bias"),
    nn.BatchNorm1d: ("num_features", "eps", "momentum"),
    nn.BatchNorm2d: ("num_features", "eps", "momentum"),
    nn.LayerNorm: ("normalized_shape", "eps"),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding"),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Dropout: ("p",),
    nn.LeakyReLU: ("negative_slope",),
    nn.ReLU: (),
    nn.GELU: (),
    nn.ELU: ("alpha",),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.Identity: (),
}
_BY_NAME = {t.__name__: t for t in _ARGUMENTS}
_MOST = 1 << 28  # weights of one layer


def describe_module(module: nn.Module) -> LayerSpec | None:
    """What :func:`build_module` needs; None if some layer is not known here.

    A class of one's own is described if it is a chain of known layers.
    """
    module = unwrap(module)
    found = _describe(module)
    if found is not None:
        return found
    links = find_chain(module)
    made = None if links is None else nest_layers(links, _describe)
    if made is None or _name_weights(made) != set(module.state_dict()):
        return None  # or weights that its forward pass does not use
    return made


def _name_weights(spec: LayerSpec) -> set[str]:
    """Names of the weights of described layers."""
    if spec.layer == "Sequential":
        return {f"{n}.{key}" for n, child in spec.children.items() for key in _name_weights(child)}
    return set(_BY_NAME[spec.layer](**spec.arguments).state_dict())


def _describe(module: nn.Module) -> LayerSpec | None:
    """A module of the kinds that are known by name."""
    kind = type(module)
    if kind in (nn.Sequential, Towers):
        children = {}
        for name, child in module.named_children():
            found = _describe(child)
            if found is None:
                return None
            children[name] = found
        found = LayerSpec(layer=kind.__name__, children=children)
        if not isinstance(module, Towers):
            return found
        return LayerSpec(layer=kind.__name__, children=children, pooling=module.pooling)
    if isinstance(module, TabularInput) and kind is TabularInput:
        return LayerSpec(layer=kind.__name__, width=module.width, rows=module.rows or None)
    if kind not in _ARGUMENTS:
        return None
    arguments = {a: getattr(module, a) for a in _ARGUMENTS[kind]}
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"] is not None
    if _read_settings(kind(**arguments)) != _read_settings(module):
        return None  # built with arguments that are not kept here
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
    try:
        return LayerSpec(layer=kind.__name__, arguments=plain)
    except ValidationError:  # an argument of another type, which JSON does not have
        return None


def _read_settings(layer: nn.Module) -> dict[str, object]:
    """All that a layer computes by but its weights, of which shapes count."""
    how = {k: v for k, v in vars(layer).items() if k[0] != "_" and k not in ("training", "inplace")}
    return how | {f"shape of {k}": v.shape for k, v in layer.state_dict().items()}


NAME_CLASS = "Name its class (--model package.module:Name)."


def build_module(
    spec: LayerSpec, weights: Mapping[str, Tensor], schema: Schema, where: str
) -> nn.Module:
    """The described module with its weights, in eval mode.

    Raises:
        TraceError: an unknown layer, arguments that it does not take, or other weights.
    """
    try:
        module = _build(spec, schema, where)
        like = next((w for w in weights.values() if w.is_floating_point()), None)
        if like is not None:
            module = module.to(like.dtype)
        module.load_state_dict(dict(weights))
    except TraceError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as why:
        text = " ".join(str(why).split())
        raise TraceError.damaged(f"{where}: layers or weights", text) from None
    return module.eval()


def _build(spec: LayerSpec, schema: Schema, where: str, depth: int = 0) -> nn.Module:
    name = spec.layer
    if depth > 16:
        raise TraceError.at_most(f"{where}: depth", 16, depth)
    if name == "TabularInput":
        return TabularInput(schema, spec.width or 0, spec.rows or 0)
    if name in ("Sequential", "Towers"):
        made = OrderedDict(
            (k, _build(v, schema, where, depth + 1)) for k, v in spec.children.items()
        )
        if name == "Sequential":
            return nn.Sequential(made)
        if spec.pooling not in POOLINGS:
            raise check.unknown(f"{where}: pooling", spec.pooling, POOLINGS, TraceError)
        return Towers(spec.pooling, made.get("cross"), made.get("local"))
    if name not in _BY_NAME:
        layers = sorted(_BY_NAME)
        raise check.unknown(f"{where}: layer", name[:40], layers, TraceError, NAME_CLASS)
    kind: Callable[..., nn.Module] = _BY_NAME[name]
    known, arguments = _ARGUMENTS[_BY_NAME[name]], spec.arguments
    if set(arguments) - set(known):
        raise TraceError(f"{where}: {name} takes {', '.join(known) or 'nothing'}.")
    sizes = [v for v in arguments.values() if isinstance(v, int) and not isinstance(v, bool)]
    if any(abs(v) > 1 << 24 for v in sizes) or abs(math.prod(sizes[:2])) > _MOST:
        raise TraceError(f"{where}: a {name} of {arguments} is too large.")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()})
