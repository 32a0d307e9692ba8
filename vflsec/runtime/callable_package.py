"""Packages that can be called: `vflsec.train(...)` beside `vflsec.train.loop`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["callable_as"]

_HOME = {"train": "vflsec.api", "measure": "vflsec.api", "audit": "vflsec.audit_tables"}


class _Callable(ModuleType):
    """A package whose call is a function of its name, imported when it is first called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_HOME[name]), name)(*args, **kwargs)


def callable_as(package: str) -> None:
    """Let the package of this name be called like the function of that name."""
    sys.modules[package].__class__ = _Callable
