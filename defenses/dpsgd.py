"""Noise on the clipped per-row gradients of a party's own models: DP-SGD.

What each row of a batch adds to the gradients of all of the owner's parameters is shortened to
length C (2-norm over all of them together, in units of the row's own loss); the sum of the batch
gets Gaussian noise of standard deviation strength x C and is divided by the batch size. The
strength is the noise multiplier.

Hook: gradients. Owner: the active party (bottom and top), or ``party = "passive"`` for the bottoms
that learn from delivered gradients.
Guarantee: (epsilon, delta) of the **owner's weights**, under adding or removing one of its rows.
Batches are shuffled here, not drawn at random, so the default accountant counts every epoch as one
Gaussian release of each row without amplification, which needs no assumption on sampling;
``accountant = "prv"`` or ``"rdp"`` (Opacus) states the smaller figure that Poisson sampling would
have. Does not stop: attacks on messages. Embeddings and gradients of single rows that are sent
during training are no function of the released weights alone and are not covered.

Source: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep learning with differential
privacy", CCS 2016, arXiv:1607.00133, algorithm 1; on shuffling: Chua, Ghazi, Kamath, Kumar,
Manurangsi, Sinha, Zhang, "How private are DP-SGD implementations?", ICML 2024, arXiv:2403.17673.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vflsec import accounting, check, registry
from vflsec.policy import Guarantee, Own, Policy

ALIASES = ("dp_sgd",)


@registry.defense
@dataclass(frozen=True)
class DPSGD(Policy):
    """Hyper-parameters.

    Attributes:
        clip_norm: length C to which a row's gradient is shortened.
        delta: at which epsilon is stated.
        accountant: ``shuffled`` (no amplification by sampling), or ``prv`` or ``rdp``, which
            assume that every batch is a Poisson sample.
    """

    clip_norm: float = 1.0
    delta: float = 1e-5
    accountant: Literal["shuffled", "prv", "rdp"] = "shuffled"
    strengths: ClassVar[str] = "noise multiplier: noise standard deviation / clipping length"

    def __post_init__(self) -> None:
        check.positive("dpsgd.clip_norm", self.clip_norm)
        accounting.check_delta("dpsgd.delta", self.delta)
        check.one_of("dpsgd.accountant", self.accountant, ("shuffled", "prv", "rdp"))

    def gradients(
        self, plain: list[Tensor | None], rows: Callable[[], list[Tensor]], own: Own
    ) -> list[Tensor | None]:
        if not any(own.active):
            return plain
        parts = rows()  # (R, b, ...) each
        b = parts[0].shape[1]
        flat = torch.cat([p.flatten(2) for p in parts], dim=2) * b  # (R, b, P)
        norm = torch.linalg.vector_norm(flat, dim=2)
        factor = self.clip_norm / norm.clamp_min(self.clip_norm)  # (R, b)
        total = torch.stack([f @ g for f, g in zip(factor, flat, strict=True)])  # (R, P)
        noise = own.rng.normal(total.shape[1:], active=own.active)
        total = (total + own.column(total) * self.clip_norm * noise) / b
        made = total.split([math.prod(p.shape[2:]) for p in parts], dim=1)
        return [
            own.choose(m.reshape(g.shape), g) if g is not None else None
            for m, g in zip(made, plain, strict=True)
        ]

    def guarantee(self, strength: float, facts: dict[str, Any]) -> Guarantee:
        if strength <= 0:
            return Guarantee(covers="Switched off: gradients are used as they are.")
        epochs, n = int(facts.get("epochs", 1)), int(facts.get("labelled", 1))
        epochs *= int(facts.get("local_updates", 1))  # updates on one batch are releases each
        size = min(int(facts.get("batch_size", n)), n)
        steps = epochs * math.ceil(n / size)
        if self.accountant == "shuffled":
            made = accounting.gaussian(strength, epochs, self.delta)
            how = "each row is in one batch an epoch; no amplification by sampling is claimed"
            releases = epochs
        else:
            made = accounting.subsampled_gaussian(
                strength, size / n, steps, self.delta, self.accountant
            )
            how = (
                f"at sampling rate {size / n:.4g}, as if batches were Poisson samples; they are "
                "shuffled, for which this can be too small"
            )
            releases = steps
        return Guarantee(
            protects="example", epsilon=made.epsilon, delta=made.delta, releases=releases,
            accountant=made.accountant,
            covers=(
                f"The owner's trained weights, under adding or removing one row ({how}). Not "
                "covered: embeddings and gradients of single rows sent during training, other "
                "parties' weights, early stopping on validation rows."
            ),
        )  # fmt: skip
