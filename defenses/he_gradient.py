"""Homomorphically encrypted gradients: a passive party learns only sums over the batch.

The active party holds the key and sends Enc(dL/dz). The passive party computes the gradient of its
parameters under encryption, adds a mask, has the sum decrypted and takes the mask off: no gradient
of a single row is ever in the clear on its side. The active party adds flooding noise of standard
deviation 2^-flood_bits to what it decrypts, or the passive party, which knows the mask, could solve
for the active party's key (`vflsec.he.flood`). ``mode = "real"`` does so for a linear bottom, the
classical vertical linear or logistic regression, [X 1]^T Enc(dL/dz). For deeper bottoms no deployed
protocol computes the whole backward pass under encryption, so only ``mode = "emulated"`` exists,
which says so in the results. ``mode = "clear"`` sends gradients as they are: the row to compare
with.

Hook: link. Owner: every passive party (it is the one that sees less).
Guarantee: none in the sense of an epsilon. Does not stop: batch label inference from the summed
gradients, completion of the own trained bottom with a few labels, and anything at batch size 1,
where the sum is the row.

Source: Hardy et al., "Private federated learning on vertically partitioned data via entity
resolution and additively homomorphic encryption", arXiv:1711.10677 (2017); Yang et al.,
arXiv:1911.09824 (2019); Zou, Liu, Kang et al., "Defending batch-level label inference and
replacement attacks in vertical federated learning", IEEE Trans. Big Data (2022), arXiv:2112.05409.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vflsec.core.policy import StepCost
from vflsec.plugin import Guarantee, Own, Policy, RunFacts, check, registry

if TYPE_CHECKING:
    from vflsec.core.link import Link
    from vflsec.core.visibility import Line

SUMMED_COLUMNS = 16
"""Columns of the passive party that a cost estimate supposes, which knows no data."""


@registry.defense
@dataclass(frozen=True)
class HeGradient(Policy):
    """Hyper-parameters.

    Attributes:
        mode: ``real`` (linear bottom only), ``emulated``, or ``clear``.
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
        from vflsec.he.ckks import Parameters
        from vflsec.he.flood import check_answers

        parameters = Parameters(self.degree, tuple(self.bits), self.scale_bits)
        check_answers(parameters, self.mask_bits, self.flood_bits)

    def check_task(self, classes: int) -> None:
        if self.mode == "real":
            from vflsec.he.ckks import import_tenseal

            import_tenseal()  # says how to install it, before anything runs

    def link(self, own: Own) -> Link[Any] | None:
        from vflsec.he.ckks import Parameters, import_tenseal
        from vflsec.he.layer import Settings
        from vflsec.he.links import SummedGradientLink

        if self.mode == "clear":
            return None
        if self.mode == "real":
            import_tenseal()
        settings = Settings(
            mask_bits=self.mask_bits, flood_bits=self.flood_bits, threads=self.threads,
            parameters=Parameters(self.degree, tuple(self.bits), self.scale_bits),
        )  # fmt: skip
        return SummedGradientLink(own.party, self.mode, settings)

    def sends(self, sends: frozenset[tuple[str, str, str]]) -> frozenset[tuple[str, str, str]]:
        if self.mode == "clear":
            return sends
        kept = {s for s in sends if s[0] != "gradient"}
        kept.add(("gradient", "active", "nobody"))  # its owner keeps it, nobody else gets it
        both = {("passive", "active"), ("active", "passive")}
        kinds = ("ciphertext", "masked_sum")
        return frozenset(kept | {(kind, *way) for kind in kinds for way in both})

    def step_cost(self, batch: int, classes: int, params: Mapping[str, Any]) -> StepCost:
        if self.mode == "clear":
            return StepCost()
        from vflsec.he import cost
        from vflsec.he.ckks import Parameters

        found = cost.summed(
            batch, int(params.get("cut", 32)), SUMMED_COLUMNS,
            parameters=Parameters(self.degree, tuple(self.bits), self.scale_bits),
        )  # fmt: skip
        return StepCost(found.by_operation, found.bytes, self.mode == "real")

    def visibility(self) -> Sequence[Line]:
        from vflsec.he.visibility import gradient_lines, plain_lines

        return plain_lines() if self.mode == "clear" else gradient_lines()

    def bought(self, params: Mapping[str, Any]) -> tuple[str, str]:
        own = "its own trained model, and the active party the embeddings"
        if self.mode == "clear":
            return "", f"the passive party the gradient of each row and {own}"
        return (
            "the gradient of each row from the passive party",
            f"that party the sum over each batch (rows of a small batch can be solved), and {own}",
        )

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if self.mode == "clear":
            return Guarantee(covers="None: gradients are sent in plain.")
        deep = " Emulated: no deployed protocol computes this for deep bottoms."
        emulated = "" if self.mode == "real" else deep
        return Guarantee(
            protects="label",
            covers="No epsilon. The passive party sees sums over batches, not rows; flooding "
            f"(noise of 2^-{self.flood_bits}) keeps the key from it if it is honest. Not covered: "
            f"what sums say about labels.{emulated}",
        )
