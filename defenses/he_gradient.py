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
from typing import TYPE_CHECKING, Any

from vflsec.he.policy import Encrypted
from vflsec.plugin import Guarantee, Own, RunFacts, registry

if TYPE_CHECKING:
    from vflsec.core.link import Link
    from vflsec.core.visibility import Line
    from vflsec.he.cost import Batch

SUMMED_COLUMNS = 16
"""Columns of the passive party that a cost estimate supposes, which knows no data."""


@registry.defense
@dataclass(frozen=True)
class HeGradient(Encrypted):
    """Hyper-parameters.

    Attributes:
        mode: ``real`` (linear bottom only), ``emulated``, or ``clear``.
    """

    def link(self, own: Own) -> Link[Any] | None:
        from vflsec.he.layer import Settings
        from vflsec.he.links import SummedGradientLink

        if self.mode == "clear":
            return None
        self.check_task(own.classes)
        settings = Settings(
            mask_bits=self.mask_bits, flood_bits=self.flood_bits, threads=self.threads,
            parameters=self.parameters,
        )  # fmt: skip
        return SummedGradientLink(own.party, self.mode, settings)

    def sends(self, sends: frozenset[tuple[str, str, str]]) -> frozenset[tuple[str, str, str]]:
        if self.mode == "clear":
            return sends
        return self.hide(sends, "gradient", "active", ("ciphertext", "masked_sum"))

    def count_cost(self, batch: int, cut: int) -> Batch:
        from vflsec.he import cost

        return cost.summed(batch, cut, SUMMED_COLUMNS, parameters=self.parameters)

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
