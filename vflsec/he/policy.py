"""What policies have in common that encrypt what their owner sends or is sent by CKKS."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vflsec.core.policy import StepCost
from vflsec.plugin import Policy, check

if TYPE_CHECKING:
    from vflsec.he.ckks import Parameters
    from vflsec.he.cost import Batch

Sends = frozenset[tuple[str, str, str]]
_WAYS = (("passive", "active"), ("active", "passive"))


@dataclass(frozen=True)
class Encrypted(Policy):
    """Hyper-parameters.

    Attributes:
        mode: ``real``, ``emulated``, or ``clear``: nothing is encrypted.
        mask_bits: masks have standard deviation 2 ** mask_bits.
        flood_bits: the key holder adds noise of standard deviation 2 ** -flood_bits to answers.
        degree, bits, scale_bits: CKKS parameters; refused beyond the 128-bit table, or with less
            room than masks and flooding need.
        threads: of TenSEAL.
    """

    mode: Literal["real", "emulated", "clear"] = "emulated"
    mask_bits: int = 16
    flood_bits: int = 12
    degree: int = 8192
    bits: tuple[int, ...] = (60, 50, 50, 58)
    scale_bits: int = 50
    threads: check.Count = 1
    strengths: ClassVar[str] = ""
    owner: ClassVar[str] = "passive"  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        from vflsec.he.flood import check_answers

        check_answers(self.parameters, self.mask_bits, self.flood_bits)

    @property
    def parameters(self) -> Parameters:
        """Of CKKS."""
        from vflsec.he.ckks import Parameters

        return Parameters(self.degree, tuple(self.bits), self.scale_bits)

    def check_task(self, classes: int) -> None:
        if self.mode == "real":
            from vflsec.he.ckks import import_tenseal

            import_tenseal()  # says how to install it, before anything runs

    def step_cost(self, batch: int, classes: int, params: Mapping[str, Any]) -> StepCost:
        if self.mode == "clear":
            return StepCost()
        found = self.count_cost(batch, int(params.get("cut", 32)))
        return StepCost(found.by_operation, found.bytes, self.mode == "real")

    def count_cost(self, batch: int, cut: int) -> Batch:
        """Seconds and bytes of a step on so many rows of embeddings `cut` wide."""
        raise NotImplementedError("abstract")

    @staticmethod
    def hide(sends: Sends, kind: str, sender: str, crossing: Collection[str]) -> Sends:
        """What is sent where a kind stays with who works it out, and others cross both ways."""
        kept = {s for s in sends if s[0] != kind} | {(kind, sender, "nobody")}
        return frozenset(kept | {(other, *way) for other in crossing for way in _WAYS})
