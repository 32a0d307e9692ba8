"""Every public name says what it is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import vflsec


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(vflsec.__path__, "vflsec."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Names that are defined here and meant for others, and the public members of classes."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [n for n in vars(module) if not n.startswith("_")]
    for name in names:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if value.__module__ != module.__name__:
            continue
        yield f"{module.__name__}.{name}", value
        for member, inner in vars(value).items() if inspect.isclass(value) else ():
            plain = inner.fget if isinstance(inner, property) else inner
            plain = getattr(plain, "__func__", plain)
            if not member.startswith("_") and inspect.isfunction(plain):
                yield f"{module.__name__}.{name}.{member}", (value, member, plain)


def _documented(value: object) -> bool:
    if not isinstance(value, tuple):
        return bool(inspect.getdoc(value))
    owner, member, function = value
    if function.__doc__:
        return True
    return any(
        getattr(vars(base).get(member), "__doc__", None)
        for base in owner.__mro__[1:]
        if member in vars(base)
    )


def test_every_public_name_has_a_docstring() -> None:
    every = {name: value for module in _modules() for name, value in _public(module)}
    assert len(every) > 800
    bare = sorted(name for name, value in every.items() if not _documented(value))
    assert not bare, f"{len(bare)} public names say nothing of themselves: {', '.join(bare)}"
