"""A module that calls known layers one after the other, read as that chain from its forward pass.

Most bottoms are a class with a few layers and a `forward`. What `torch.fx` records of it is enough
to build the same function from known layers, where each result is the next one's only input.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

__all__ = ["Link", "find_chain", "nest_layers", "unwrap"]

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
    named: dict[str, Any] = {k: v for k, v in node.kwargs.items() if k not in _IGNORED}
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
    links: Sequence[Link], describe: Callable[[nn.Module], dict[str, Any] | None]
) -> dict[str, Any] | None:
    """Links as nested layers whose weights keep their names; None if one is not known.

    Args:
        links: of :func:`find_chain`.
        describe: of a layer, or None.
    """
    children: dict[str, Any] = {}
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
    return {"layer": "Sequential", "children": children}
