"""Clipped embeddings with Gaussian noise, at training and at prediction.

Each row of an outgoing embedding is shortened to length C (2-norm) and gets Gaussian noise of
standard deviation strength x C in every coordinate. Replacing the row's features moves what is
released by at most 2 C.

Hook: outgoing, on embeddings (training and prediction). Owner: every passive party.
Guarantee: (epsilon, delta) of a row's features against the active party, for its own embeddings
given the bottom, over all messages of the row, as counted in training, validation and inference
(and `predictions` more): the exact analytic Gaussian mechanism. None where the party also sends
gradients that its rows' features shape, as the middle party of ushaped does. Does not stop: label
inference by the passive party that adds the noise itself, and what the bottom's weights, which were
trained on the rows, carry into other rows' embeddings.

Source: clipping and noise as GaussianEmbeddingDP in SecretFlow (Apache-2.0); Balle and Wang,
"Improving the Gaussian mechanism for differential privacy", ICML 2018, arXiv:1805.06530, theorem 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vflsec import accounting, check, registry
from vflsec.counts import uses_of
from vflsec.defenses.noise import shorten
from vflsec.message import Message
from vflsec.policy import OFF, Guarantee, Own, Policy, batch, unclaimed

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
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "noise standard deviation / clipping length"
    covers = frozenset({"embedding"})
    reveals = frozenset({"gradient"})
    counted = "outgoing"
    owner = "passive"

    def __post_init__(self) -> None:
        check.positive("embedding_noise.clip_norm", self.clip_norm)
        accounting.check_delta("embedding_noise.delta", self.delta)
        check.integer("embedding_noise.predictions", self.predictions, low=0)

    def outgoing(self, message: Message, own: Own) -> Tensor:
        z = batch(self, message)  # (R, b, m)
        noise = own.rng.normal(z.shape[1:], active=own.active, dtype=torch.float64)
        wide = shorten(z.double() / self.clip_norm, 1.0)
        noisy = self.clip_norm * accounting.on_grid(wide, own.column(wide) * noise)
        return own.choose(noisy.to(z.dtype).reshape(message.tensor.shape), message.tensor)

    def guarantee(self, strength: float, facts: dict[str, Any]) -> Guarantee:
        if strength <= 0:
            return OFF
        uses = uses_of(facts)
        none = unclaimed(uses, "outgoing")
        if none is not None:
            return none
        releases = uses.most + self.predictions
        made = accounting.gaussian(strength / 2, releases, self.delta)
        more = f", {self.predictions} more after training" if self.predictions else ""
        return Guarantee(
            protects="row", epsilon=made.epsilon, delta=made.delta, releases=releases,
            accountant=made.accountant, what="a row's features in its own embeddings",
            neighbours="their replacement", against="the active party",
            over=uses.sentence("embedding messages") + more,
            given="the bottom's weights, the other rows and how columns were prepared",
            leaves=(
                "those weights depend on the training rows (protect them with dpsgd), labels, more "
                "predictions than stated, what the row does to other rows' embeddings where a "
                "bottom normalises over the batch"
            ),
            reason="",
        )  # fmt: skip
