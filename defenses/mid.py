"""A variational bottleneck between received embeddings and the top model (MID).

The active party passes what it receives from each passive party, z (b, m), through an encoder to mu
and s (m each), samples z' = mu + std e with std = softplus(s - 0.5), e ~ N(0, I), decodes z' to m
numbers and feeds those to its top model; strength x the mean of sum_j 1/2 (mu^2 + std^2 - 1 - 2 log
std) joins the loss. Prediction uses z' = mu. Strength 0 is no bottleneck at all; the bottleneck
with its noise but without pressure, which is a baseline of its own, is a tiny strength such as
1e-12. With embeddings that are added up instead of put side by side, the sum goes through it.

Hook: model (the top) and penalty. Owner: the active party; the algorithm needs a top model.
Guarantee: none. Does not stop: completion of a passive bottom that still learns; small strengths.

Source: Zou, Liu, Zhang, "Mutual information regularization for vertical federated learning",
arXiv:2301.01142 (2023); Alemi, Fischer, Dillon, Murphy, "Deep variational information bottleneck",
ICLR 2017, arXiv:1612.00410.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas, apply, stacked
from vflsec.plugin import Own, Policy, PolicyError, registry

ALIASES = ("vib",)


class Shared:
    """What the copies of one bottleneck have in common: random streams, and the last divergence."""

    def __init__(self, own: Own) -> None:
        self.own = own
        self.divergence: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


class Bottleneck(nn.Module):
    """A top model behind one bottleneck for each slice [start, stop) of its input columns."""

    def __init__(
        self, top: nn.Module, slices: list[tuple[int, int]], on: bool, shared: Shared
    ) -> None:
        super().__init__()
        self.top, self.slices, self.shared = top, slices, shared
        self.register_buffer("on", torch.tensor(float(on)))
        widths = [b - a for a, b in slices]
        self.encoders = nn.ModuleList(mlp([m, 2 * m, 2 * m]) for m in widths)
        self.decoders = nn.ModuleList(mlp([m, 5 * m, m]) for m in widths)

    def forward(self, h: Tensor) -> Tensor:
        parts = _outside(h, self.slices)
        for (a, b), encoder, decoder in zip(self.slices, self.encoders, self.decoders, strict=True):
            mean = encoder(h[..., a:b]).chunk(2, dim=-1)[0]
            on = self.get_buffer("on") > 0
            parts[a] = torch.where(on, decoder(mean), h[..., a:b])
        return self.top(torch.cat([parts[k] for k in sorted(parts)], dim=-1))


def _outside(h: Tensor, slices: list[tuple[int, int]]) -> dict[int, Tensor]:
    """The columns that belong to no slice, by where they start."""
    out, at = {}, 0
    for a, b in slices:
        if a > at:
            out[at] = h[..., at:a]
        at = b
    if at < h.shape[-1]:
        out[at] = h[..., at:]
    return out


@stacked(Bottleneck)
def _bottleneck(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    assert isinstance(module, Bottleneck)
    on = s.buffers[f"{prefix}on"].reshape(-1, 1, 1) > 0
    parts = _outside(x, module.slices)
    total = x.new_zeros(x.shape[0])
    for k, (a, b) in enumerate(module.slices):
        z = x[..., a:b].contiguous()
        encoded = apply(s, f"{prefix}encoders.{k}.", module.encoders[k], z, train)
        mean, raw = encoded.chunk(2, dim=-1)
        std = softplus(raw - 0.5)
        inner = mean
        if train:
            own = module.shared.own
            inner = mean + std * own.rng.normal(mean.shape[1:], active=own.active).to(mean)
        decoded = apply(s, f"{prefix}decoders.{k}.", module.decoders[k], inner.contiguous(), train)
        parts[a] = torch.where(on, decoded, z)
        total = total + divergence(mean, std).mean(1)
    module.shared.divergence = total if train else None
    joined = torch.cat([parts[k] for k in sorted(parts)], dim=-1)
    return apply(s, f"{prefix}top.", module.top, joined, train)


def divergence(mean: Tensor, std: Tensor) -> Tensor:
    """KL(N(mean, std^2) || N(0, 1)) summed over the last axis."""
    return 0.5 * (mean.square() + std.square() - 1 - 2 * std.log()).sum(-1)


@registry.defense
@dataclass(frozen=True)
class MID(Policy):
    """No hyper-parameters."""

    by_row = True
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "divergence weight"

    def model(self, module: nn.Module, part: str, own: Own) -> nn.Module:
        if part != "top":
            return module
        replica = int(own.context["replica"])
        if replica == 0:
            own.memory["shared"] = Shared(own)
        inputs: dict[str, int] = own.context.get("inputs") or {"": _width(module)}
        slices, at = [], 0
        for party, width in inputs.items():
            if party != own.party:
                slices.append((at, at + width))
            at += width
        return Bottleneck(module, slices, own.active[replica], own.memory["shared"])

    def penalty(self, x: Tensor, h: dict[str, Tensor], y: Tensor | None, own: Own) -> Tensor | None:
        shared = own.memory.get("shared")
        if shared is None or shared.divergence is None:
            raise PolicyError(
                f"{self.name}: needs a top model in every step of the active party. Set "
                "linear_top = true, use splitnn, or leave the defense out."
            )
        return own.column(shared.divergence) * shared.divergence


def _width(module: nn.Module) -> int:
    first = next((m for m in module.modules() if isinstance(m, nn.Linear)), None)
    if first is None:
        raise PolicyError("mid: the top model must begin with a linear layer.")
    return first.in_features
