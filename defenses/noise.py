"""Gaussian or Laplace noise on outgoing gradients, with clipping and an accountant or without.

Without clipping (``clip = 0``, the published form) every coordinate gets noise whose standard
deviation (Gaussian) or scale (Laplace) is the strength itself, in the units of the message: the
same strength is b times as strong for a mean loss over batches of b rows. That is noise and nothing
else.

With ``clip = C > 0`` each row, multiplied by the batch size where the loss is a mean, is first
shortened to length C (in the 2-norm for Gaussian, in the 1-norm for Laplace noise); the noise has
standard deviation or scale strength x C. Replacing one row's label then moves that row by at most 2
C, and an accountant adds up the row's messages, as counted: the analytic Gaussian mechanism for T
releases of a Gaussian, T x 2 / strength or what the privacy loss of Laplace noise adds up to,
whichever is smaller.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: none without clipping. With clipping, epsilon-label-DP of a row's own gradient messages
given the models; the top model is trained on true labels, and what its weights tell is not covered.
Does not stop: completion of the trained bottom, averaging over epochs (the epsilon grows with
them).

Source: Fu et al., "Label inference attacks against vertical federated learning", USENIX Security
2022 (noisy gradients); Balle and Wang, "Improving the Gaussian mechanism for differential privacy",
ICML 2018, theorem 8; Doroshenko et al., "Connect the dots", PETS 2022, arXiv:2207.04380.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.accountants import Account
from vflsec.core.policy import AGAIN, OFF, describe_label_claim, find_no_claim, read_batch
from vflsec.plugin import Guarantee, Message, NamedNoise, Own, Policy, RunFacts, check, registry

RARE = 2.0**-30
"""How likely an exception from a pure epsilon may be."""

ALIASES = ("gaussian_noise", "laplace_noise", "noisy_gradients")


@registry.defense
@dataclass(frozen=True)
class Noise(Policy):
    """Hyper-parameters.

    Attributes:
        distribution: ``laplace`` (the published form) or ``gaussian``.
        clip: length C to which rows are shortened, in units of a row's own loss; 0 = no clipping.
        delta: at which epsilon is stated.
    """

    distribution: Literal["laplace", "gaussian"] = "laplace"
    clip: check.NonNegative = 0.0
    delta: check.OpenUnit = 1e-5
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "noise scale (/ clipping length if clipped)"
    covers = frozenset({"gradient"})
    counted = "outgoing"
    by_row = True

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = read_batch(self, message)  # (R, b, m)
        draw = own.rng.normal if self.distribution == "gaussian" else own.rng.laplace
        if self.clip:
            noise = draw(g.shape[1:], active=own.active, dtype=torch.float64)
            unit, wide = self.clip / message.scale, g.double()
            wide = shorten(wide / unit, 1.0, 1 if self.distribution == "laplace" else 2)
            made = (unit * accountants.round_to_grid(wide, noise, own.column(wide))).to(g.dtype)
        else:
            made = g + own.column(g) * draw(g.shape[1:], active=own.active)
        return own.choose(made.reshape(message.tensor.shape), message.tensor)

    def noise(self, scale: float) -> NamedNoise | None:
        order = 1 if self.distribution == "laplace" else 2
        unit = self.clip / scale
        return NamedNoise(self.distribution, unit, unit, order) if self.clip else None

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if strength <= 0:
            return OFF
        if not self.clip:
            return Guarantee(reason="rows are not clipped")
        uses = facts.uses
        each = moved_by_two(self.distribution, strength, 1, self.delta)
        made = moved_by_two(self.distribution, strength, max(1, uses.most), self.delta)
        none = find_no_claim(uses, "outgoing", each.epsilon, made.epsilon)
        if none is not None:
            return none
        return claim_gradients(made, facts, describe_label_claim(facts)[0])


def claim_gradients(made: Account, facts: RunFacts, neighbours: str) -> Guarantee:
    """The claim of a policy that treats each row of the gradient messages by itself."""
    return Guarantee.claim(
        made, facts.uses.most, protects="label", what="a row's label in its own gradients",
        neighbours=neighbours, against="their receivers", over=facts.uses.sentence("gradients"),
        given=f"{describe_label_claim(facts)[1]} the models and the other messages",
        leaves="what the top model's weights reveal (predictions, other rows' gradients), losses "
        f"over the batch, validation labels, {AGAIN}",
    )  # fmt: skip


def moved_by_two(distribution: str, strength: float, releases: int, delta: float) -> Account:
    """What releases cost whose noise is `strength` times the length of rows that move by two.

    What a neighbour never sends, for noise of 53 bits ends, is added to delta; where it is more
    than delta, or more than `RARE` beside a pure epsilon, epsilon is infinite.
    """
    if distribution == "gaussian":
        lost = accountants.beyond_normal(strength / 2, releases)
        made = accountants.gaussian(strength / 2, releases, delta)
        if lost >= delta:
            return replace(made, epsilon=math.inf)
        return made.widen(lost)
    lost = accountants.beyond_laplace(2 / strength, releases)
    made = accountants.laplace(2 / strength, releases, delta)
    return made if lost <= RARE else replace(made, epsilon=math.inf)


def shorten(x: Tensor, length: float, order: int = 2) -> Tensor:
    """Rows (R, b, m) with a norm of at most `length`; shorter ones as they are."""
    norm = torch.linalg.vector_norm(x, ord=order, dim=2, keepdim=True)
    return x * (length / norm.clamp_min(length))
