"""Isotropic Gaussian noise on outgoing tensors, scaled by the largest row of the batch.

Each row d_i of an outgoing batch (b, m) becomes d_i + e_i with e_ij ~ N(0, s^2) i.i.d. and
s = strength x max_i ||d_i||_2 / sqrt(m), drawn afresh for every message. Then
E||e_i||^2 = strength^2 max_i ||d_i||^2 whatever m is. For a parameter tensor the rows are its first
dimension, and a one-dimensional tensor has m = 1.

Hook: outgoing. Owner: the active party for gradients, every passive party for embeddings. In
self-supervised pre-training the paper noises what the *active* party shows there: set
``on = "embedding"`` (and a second iso with ``on = "state"``), ``phase = "pretrain"``, and the party
``active``. Running statistics of normalisation layers travel beside the parameters as messages
named ``buffers``; by default they pass as they are (`spare`) and are not protected: the paper
noises parameters only, and a noised variance may turn negative.
Guarantee: none. The scale depends on the data and on the other rows of the batch, so no epsilon
can be stated. Does not stop: direction attacks at strength 1 (the noise in any one direction is
only strength x max / sqrt(m)), averaging the rows of one sample over epochs, completion of a bottom
that still learns.

Source: He, Kang et al., "A hybrid self-supervised learning framework for vertical federated
learning", arXiv:2208.08934 (2022), eq. 7; Li et al., "Label leakage and protection in two-party
split learning", ICLR 2022, arXiv:2102.08504 (white Gaussian noise).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.plugin import Message, Own, Policy, registry

ALIASES = ("isotropic",)


@registry.defense
@dataclass(frozen=True)
class Iso(Policy):
    """Hyper-parameters.

    Attributes:
        on: the message kind that is noised: ``gradient``, ``embedding`` or ``state`` (parameters).
        phase: the training phase whose messages are noised; ``""`` means all, and predictions.
        spare: names of messages that pass as they are, and are not protected.
    """

    on: Literal["gradient", "embedding", "state"] = "gradient"
    phase: str = ""
    spare: tuple[str, ...] = ("buffers",)
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "noise norm / largest row norm of the batch"

    @property
    def covers(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.on})

    @property
    def owner(self) -> str:  # type: ignore[override]
        return {"gradient": "active", "embedding": "passive", "state": "all"}[self.on]

    def outgoing(self, message: Message, own: Own) -> Tensor:
        if (self.phase and message.phase != self.phase) or message.name in self.spare:
            return message.tensor
        d = message.tensor  # (R, b, m), or (R, ...) for parameters
        if not d.is_floating_point():
            raise self.refuse(message, "it is not floating point.")
        r = d.shape[0]
        rows = d if d.dim() == 3 else d.reshape(r, d.shape[1] if d.dim() > 1 else 1, -1)
        largest = torch.linalg.vector_norm(rows, dim=2, keepdim=True).amax(dim=1, keepdim=True)
        sigma = own.column(largest) * largest / math.sqrt(rows.shape[2])  # (R, 1, 1)
        noise = own.rng.normal(rows.shape[1:], active=own.active)
        noisy = own.choose(torch.addcmul(rows, noise, sigma), rows)
        return noisy if rows is d else noisy.reshape(d.shape)
