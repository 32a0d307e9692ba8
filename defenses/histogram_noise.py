"""Histogram noise: a passive party adds Gaussian noise to the sums that the active party decrypts.

In each of d columns a row of another value moves to another bin, and adds at most 1 to a sum of
g = p - y, 1/4 to one of h = p (1 - p) and 1 to a count of rows. So the sums of a level of a
tree change by at most D = sqrt( 2 d (1 + 1/16 + 1) ) in the L2 norm, and each gets

    N(0, (strength D)^2)

of its own. The sums of `levels` levels are levels Gaussian releases with this noise multiplier.

Hook: sums. Owner: every passive party.
Guarantee: none of the run. The sums alone have the epsilon that :func:`account` gives, for the
columns of one row, without GOSS. Does not stop: the sides of rows at the party's own splits, which
it sends in plain, exactly, under every profile: whoever holds them has the order of rows at every
cut that was taken; anything in ``xgboost-open``, which sends no sums; labels.

Source: Dwork, McSherry, Nissim, Smith, "Calibrating noise to sensitivity in private data analysis",
TCC 2006; Balle and Wang, "Improving the Gaussian mechanism", ICML 2018, theorem 8, for the account;
the sensitivity of these sums: this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.core.accountants import check_delta, gaussian
from vflsec.core.policy import OFF
from vflsec.plugin import Guarantee, Own, Policy, RunFacts, check, registry

ALIASES = ("noisy_histogram",)
ROW = 1 + 1 / 16 + 1
"""The squared norm of what one row adds to the sums of its bin."""


@registry.defense
@dataclass(frozen=True)
class HistogramNoise(Policy):
    """Hyper-parameters.

    Attributes:
        levels: of trees over which the account composes: trees times depth.
        delta: of the account.
    """

    levels: check.Count = 30
    delta: float = 1e-5
    strengths: ClassVar[str] = "noise deviation / sensitivity"
    trial: ClassVar[tuple[float, float, float]] = (0.0, 0.5, 4.0)
    owner: ClassVar[str] = "passive"  # type: ignore[misc]
    world: ClassVar[dict[str, Any]] = {"algorithm": "secureboost"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(f"{self.name}: delta", self.delta)

    def sums(
        self, values: NDArray[np.float64], rng: np.random.Generator, own: Own
    ) -> NDArray[np.float64]:
        reach = (2 * values.shape[1] * ROW) ** 0.5
        scale = float(own.strength[own.context["replica"]]) * reach
        noisy: NDArray[np.float64] = values + scale * rng.standard_normal(values.shape)
        return noisy

    def account(self, strength: float) -> float:
        """Epsilon of the sums of all levels, at `delta`."""
        return gaussian(strength, self.levels, self.delta).epsilon

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if strength <= 0:
            return OFF
        return Guarantee(
            reason=f"the sums of {self.levels} levels would have epsilon "
            f"{self.account(strength):.4g} at delta {self.delta:g}, but the sides of rows are sent"
        )
