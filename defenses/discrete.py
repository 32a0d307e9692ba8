"""Gradients rounded to a grid of equally wide steps.

Each number g becomes D round(g / D) with D = 2 bound / bins; with ``clip = true`` it is first
limited to [-bound, bound], which leaves at most bins + 1 levels. The bound is given in the units of
the message or, with ``bound = 0``, taken as twice the standard deviation of the first batch sent to
each receiver and kept for the run. The swept strength is 1 / bins.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: none; it is deterministic. Does not stop: direction and norm attacks (large entries
survive rounding), the direct attack unless the label's entry rounds to zero, completion of the
trained bottom.

Source: Dryden, Moon, Jacobs, Van Essen, "Communication quantization for data-parallel training of
deep neural networks", MLHPC 2016; as a defense (multistep gradient, DiscreteSGD): Fu et al., "Label
inference attacks against vertical federated learning", USENIX Security 2022, section 6; the bound
from the first batch: Zou, Liu, Kang, Liu, He, Yi, Yang, arXiv:2112.05409.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.policy import read_batch
from vflsec.plugin import Message, Own, Policy, check, registry

ALIASES = ("discrete_sgd", "multistep")


def _strength(bins: float) -> float:
    return 1.0 / check.integer("discrete: bins", bins, low=1)


@registry.defense
@dataclass(frozen=True)
class Discrete(Policy):
    """Hyper-parameters.

    Attributes:
        bound: half width of the grid in the units of the message; 0 = twice the standard deviation
            of the first batch.
        clip: limit numbers to the grid.
    """

    bound: check.NonNegative = 0.0
    clip: bool = False
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "1 / number of bins"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"bins": _strength}
    covers = frozenset({"gradient"})

    @property
    def by_row(self) -> bool:  # type: ignore[override]
        return self.bound > 0  # else it is told by all rows of the first batch

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = read_batch(self, message)  # (R, b, m)
        bound = self._bound(message, own, g)  # (R, 1, 1)
        step = 2 * bound * own.column(g)
        places = torch.round(g / torch.where(step > 0, step, 1.0))
        if self.clip:  # an odd number of bins has its ends between two places
            most = torch.floor(0.5 / own.column(g) + 1e-6)
            places = torch.minimum(torch.maximum(places, -most), most)
        rounded = step * places
        out = torch.where(step > 0, rounded + 0.0, g)  # a rounded -0.0 would tell its sign
        return own.choose(out.reshape(message.tensor.shape), message.tensor)

    def _bound(self, message: Message, own: Own, g: Tensor) -> Tensor:
        key = f"{message.receiver}/{message.name}"
        if key not in own.memory:
            found = (
                [2 * one.std() for one in g]
                if not self.bound
                else [g.new_tensor(self.bound)] * len(g)
            )
            own.memory[key] = torch.stack(found).reshape(-1, 1, 1)
        return own.memory[key]
