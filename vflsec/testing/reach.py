"""What can be reached from a view, by attributes, items, closures and base tensors."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from vflsec.core.view import View

_PLAIN = (str, bytes, int, float, bool, complex, type(None), type, types.ModuleType)


def find_reached(thing: Any) -> Iterator[tuple[str, Any]]:
    """Every object that is reachable from `thing` with a path to it, each object once."""
    seen: set[int] = set()
    keep: list[Any] = []
    stack = [("view", thing)]
    while stack:
        path, one = stack.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen.add(id(one))
        keep.append(one)  # an id is unique while its object lives
        yield path, one
        stack += [(f"{path}{step}", inner) for step, inner in _inside(one)]


def find_tensors(thing: Any) -> list[Tensor]:
    """Every tensor that is reachable from `thing`."""
    return [one for _, one in find_reached(thing) if isinstance(one, Tensor)]


def _inside(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, Tensor):
        yield "._base", one._base
        if one.is_leaf:
            yield ".grad", one.grad
    elif isinstance(one, Mapping):
        for k, v in one.items():
            yield f"[{k!r}]", v
    elif isinstance(one, tuple | list | set | frozenset):
        for k, v in enumerate(one):
            yield f"[{k}]", v
    if isinstance(one, types.MethodType):
        yield ".__self__", one.__self__
        one = one.__func__
    if isinstance(one, types.FunctionType):
        for k, cell in enumerate(one.__closure__ or ()):
            yield f".<closure {k}>", cell.cell_contents
        yield ".__defaults__", one.__defaults__
    if isinstance(one, functools.partial):
        yield from ((".func", one.func), (".args", one.args), (".keywords", one.keywords))
    held = getattr(one, "__dict__", None)
    if isinstance(held, dict) and not isinstance(one, types.FunctionType):
        for k, v in held.items():
            yield f".{k}", v
    for cls in type(one).__mro__:
        for k in getattr(cls, "__slots__", ()):
            if isinstance(k, str) and hasattr(one, k) and not k.startswith("__"):
                yield f".{k}", getattr(one, k)


def find_foreign(view: View) -> list[str]:
    """Paths to what a view must not hold: empty if it is closed.

    That is any object of the package beside networks and the values of a View; a tensor with a
    gradient graph; and a tensor whose storage is larger than itself: the rest is somebody else's.
    """
    found = []
    for path, one in find_reached(view):
        module = type(one).__module__
        if isinstance(one, Tensor):
            used = one.numel() * one.element_size()
            if one.grad_fn is not None:
                found.append(f"{path}: has a gradient graph")
            elif one.untyped_storage().nbytes() > used:
                found.append(f"{path}: {one.untyped_storage().nbytes()} bytes behind {used}")
        elif isinstance(one, nn.Module) or module in (
            "vflsec.core.feature_schema",
            "vflsec.core.view",
        ):
            continue
        elif module.startswith("vflsec."):
            found.append(f"{path}: {module}.{type(one).__name__}")
    return found
