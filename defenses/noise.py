"""Gaussian or Laplace noise on outgoing gradients, with clipping and an accountant or without.

Without clipping (``clip = 0``, the published form) every coordinate gets noise whose standard
deviation (Gaussian) or scale (Laplace) is the strength itself, in the units of the message: the
same strength is b times as strong for a mean loss over batches of b rows. That is noise and nothing
else.

With ``clip = C > 0`` each row, multiplied by the batch size where the loss is a mean, is first
shortened to length C (in the 2-norm for Gaussian, in the 1-norm for Laplace noise); the noise has
standard deviation or scale strength x C. Replacing one row's label then moves that row by at most
2 C, and an accountant adds up the epochs: the analytic Gaussian mechanism for T releases of a
Gaussian, T x 2 / strength or the Renyi bound of Laplace noise, whichever is smaller.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: none without clipping. With clipping, epsilon-label-DP of a row's own gradient messages
given the models; the top model is trained on true labels, and what its weights tell is not covered.
Does not stop: completion of the trained bottom, averaging over epochs (the epsilon grows with
them).

Source: Fu et al., "Label inference attacks against vertical federated learning", USENIX Security
2022 (noisy gradients); Balle and Wang, "Improving the Gaussian mechanism for differential privacy",
ICML 2018, theorem 8; Mironov, "Renyi differential privacy", CSF 2017, table II.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vflsec import accounting, check, registry
from vflsec.message import Message
from vflsec.policy import Guarantee, Own, Policy, batch

ALIASES = ("gaussian_noise", "laplace_noise", "noisy_gradients")


@registry.defense
@dataclass(frozen=True)
class Noise(Policy):
    """Hyper-parameters.

    Attributes:
        distribution: ``laplace`` (the published form) or ``gaussian``.
        clip: length C to which rows are shortened, in units of a row's own loss; 0 = no clipping.
        delta: at which a Gaussian epsilon is stated.
    """

    distribution: Literal["laplace", "gaussian"] = "laplace"
    clip: float = 0.0
    delta: float = 1e-5
    strengths: ClassVar[str] = (
        "noise scale: absolute, or in units of the clipping length if clipped"
    )
    covers = frozenset({"gradient"})

    def __post_init__(self) -> None:
        check.one_of("noise.distribution", self.distribution, ("laplace", "gaussian"))
        check.non_negative("noise.clip", self.clip)
        accounting.check_delta("noise.delta", self.delta)

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = batch(self, message)  # (R, b, m)
        scale = own.column(g)
        if self.clip:
            length = self.clip / message.scale
            g = shorten(g, length, 1 if self.distribution == "laplace" else 2)
            scale = scale * length
        if self.distribution == "gaussian":
            noise = own.rng.normal(g.shape[1:], active=own.active)
        else:
            noise = own.rng.laplace(g.shape[1:], active=own.active)
        return own.choose((g + scale * noise).reshape(message.tensor.shape), message.tensor)

    def guarantee(self, strength: float, facts: dict[str, Any]) -> Guarantee:
        if strength <= 0:
            return Guarantee(covers="Switched off: gradients leave as they are.")
        if not self.clip:
            return Guarantee(
                covers="No guarantee: rows are not clipped, so this is noise without an accountant."
            )
        epochs = int(facts.get("epochs", 1))
        if self.distribution == "gaussian":
            made = accounting.gaussian(strength / 2, epochs, self.delta)
        else:
            made = accounting.laplace([2 / strength], epochs, 0.0)
        return Guarantee(
            protects="label", epsilon=made.epsilon, delta=made.delta, releases=epochs,
            accountant=made.accountant,
            covers=(
                "The gradient messages of each row, released once an epoch, under replacement of "
                "its label, given the models. Not covered: the top model is trained on true "
                "labels, so its weights (and through them other rows' gradients and all "
                "predictions) are a second way out; validation labels used for early stopping."
            ),
        )  # fmt: skip


def shorten(x: Tensor, length: float, order: int = 2) -> Tensor:
    """Rows (R, b, m) with a norm of at most `length`; shorter ones as they are."""
    norm = torch.linalg.vector_norm(x, ord=order, dim=2, keepdim=True)
    return x * (length / norm.clamp_min(length))
