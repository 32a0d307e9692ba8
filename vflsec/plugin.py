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

from typing import TYPE_CHECKING

from vflsec.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from vflsec.core import check
    from vflsec.core.algorithm import Algorithm
    from vflsec.core.attack import Accumulate, Attack, gradient_form
    from vflsec.core.guess import Guess
    from vflsec.core.message import Message
    from vflsec.core.needs import Need
    from vflsec.core.policy import Guarantee, NamedNoise, Own, Policy, RowSets
    from vflsec.core.privacy_usage import RunFacts
    from vflsec.core.rng import as_global, numpy_generator
    from vflsec.core.rounds import Learner, Rounds, Wire
    from vflsec.core.view import Facts, Known, Table, View
    from vflsec.data.source import PartyData, Source
    from vflsec.errors import PolicyError, ThreatModelError
    from vflsec.plugins import registry
    from vflsec.runtime.plain_values import Plain

__all__ = [
    "Accumulate", "Algorithm", "Attack", "Facts", "Guarantee", "Guess", "Known", "Learner",
    "Message", "NamedNoise", "Need", "Own", "PartyData", "Plain", "Policy", "PolicyError",
    "Rounds", "RowSets", "RunFacts", "Source", "Table", "ThreatModelError", "View", "Wire",
    "as_global", "check", "gradient_form", "numpy_generator", "registry",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
