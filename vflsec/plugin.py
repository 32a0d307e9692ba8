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
    from vflsec.core import check
    from vflsec.core.algorithm import Algorithm
    from vflsec.core.attack import Accumulate, Attack, gradient_form
    from vflsec.core.guess import Guess
    from vflsec.core.message import Message
    from vflsec.core.needs import Need
    from vflsec.core.policy import Guarantee, Own, Policy
    from vflsec.core.privacy_usage import RunFacts
    from vflsec.core.rng import as_global, numpy_generator
    from vflsec.core.rounds import Learner, Rounds, Wire
    from vflsec.core.row_sets import RowSets
    from vflsec.core.view import Facts, Known, Table, View
    from vflsec.data.source import PartyData, Source
    from vflsec.errors import PolicyError, ThreatModelError
    from vflsec.plugins import registry
    from vflsec.runtime.plain_values import Plain

__all__ = [
    "Accumulate", "Algorithm", "Attack", "Facts", "Guarantee", "Guess", "Known", "Learner",
    "Message", "Need", "Own", "PartyData", "Plain", "Policy", "PolicyError", "Rounds", "RowSets",
    "RunFacts", "Source", "Table", "ThreatModelError", "View", "Wire", "as_global", "check",
    "gradient_form", "numpy_generator", "registry",
]  # fmt: skip

_MODULES = {"check": "vflsec.core.check", "registry": "vflsec.plugins.registry"}
_HOME = {
    "Accumulate": "vflsec.core.attack",
    "Algorithm": "vflsec.core.algorithm",
    "Attack": "vflsec.core.attack",
    "Facts": "vflsec.core.view",
    "Guarantee": "vflsec.core.policy",
    "Guess": "vflsec.core.guess",
    "Known": "vflsec.core.view",
    "Learner": "vflsec.core.rounds",
    "Message": "vflsec.core.message",
    "Need": "vflsec.core.needs",
    "Own": "vflsec.core.policy",
    "PartyData": "vflsec.data.source",
    "Plain": "vflsec.runtime.plain_values",
    "Policy": "vflsec.core.policy",
    "PolicyError": "vflsec.errors",
    "Rounds": "vflsec.core.rounds",
    "RowSets": "vflsec.core.row_sets",
    "RunFacts": "vflsec.core.privacy_usage",
    "Source": "vflsec.data.source",
    "Table": "vflsec.core.view",
    "ThreatModelError": "vflsec.errors",
    "View": "vflsec.core.view",
    "Wire": "vflsec.core.rounds",
    "as_global": "vflsec.core.rng",
    "gradient_form": "vflsec.core.attack",
    "numpy_generator": "vflsec.core.rng",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vflsec.plugin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
