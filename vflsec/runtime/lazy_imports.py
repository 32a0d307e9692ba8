"""Heavy imports: the garbage collector around them, and what they bring along for nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

SELDOM = (200_000, 10, 10)
"""How many objects come before the collector looks at the young ones; how many such looks before it
looks at older ones, and of these before it looks at all."""

_STATISTICS = "scipy.stats"
_FEW = ("chi2", "gmean", "rankdata", "spearmanr")
"""What of :data:`_STATISTICS` scikit-learn takes by name while it is imported."""


def patient() -> None:
    """Let the collector look more seldom than every 700 objects, for the whole process.

    An audit makes millions (tables of results, figures, modules), of which next to none are garbage
    that needs to be searched for. Only for the command line, whose process is its own.
    """
    if gc.isenabled():
        gc.set_threshold(*SELDOM)


def leaving() -> None:
    """Nothing is searched for garbage any more: the process ends.

    The interpreter would do so twice while it takes everything apart. What refers to itself in a
    circle stays until the system takes back the memory. Only for the command line, too.
    """
    if gc.isenabled():
        gc.freeze()


@contextmanager
def importing() -> Iterator[None]:
    """Around the first import of torch in a process: its objects stay, and are never searched.

    They are some hundred thousand, which the collector would go through several times while they
    come, and at each full collection after. Where torch is there already nothing is changed.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def lean() -> Iterator[None]:
    """Around an import of scikit-learn: `scipy.stats` stays away until something of it is called.

    It takes a third of the time of that import, for a few functions of which estimators here
    call none. Whatever else asks for more of it while this lasts gets all of it.
    """
    spec = None if _STATISTICS in sys.modules else find_spec(_STATISTICS)
    if spec is None:
        yield
        return
    stands = sys.modules[_STATISTICS] = _Stand(_STATISTICS)
    stands.__spec__, stands.__path__ = spec, list(spec.submodule_search_locations or ())
    try:
        yield
    finally:
        stands.go()


class _Stand(ModuleType):
    """Stands for :data:`_STATISTICS` where modules are looked up."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(name) if name in _FEW else getattr(self.real(), name)

    def go(self) -> None:
        """Make room for the module itself."""
        if sys.modules.get(_STATISTICS) is self:
            del sys.modules[_STATISTICS]

    def real(self) -> ModuleType:
        """The module itself."""
        self.go()
        return import_module(_STATISTICS)


class _Later:
    """Something of :data:`_STATISTICS`, which is imported when this is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(import_module(_STATISTICS), self._name), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(_STATISTICS), self._name)(*args, **kwargs)
