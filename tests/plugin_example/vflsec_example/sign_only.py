"""Send the signs of the gradient, scaled by its mean magnitude, instead of the gradient.

With strength a in [0, 1] each row leaves as (1 - a) g + a mean(|g|) sign(g). Hides how numbers of
one row compare in size; keeps their signs and the row's mean magnitude. No guarantee. Does not stop
direction attacks, for which signs are enough.

Source: an example; sign compression after Bernstein et al. (2018), signSGD, arXiv:1802.04434.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vflsec.plugin import Message, Own, Policy, registry


@registry.defense
@dataclass(frozen=True)
class SignOnly(Policy):
    """Signs times the row's mean magnitude."""

    strengths = "share a in [0, 1] of each number that is replaced by its sign, no unit"
    trial = (0.0, 0.5, 1.0)
    covers = frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        if message.kind not in self.covers:
            return message.tensor
        g = message.tensor  # (R, b, d)
        if not g.is_floating_point() or g.dim() < 3:
            raise self.refuse(message, "it must be numbers (replicas, rows, width).")
        if bool((own.strength < 0).any()) or bool((own.strength > 1).any()):
            raise self.refuse(message, f"strength must be in [0, 1], got {own.strength.tolist()}.")
        share = own.column(g)
        signs = g.sign() * g.abs().flatten(2).mean(-1).reshape(*g.shape[:2], *[1] * (g.dim() - 2))
        return ((1 - share) * g + share * signs).where(share > 0, g)
