"""Modules as plain descriptions: which known layer with which arguments; no code is loaded.

A model of other layers is not described. Whoever audits then names its class (``--model``), from
their own import path and never from the trace.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from vflsec.core.view import Schema
from vflsec.errors import TraceError
from vflsec.nn.encoders import POOLINGS, Towers
from vflsec.nn.models import TabularInput
from vflsec.trace.hash_chain import find_chain, nest_layers, unwrap

__all__ = ["build_module", "describe_module"]

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


def describe_module(module: nn.Module, schema: Schema | None = None) -> dict[str, Any] | None:
    """What :func:`build_module` needs, as plain JSON values; None if some layer is not known here.

    A class of one's own is described if it is a chain of known layers
    (:mod:`vflsec.trace.hash_chain`).

    Args:
        module: to describe.
        schema: of the party's rows, for the layers that embed its categorical columns.
    """
    module = unwrap(module)
    found = _describe(module, schema)
    if found is not None:
        return found
    links = find_chain(module)
    made = None if links is None else nest_layers(links, lambda layer: _describe(layer, schema))
    if made is None or _name_weights(made) != set(module.state_dict()):
        return None  # or weights that its forward pass does not use
    return made


def _name_weights(layers: Mapping[str, Any]) -> set[str]:
    """Names of the weights of described layers."""
    if layers["layer"] == "Sequential":
        return {
            f"{name}.{key}"
            for name, child in layers["children"].items()
            for key in _name_weights(child)
        }
    return set(_BY_NAME[layers["layer"]](**layers["arguments"]).state_dict())


def _describe(module: nn.Module, schema: Schema | None) -> dict[str, Any] | None:
    """A module of the kinds that are known by name."""
    kind = type(module)
    if kind in (nn.Sequential, Towers):
        return _describe_container(module, schema)
    if isinstance(module, TabularInput) and kind is TabularInput:
        return _describe_input(module, schema)
    if kind not in _ARGUMENTS:
        return None
    arguments = {a: getattr(module, a) for a in _ARGUMENTS[kind]}
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"] is not None
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
    if _read_settings(kind(**arguments)) != _read_settings(module):
        return None  # built with arguments that are not kept here
    return {"layer": kind.__name__, "arguments": plain}


def _describe_container(module: nn.Module, schema: Schema | None) -> dict[str, Any] | None:
    children = {}
    for name, child in module.named_children():
        found = _describe(child, schema)
        if found is None:
            return None
        children[name] = found
    out: dict[str, Any] = {"layer": type(module).__name__, "children": children}
    return out | {"pooling": module.pooling} if isinstance(module, Towers) else out


def _describe_input(module: TabularInput, schema: Schema | None) -> dict[str, Any] | None:
    widths = {table.embedding_dim for table in module.tables}
    default = TabularInput(schema) if schema is not None else None
    if default is not None and _read_shapes(default) == _read_shapes(module):
        return {"layer": "TabularInput", "width": None}
    return {"layer": "TabularInput", "width": widths.pop()} if len(widths) == 1 else None


def _read_shapes(layer: TabularInput) -> list[Any]:
    return [table.weight.shape for table in layer.tables]


def _read_settings(layer: nn.Module) -> dict[str, Any]:
    """All that a layer computes by but its weights, of which shapes count."""
    how = {k: v for k, v in vars(layer).items() if k[0] != "_" and k not in ("training", "inplace")}
    return how | {f"shape of {k}": v.shape for k, v in layer.state_dict().items()}


def build_module(
    layers: Mapping[str, Any], weights: Mapping[str, Tensor], schema: Schema, where: str
) -> nn.Module:
    """The described module with its weights, in eval mode.

    Raises:
        TraceError: an unknown layer, arguments that it does not take, or other weights.
    """
    try:
        module = _build(layers, schema, where, 0)
        like = next((w for w in weights.values() if w.is_floating_point()), None)
        if like is not None:
            module = module.to(like.dtype)
        module.load_state_dict(dict(weights))
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as why:
        if isinstance(why, TraceError):
            raise
        text = " ".join(str(why).split())[:160]
        raise TraceError(f"{where}: its layers and its weights do not fit ({text}).") from None
    return module.eval()


def _build(layers: Mapping[str, Any], schema: Schema, where: str, depth: int) -> nn.Module:
    name = layers.get("layer") if isinstance(layers, Mapping) else None
    if depth > 16:
        raise TraceError(f"{where}: its layers are nested too deeply.")
    if name in ("Sequential", "Towers"):
        return _build_container(name, layers, schema, where, depth)
    if name == "TabularInput":
        return _build_input(layers, schema, where)
    if name not in _BY_NAME:
        raise TraceError(
            f"{where}: the layer {str(name)[:40]!r} is not known; there are "
            f"{', '.join(sorted(_BY_NAME))}. Name the class of the model in the audit instead."
        )
    return _build_layer(name, layers, where)


def _build_container(
    name: str, layers: Mapping[str, Any], schema: Schema, where: str, depth: int
) -> nn.Module:
    children = layers["children"]
    if not isinstance(children, Mapping) or len(children) > 256:
        raise TraceError(f"{where}: a {name} has at most 256 named children.")
    made = OrderedDict((str(k), _build(v, schema, where, depth + 1)) for k, v in children.items())
    if name == "Sequential":
        return nn.Sequential(made)
    if layers["pooling"] not in POOLINGS:
        raise TraceError(f"{where}: pooling must be one of {', '.join(POOLINGS)}.")
    return Towers(layers["pooling"], made.get("cross"), made.get("local"))


def _build_input(layers: Mapping[str, Any], schema: Schema, where: str) -> nn.Module:
    width = layers.get("width")
    if width is not None and not (isinstance(width, int) and 1 <= width <= 1024):
        raise TraceError(f"{where}: a TabularInput has a width of at most 1024.")
    return TabularInput(schema, width)


def _build_layer(name: str, layers: Mapping[str, Any], where: str) -> nn.Module:
    kind: Callable[..., nn.Module] = _BY_NAME[name]
    arguments = {
        k: tuple(v) if isinstance(v, list) else v for k, v in layers.get("arguments", {}).items()
    }
    known = _ARGUMENTS[_BY_NAME[name]]
    if set(arguments) - set(known):
        raise TraceError(f"{where}: {name} takes {', '.join(known) or 'nothing'}.")
    sizes = [v for v in arguments.values() if isinstance(v, int) and not isinstance(v, bool)]
    if any(abs(v) > 1 << 24 for v in sizes) or abs(math.prod(sizes[:2])) > _MOST:
        raise TraceError(f"{where}: a {name} of {arguments} is too large.")
    return kind(**arguments)
