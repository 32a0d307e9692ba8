"""Packages that can be called: `vflsec.train(...)` beside `vflsec.train.loop`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_HOME = {"train": "vflsec.api", "measure": "vflsec.api", "audit": "vflsec.audit_tables"}


class _Callable(ModuleType):
    """A package that is called, and explains itself, as the function of its name.

    The function is imported when it is first asked for.
    """

    @property
    def _function(self) -> Callable[..., Any]:
        name = self.__name__.rpartition(".")[2]
        function: Callable[..., Any] = getattr(import_module(_HOME[name]), name)
        return function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._function.__doc__


def callable_as(package: str) -> None:
    """Let the package of this name be called like the function of that name."""
    sys.modules[package].__class__ = _Callable
