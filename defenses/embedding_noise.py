"""Clipped embeddings with Gaussian noise, at training and at prediction.

Each row of an outgoing embedding is shortened to length C (2-norm) and gets Gaussian noise of
standard deviation strength x C in every coordinate. Replacing the row's features moves what is
released by at most 2 C.

Hook: outgoing, on embeddings (training and prediction). Owner: every passive party.
Guarantee: (epsilon, delta) of a row's features against the active party, for its own embeddings
given the bottom, over one release an epoch (and `predictions` more): the exact analytic Gaussian
mechanism. Does not stop: label inference by the passive party that adds the noise itself, and what
the bottom's weights, which were trained on the rows, carry into other rows' embeddings.

Source: clipping and noise as GaussianEmbeddingDP in SecretFlow (Apache-2.0); Balle and Wang,
"Improving the Gaussian mechanism for differential privacy", ICML 2018, arXiv:1805.06530, theorem 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vflsec import accounting, check, registry
from vflsec.defenses.noise import shorten
from vflsec.message import Message
from vflsec.policy import Guarantee, Own, Policy, batch

ALIASES = ("embedding_dp",)


@registry.defense
@dataclass(frozen=True)
class EmbeddingNoise(Policy):
    """Hyper-parameters.

    Attributes:
        clip_norm: length C to which rows are shortened.
        delta: at which epsilon is stated.
        predictions: releases of a training row after training that the guarantee should cover.
    """

    clip_norm: float = 1.0
    delta: float = 1e-5
    predictions: int = 0
    strengths: ClassVar[str] = "noise standard deviation / clipping length"
    covers = frozenset({"embedding"})
    owner = "passive"

    def __post_init__(self) -> None:
        check.positive("embedding_noise.clip_norm", self.clip_norm)
        accounting.check_delta("embedding_noise.delta", self.delta)
        check.integer("embedding_noise.predictions", self.predictions, low=0)

    def outgoing(self, message: Message, own: Own) -> Tensor:
        z = batch(self, message)  # (R, b, m)
        noise = own.rng.normal(z.shape[1:], active=own.active)
        noisy = shorten(z, self.clip_norm) + own.column(z) * self.clip_norm * noise
        return own.choose(noisy.reshape(message.tensor.shape), message.tensor)

    def guarantee(self, strength: float, facts: dict[str, Any]) -> Guarantee:
        if strength <= 0:
            return Guarantee(covers="Switched off: embeddings leave as they are.")
        releases = int(facts.get("epochs", 1)) + self.predictions
        made = accounting.gaussian(strength / 2, releases, self.delta)
        return Guarantee(
            protects="example", epsilon=made.epsilon, delta=made.delta, releases=releases,
            accountant=made.accountant,
            covers=(
                "A row's features in its own embeddings, under replacement of the row, given the "
                f"bottom's weights, over {releases} releases. Not covered: those weights depend on "
                "the training rows (protect them with dpsgd), labels, more predictions than stated."
            ),
        )  # fmt: skip
