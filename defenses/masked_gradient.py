"""Masked gradients: the coordinator of a regression decrypts a party's gradient under its mask.

A party writes its gradient g in whole numbers, adds a mask that it drew for this batch alone, and
takes it off what comes back:

    m = ( round(2^40 g) + R ) mod 2^64,    R uniform on 0, ..., 2^64 - 1

m is uniform whatever g is, so the coordinator learns nothing from it. FATE's hetero LR sends
gradients to its arbiter without masks. Ciphers are emulated; the owner goes on with g as it was, as
in a ring that is wide enough for it.

Hook: mask. Owner: every party.
Guarantee: no epsilon; what the coordinator decrypts of gradients does not depend on them. Does not
stop: the party itself, which takes its mask off and has its gradient in plain as ever
(glm_gradient); the coordinator with a party that hands it the encrypted derivatives, to which it
has the key; the loss of each batch, which has no mask.

Source: Hardy et al., "Private federated learning on vertically partitioned data via entity
resolution and additively homomorphic encryption", arXiv:1711.10677 (2017); Yang, Liu, Chen, Tong,
"Federated machine learning: concept and applications", arXiv:1902.04885 (2019), table 1, with the
masks R_A and R_B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.plugin import Guarantee, Own, Policy, RunFacts, registry

if TYPE_CHECKING:
    from vflsec.core.visibility import Line

ALIASES = ("gradient_mask", "additive_mask")
KIND, COORDINATOR = "model_gradient", "coordinator"
FRACTION = 2.0**40
"""Whole numbers are gradients times this."""


@registry.defense
@dataclass(frozen=True)
class MaskedGradient(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = ""
    owner: ClassVar[str] = "all"  # type: ignore[misc]
    quantities: ClassVar[bool] = True
    world: ClassVar[dict[str, Any]] = {"algorithm": "vertical_glm"}

    def mask(
        self, values: NDArray[np.float64], rng: np.random.Generator, own: Own
    ) -> NDArray[np.int64]:
        whole = np.round(values * FRACTION).astype(np.int64)
        drawn = rng.integers(-(2**63), 2**63, size=values.shape, dtype=np.int64)
        with np.errstate(over="ignore"):  # modulo 2^64
            return whole + drawn

    def sends(self, sends: frozenset[tuple[str, str, str]]) -> frozenset[tuple[str, str, str]]:
        bare = {s for s in sends if s[0] == KIND and s[2] == COORDINATOR}
        ways = {way for _, party, _ in bare for way in ((party, COORDINATOR), (COORDINATOR, party))}
        return (sends - bare) | {("masked_sum", *way) for way in ways}

    def visibility(self) -> Sequence[Line]:
        from vflsec.core.visibility import Line

        both = ("active", "passive")
        return (
            Line("sample ids of the batch", "ids", both, when="the first time"),
            Line("score and derivative of each row (key: coordinator)", "", opaque=both,
                 when="every batch"),
            Line("gradient of the own coefficients", KIND, both, masked=(COORDINATOR,),
                 when="every batch", drawn="R of its owner"),
            Line("loss of the batch, of two parties", "loss", (COORDINATOR,), when="every batch"),
        )  # fmt: skip

    def bought(self, params: Mapping[str, Any]) -> tuple[str, str]:
        return (
            "every party's gradients from the coordinator",
            "each passive party its gradient of every batch, which labels can be solved from, and "
            "the coordinator the loss of every batch",
        )

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return Guarantee(
            covers="No epsilon. The coordinator decrypts uniform numbers. Not covered: what each "
            "party reads from its own gradient, in plain, derivatives of rows that the "
            "coordinator opens for it, and the loss of each batch."
        )
