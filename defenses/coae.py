"""Labels replaced by confusing soft labels that the active party alone can decode (CoAE).

An encoder (C -> (6C+2)^2 -> C, ReLU, softmax) and a decoder of the same shape are trained on
sharpened random class shares y to minimise 10 CE(dec(enc(y)), y) - entropy x H(enc(y)) - CE(enc(y),
y), with H the mean of -p log p over classes: reconstruct well, be undecided, differ from y. The
federation is trained on enc(one-hot label), and predictions are decoded. Training is refused unless
every class is decoded exactly. The swept strength is the weight of the entropy; the published
weight 0 is a tiny strength such as 1e-9. Together with ``discrete`` this is DCAE.

Hook: labels and decode. Owner: the active party.
Guarantee: none; it is a fixed function of the label. Does not stop: whoever knows that it is on.
Two classes are simply swapped, and with more the true class mostly becomes the *least* likely one
(now and then one keeps a share and is renamed), so an adversary takes the argmax of a gradient
where it took the argmin; completion from known rows learns the mapping by itself; norms and
similarities are untouched.

Source: Zou, Liu, Kang, Liu, He, Yi, Yang, "Defending batch-level label inference and replacement
attacks in vertical federated learning", IEEE Transactions on Big Data 2022, arXiv:2112.05409,
section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.party import group_parameters, step
from vflsec.core.rng import Streams, own_global
from vflsec.defenses.alibi import one_hot
from vflsec.nn import optim
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.plugin import Own, Policy, PolicyError, check, registry

ALIASES = ("confusional_autoencoder",)
BATCH, SHARPEN, TINY = 128, 0.025, 1e-6


@registry.defense
@dataclass(frozen=True)
class CoAE(Policy):
    """Hyper-parameters.

    Attributes:
        steps: training steps of the autoencoder, of 128 random class shares each.
        lr: its learning rate (Adam).
    """

    steps: check.Count = 250
    lr: check.Positive = 2e-3
    strengths: ClassVar[str] = "entropy weight (1e-9 is the published 0)"

    by_row = True

    def labels(self, y: Tensor, own: Own) -> Tensor:
        """Soft labels (R, n, C); zeros where the label is unknown."""
        self.check_classes(y)
        hot = one_hot(y, own.classes, own.rng.dtype)
        if not any(own.active):
            return hot
        encoder, decoder = self._train(own)
        own.memory["decoder"] = decoder
        with torch.no_grad():
            classes = torch.eye(own.classes, dtype=hot.dtype, device=hot.device)
            codes = torch.softmax(encoder(classes.expand(len(hot), -1, -1)), dim=-1)  # (R, C, C)
            own.memory["codes"] = codes
            decoded = decoder(codes).argmax(2)
        wrong = (decoded != torch.arange(own.classes, device=hot.device)).any(1)  # (R,)
        if any(bool(w) and on for w, on in zip(wrong, own.active, strict=True)):
            raise PolicyError(
                f"{self.name}: {self.steps} steps do not recover every class. Raise steps."
            )
        return own.choose(torch.bmm(hot, codes), hot)

    def decode(self, logits: Tensor, own: Own) -> Tensor:
        if "decoder" not in own.memory:
            return logits
        with torch.no_grad():
            return own.choose(own.memory["decoder"](torch.softmax(logits, dim=-1)), logits)

    def _train(self, own: Own) -> tuple[Replicas, Replicas]:
        c = own.classes
        width = (6 * c + 2) ** 2
        dtype, device = own.rng.dtype, own.rng.device
        made = []
        for _ in range(2):
            with own_global():  # what it draws is overwritten
                shape = [mlp([c, width, c]) for _ in own.active]
            net = Replicas(shape, device=device, dtype=dtype)
            for p in net.parameters():
                size = 0.1 if p.dim() == 3 else 0.0
                with torch.no_grad():
                    p.copy_(own.rng.normal(p.shape[1:]) * size)
            made.append(net)
        encoder, decoder = made
        params = [*encoder.parameters(), *decoder.parameters()]
        optimizer = optim.Adam(group_parameters(params), lr=self.lr)
        weight = own.strength.to(dtype=dtype, device=device)
        for _ in range(self.steps):
            y = sharpened(own.rng, c)
            code = torch.softmax(encoder(y), dim=-1)
            back = torch.log_softmax(decoder(code), dim=-1)
            logs = torch.log(code + TINY)
            reconstruct = -(y * back).sum(2).mean(1)
            entropy = -(code * logs).mean((1, 2))
            differ = -(y * logs).sum(2).mean(1)
            total = (10 * reconstruct - weight * entropy - differ).sum()
            step(optimizer, params, torch.autograd.grad(total, params))
        return encoder, decoder


def sharpened(rng: Streams, classes: int) -> Tensor:
    """Random class shares (R, 128, C), close to one-hot: a softmax to the power 1 / 0.025."""
    return torch.softmax(rng.uniform((BATCH, classes)) / SHARPEN, dim=-1)
