"""The names that attacks, defenses, algorithms and data sets are written with.

Import them from here and from nowhere else in vflsec: these names stay where they are, while the
modules behind them may move. An attack in full::

    from dataclasses import dataclass
    from typing import ClassVar

    import torch

    from vflsec.plugin import Attack, Guess, View, registry

    @registry.attack
    @dataclass(frozen=True)
    class LargestNorm(Attack):
        \"\"\"Rows with a larger gradient are guessed to be of class 1.\"\"\"

        needs: ClassVar[frozenset[str]] = frozenset({"gradient:mean"})
        target: ClassVar[str] = "label"
        binary_only: ClassVar[bool] = True

        def infer(self, view: View, rng: torch.Generator) -> Guess:
            rows = view.target_rows  # (n,) sample ids
            gradients = view.received("gradient").of_rows(rows)  # (n, d)
            return Guess(self.target, rows, gradients.norm(dim=1))

`registry` and `check` are modules, the others are classes and functions. Each is imported when it
is first asked for, so that an attack does not import what only a data set needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vflsec import check, registry
    from vflsec.algorithm import Algorithm
    from vflsec.attack import Accumulate, Attack, gradient_form
    from vflsec.data.source import PartyData, Source
    from vflsec.errors import PolicyError, ThreatModelError
    from vflsec.guess import Guess
    from vflsec.message import Message
    from vflsec.needs import Need
    from vflsec.policy import Guarantee, Own, Policy
    from vflsec.rng import as_global, numpy_generator
    from vflsec.view import Facts, Known, Table, View

__all__ = [
    "Accumulate", "Algorithm", "Attack", "Facts", "Guarantee", "Guess", "Known", "Message", "Need",
    "Own", "PartyData", "Policy", "PolicyError", "Source", "Table", "ThreatModelError", "View",
    "as_global", "check", "gradient_form", "numpy_generator", "registry",
]  # fmt: skip

_MODULES = {"check": "vflsec.check", "registry": "vflsec.registry"}
_HOME = {
    "Accumulate": "vflsec.attack",
    "Algorithm": "vflsec.algorithm",
    "Attack": "vflsec.attack",
    "Facts": "vflsec.view",
    "Guarantee": "vflsec.policy",
    "Guess": "vflsec.guess",
    "Known": "vflsec.view",
    "Message": "vflsec.message",
    "Need": "vflsec.needs",
    "Own": "vflsec.policy",
    "PartyData": "vflsec.data.source",
    "Policy": "vflsec.policy",
    "PolicyError": "vflsec.errors",
    "Source": "vflsec.data.source",
    "Table": "vflsec.view",
    "ThreatModelError": "vflsec.errors",
    "View": "vflsec.view",
    "as_global": "vflsec.rng",
    "gradient_form": "vflsec.attack",
    "numpy_generator": "vflsec.rng",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vflsec.plugin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
