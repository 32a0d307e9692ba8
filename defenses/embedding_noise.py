"""Clipped embeddings with Gaussian or Laplace noise, at training and at prediction.

Each row of an outgoing embedding is shortened to length C (in the 2-norm for Gaussian, in the
1-norm for Laplace noise) and gets noise of standard deviation or scale strength x C in every
coordinate. Whatever the row's columns were, what is released lies within C of 0, so replacing them
moves it by at most 2 C. Zeroing them out is such a replacement and no smaller one, for a bottom
model's answer to zeros is not zero. Laplace noise suits narrow cuts and few messages: its 1-norm
takes more of a wide row, and its epsilon grows with the number of messages, not its root.

Hook: outgoing, on embeddings (training and prediction). Owner: every passive party. Cost: one draw
for each number sent; nothing is sent more.
Guarantee: (epsilon, delta) of a row's features against whoever receives its embeddings, for its own
embeddings given the bottom, over all messages of the row, as counted in training, validation and
inference (and `predictions` more): the exact analytic Gaussian mechanism, or for Laplace noise T x
2 / strength or what its loss adds up to. None where the party also sends gradients that its rows'
features shape, as the middle party of ushaped does. Does not stop: label inference by the passive
party that adds the noise itself (gradients come back as they are), what rows like this one tell
about it, and what goes through other rows' embeddings: the bottom's weights were trained on the
rows, and a bottom that normalises by batch mixes them.

Source: clipping and noise as GaussianEmbeddingDP in SecretFlow (Apache-2.0); Balle and Wang,
"Improving the Gaussian mechanism for differential privacy", ICML 2018, arXiv:1805.06530, theorem 8;
Doroshenko et al., "Connect the dots", PETS 2022, arXiv:2207.04380.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.policy import AGAIN_ROWS, OFF, find_no_claim, read_batch
from vflsec.defenses.noise import moved_by_two, shorten
from vflsec.plugin import Guarantee, Message, NamedNoise, Own, Policy, RunFacts, check, registry

ALIASES = ("embedding_dp",)


@registry.defense
@dataclass(frozen=True)
class EmbeddingNoise(Policy):
    """Hyper-parameters.

    Attributes:
        clip_norm: length C to which rows are shortened.
        distribution: ``gaussian`` or ``laplace``.
        delta: at which epsilon is stated.
        predictions: releases of a training row after training that the guarantee should cover.
    """

    clip_norm: check.Positive = 1.0
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    delta: check.OpenUnit = 1e-5
    predictions: check.Whole = 0
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "noise scale / clipping length"
    covers = frozenset({"embedding"})
    reveals = frozenset({"gradient"})
    counted = "outgoing"
    by_row = True
    owner = "passive"

    def outgoing(self, message: Message, own: Own) -> Tensor:
        z = read_batch(self, message)  # (R, b, m)
        gaussian = self.distribution == "gaussian"
        draw = own.rng.normal if gaussian else own.rng.laplace
        noise = draw(z.shape[1:], active=own.active, dtype=torch.float64)
        wide = shorten(z.double() / self.clip_norm, 1.0, 2 if gaussian else 1)
        noisy = self.clip_norm * accountants.round_to_grid(wide, noise, own.column(wide))
        return own.choose(noisy.to(z.dtype).reshape(message.tensor.shape), message.tensor)

    def noise(self, scale: float) -> NamedNoise:
        order = 1 if self.distribution == "laplace" else 2
        return NamedNoise(self.distribution, self.clip_norm, self.clip_norm, order)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if strength <= 0:
            return OFF
        uses = facts.uses
        each = moved_by_two(self.distribution, strength, 1, self.delta)
        releases = uses.most + self.predictions
        made = moved_by_two(self.distribution, strength, max(1, releases), self.delta)
        none = find_no_claim(uses, "outgoing", each.epsilon, made.epsilon)
        if none is not None:
            return none
        more = f", {self.predictions} after training" if self.predictions else ""
        return Guarantee.claim(
            made, releases, protects="row", what="a party's features of a row in its embeddings",
            neighbours="their replacement", against="whoever receives them",
            over=uses.sentence("embeddings") + more,
            given="the bottom's weights, the other rows and how columns were prepared",
            leaves="those weights (see dpsgd), what similar rows reveal, labels, further "
            f"predictions, other rows' embeddings under batch norm, {AGAIN_ROWS}",
        )  # fmt: skip
