"""Encoders that can be cut in two, and the towers of the FedHSSL family.

An encoder is ``Sequential(bottom, top)``: the top is what parties with different columns can share
(partial model aggregation), the bottom absorbs what differs. A party owns a cross-party tower and a
local tower; what it sends in fine-tuning is a pooling of the two.

Source: He, Kang et al., arXiv:2208.08934 (2022), section V-A; architecture of its public code.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.rng import as_global, generator
from vflsec.core.view import Schema
from vflsec.nn.images import resnet18
from vflsec.nn.models import TabularInput
from vflsec.nn.replicas import Composite, Run

POOLINGS = ("mean", "concat", "cross", "local")


def mlp_encoder(
    schema: Schema, hidden: Sequence[int], out: int, *, embedding: int
) -> nn.Sequential:
    """Linear, batch normalisation and ReLU for each width of `hidden` and for `out`.

    The last triple is the top, which has the same shape for all parties whose ``hidden[-1]`` and
    `out` agree; the bottom starts with embeddings of the categorical columns.

    Args:
        schema: of the party's rows; images are flattened.
        hidden: widths of the hidden layers; paper (512,).
        out: width of the representation; paper 512.
        embedding: width of every categorical column; paper 32.
    """
    if schema.cardinalities:
        table = TabularInput(schema, embedding)
        layers: list[nn.Module] = [table]
        size = table.out_features
    else:
        layers, size = [nn.Flatten()], math.prod(schema.shape)
    for width in hidden:
        layers += [nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU()]
        size = width
    top = nn.Sequential(nn.Linear(size, out), nn.BatchNorm1d(out), nn.ReLU())
    return nn.Sequential(OrderedDict(bottom=nn.Sequential(*layers), top=top))


def resnet_encoder(schema: Schema, out: int, *, stem: str = "imagenet") -> nn.Sequential:
    """ResNet-18 whose first stage has ``out / 8`` channels (64 for the usual 512 outputs).

    Raises:
        ConfigError: the rows are no images, or `out` is no multiple of 8.
    """
    if len(schema.shape) != 3:
        rule = "'mlp' or 'auto' for rows that are no images (c, h, w)"
        raise check.fail("encoder_kind", rule, "resnet18")
    if out % 8:
        raise check.fail("cut", "a multiple of 8 with encoder_kind 'resnet18'", out)
    bottom, top = resnet18(schema.shape[0], out // 8, stem)
    return nn.Sequential(OrderedDict(bottom=bottom, top=top))


class Towers(Composite):
    """A party's cross-party and local encoders, or one of them, pooled.

    Input (b, ...), output (b, d): the mean of both, both side by side (2d), or the only one there.

    Args:
        pooling: one of :data:`POOLINGS`.
        cross, local: encoders; None where the pooling leaves one out.
    """

    def __init__(self, pooling: str, cross: nn.Module | None, local: nn.Module | None) -> None:
        super().__init__()
        self.pooling = pooling
        if pooling != "local":
            assert cross is not None
            self.cross = cross
        if pooling != "cross":
            assert local is not None
            self.local = local

    def combine(self, run: Run, x: Tensor) -> Tensor:
        return self.pool([run(name, x) for name, _ in self.named_children()])

    def pool(self, parts: Sequence[Tensor]) -> Tensor:
        """Representations (..., d) of the towers there are -> (..., d) or (..., 2d)."""
        if len(parts) == 1:
            return parts[0]
        if self.pooling == "concat":
            return torch.cat(list(parts), dim=-1)
        return 0.5 * parts[0] + 0.5 * parts[1]


def small_weights(encoder: nn.Module, tower: str, std: float) -> None:
    """Draw weights of a new encoder again from N(0, std^2), as the public code does on click data.

    These are the embeddings and linear layers of the bottom and, in the cross-party tower, of the
    top; the top of the local tower stays as it is.

    Args:
        encoder: ``Sequential(bottom, top)``.
        tower: ``cross`` or ``local``.
        std: standard deviation; the code's is 1e-4.
    """
    for part in ("bottom", "top") if tower == "cross" else ("bottom",):
        for m in encoder.get_submodule(part).modules():
            if isinstance(m, nn.Linear | nn.Embedding):
                nn.init.normal_(m.weight, 0.0, std)


def build_towers(
    pooling: str,
    build: Callable[[], nn.Module],
    spare: list[nn.Module] | None = None,
    init_std: float = 0.0,
) -> Towers:
    """Towers whose encoders start from a seed each, drawn from the global generator.

    So a method with one tower starts where the same tower of a method with two starts.

    Args:
        pooling: one of :data:`POOLINGS`.
        build: makes one encoder.
        spare: a tower that the pooling leaves out is made too and appended here.
        init_std: of :func:`small_weights`; 0 leaves PyTorch's initial weights.
    """
    seeds = {name: int(torch.randint(2**62, ())) for name in ("cross", "local")}
    made: dict[str, nn.Module | None] = {}
    for name, seed in seeds.items():
        left_out = pooling in seeds and name != pooling
        made[name] = None
        if not left_out or spare is not None:
            with as_global(generator(seed)):
                encoder = made[name] = build()
                if init_std:
                    small_weights(encoder, name, init_std)
        if left_out and spare is not None:
            spare.append(made[name])  # type: ignore[arg-type]
    return Towers(pooling, **made)
