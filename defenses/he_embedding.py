"""Homomorphically encrypted embeddings: an interactive layer between passive and active party.

The passive party encrypts its embedding h under CKKS; the active party computes z = h W + b and the
weight gradient under encryption and gets both back masked (protocol: `vflsec.he.interactive`). The
gradient of the embedding reaches the passive party in the clear, as in deployed systems. The active
party's masks hide the products from the passive party that decrypts them; the passive party's
flooding, noise of standard deviation 2^-flood_bits on every answer, hides its key from the active
party (`vflsec.he.flood` derives the bits).

``weights = "plain"``: the active party owns W. ``weights = "shared"``: W = W_a + W_p, and neither
party knows it. ``mode = "real"`` computes under encryption, ``"emulated"`` gives the same numbers
and the same visibility for sweeps, ``"clear"`` is the same network with h sent in the clear: the
row to compare with.

Hook: link. Owner: every passive party. It protects the embedding on its way and from a direct look.
Guarantee: none in the sense of an epsilon. Does not stop: with plain weights, solving z = h W + b
for h (exact where the output is as wide as the embedding) and the weight gradient for a small
batch; with any weights, a decoder fitted to auxiliary rows on z, and everything the passive party
does with its own trained bottom and with the gradients it receives: completion, direction, norm.
Nor does it stop an active party that sends a ciphertext it did not compute as prescribed: what the
passive party decrypts of it can be its key.

Source: Zhang, Zhu et al. and the FATE project, interactive layer of hetero neural networks
(github.com/FederatedAI/FATE); Cheon, Kim, Kim, Song, "Homomorphic encryption for arithmetic of
approximate numbers", ASIACRYPT 2017; Li and Micciancio, "On the security of homomorphic encryption
on approximate numbers", EUROCRYPT 2021; Benaissa et al., "TenSEAL", arXiv:2104.03152 (2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vflsec.he.policy import Encrypted
from vflsec.plugin import Guarantee, Own, RunFacts, check, registry

if TYPE_CHECKING:
    from vflsec.core.link import Link
    from vflsec.core.visibility import Line
    from vflsec.he.cost import Batch

ALIASES = ("interactive_layer",)


@registry.defense
@dataclass(frozen=True)
class HeEmbedding(Encrypted):
    """Hyper-parameters beside those of encryption.

    Attributes:
        weights: ``plain`` or ``shared``.
        out: output width of the interactive layer.
        lr: of the layer's plain SGD.
        processes: real mode with both roles in processes of their own.
    """

    weights: Literal["plain", "shared"] = "plain"
    out: check.Count = 32
    lr: check.Positive = 0.1
    processes: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "clear" and self.weights == "shared":
            raise check.fail("he_embedding.weights", "plain in mode clear", self.weights)

    def link(self, own: Own) -> Link[Any] | None:
        from vflsec.he.layer import Settings
        from vflsec.he.links import InteractiveLink

        self.check_task(own.classes)
        settings = Settings(
            weights=self.weights, out=self.out, lr=self.lr, mask_bits=self.mask_bits,
            flood_bits=self.flood_bits, flooded=self.mode != "clear",
            parameters=self.parameters, threads=self.threads, processes=self.processes,
        )  # fmt: skip
        return InteractiveLink(own.party, self.mode, settings)

    def sends(self, sends: frozenset[tuple[str, str, str]]) -> frozenset[tuple[str, str, str]]:
        kinds = ("activation", "weights", "weight_gradient", "output_gradient")
        worked_out = {(kind, "passive", "active") for kind in kinds}
        if self.mode == "clear":
            return sends | worked_out
        kept = self.hide(sends, "embedding", "passive", ("ciphertext", "masked", "masked_sum"))
        return kept | worked_out

    def count_cost(self, batch: int, cut: int) -> Batch:
        from vflsec.he import cost

        shared = self.weights == "shared"
        return cost.batch(batch, cut, self.out, shared=shared, parameters=self.parameters)

    def visibility(self) -> Sequence[Line]:
        from vflsec.he.visibility import embedding_lines

        return embedding_lines(shared=self.weights == "shared", sealed=self.mode != "clear")

    def bought(self, params: Mapping[str, Any]) -> tuple[str, str]:
        cut = int(params.get("cut", 32))
        leaves = "the passive party its own trained model and the gradient of each row"
        if self.mode == "clear":
            return "", leaves
        if self.weights == "shared":
            hides = "embeddings from linear algebra"
        elif self.out < cut:
            hides = f"the part of embeddings that {self.out} of {cut} output columns lack"
        else:
            hides = f"embeddings on the wire alone ({self.out} equations for {cut} unknowns)"
        return hides, f"the active party z, which a decoder may invert, and {leaves}"

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if self.mode == "clear":
            return Guarantee(covers="None: embeddings are sent in plain.")
        left = ("linear algebra, where the layer is wide enough" if self.weights == "plain"
                else "a decoder of the layer's output, fitted to auxiliary rows")  # fmt: skip
        emulated = "" if self.mode == "real" else " Emulated: no ciphertext was computed."
        return Guarantee(
            protects="example",
            covers="No epsilon. Embeddings are hidden in transit; flooding (noise of "
            f"2^-{self.flood_bits}) keeps the key from an honest active party. Not covered: "
            f"{left}; labels, and what gradients reveal of them.{emulated}",
        )
