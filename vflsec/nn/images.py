"""Image layers on the replica axis, a small convolutional bottom, ResNet-18 and wide ResNets.

Convolution and normalisation of images run replica by replica: their kernels dwarf the cost of a
Python loop, and one replica's numbers do not depend on which kernel its company would choose.

Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016; Zagoruyko,
Komodakis, "Wide residual networks", BMVC 2016, arXiv:1605.07146.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.view import Schema
from vflsec.nn.replicas import Composite, Replicas, Run, stacked

BOTTOMS = ("conv", "resnet", "wideresnet")
"""Kinds of bottoms for images."""

NORMALISED = ("resnet", "wideresnet")
"""Those that normalise over the batch, so that a row's embedding in training depends on others."""


class BasicBlock(Composite):
    """Two 3 x 3 convolutions beside a shortcut.

    Args:
        inputs, out: channels.
        stride: of the first convolution; the shortcut is a 1 x 1 convolution where the shape
            changes.
    """

    def __init__(self, inputs: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def combine(self, run: Run, x: Tensor) -> Tensor:
        return torch.relu(run("body", x) + run("shortcut", x))


def build_convolutional(
    schema: Schema, channels: Sequence[int], out: int, *, dropout: float = 0.0
) -> nn.Sequential:
    """A small bottom for images: convolutions of 3 x 3, then one linear layer to `out` numbers.

    Every convolution is followed by ReLU and by 2 x 2 max-pooling as long as the image has at least
    two rows and two columns.

    Args:
        schema: of rows (c, h, w).
        channels: output channels of each convolution.
        out: width of the embedding.
        dropout: of the numbers that reach the linear layer.
    """
    before, height, width = schema.shape
    layers: list[nn.Module] = []
    for count in channels:
        layers += [nn.Conv2d(before, count, 3, padding=1), nn.ReLU()]
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = count
    layers.append(nn.Flatten())
    if dropout and channels:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(before * height * width, out))


class WideBlock(Composite):
    """Normalise, ReLU, convolve 3 x 3, twice, beside a shortcut ("B(3, 3)", before-activated).

    Where the shape changes, the shortcut is a 1 x 1 convolution of the activated input.

    Args:
        inputs, out: channels.
        stride: of the first convolution.
    """

    def __init__(self, inputs: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(inputs, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )  # fmt: skip
        self.same = stride == 1 and inputs == out
        self.shortcut: nn.Module = nn.Identity()
        if not self.same:
            self.shortcut = nn.Conv2d(inputs, out, 1, stride, bias=False)

    def combine(self, run: Run, x: Tensor) -> Tensor:
        h = run("first", x)
        return run("body", h) + run("shortcut", x if self.same else h)


def image_bottom(
    kind: str, schema: Schema, hidden: Sequence[int], out: int, *, depth: int = 20,
    dropout: float = 0.0,
) -> nn.Sequential:  # fmt: skip
    """A bottom for images, to `out` numbers.

    Args:
        kind: one of :data:`BOTTOMS`. ``conv``: :func:`build_convolutional`, `hidden` its channels;
            ``resnet``: :func:`resnet18` with the small stem, `out` / 8 channels in its first stage;
            ``wideresnet``: :func:`wide_resnet` of `depth`, `out` / 64 times as wide as the thin
            one. The published bottom of one-shot VFL, "WideResNet20" with 256 outputs, fits the
            last with depth 20 and 256.
        schema: of rows (c, h, w).
        hidden, dropout: of ``conv`` alone.
        out: width of the embedding.
        depth: of ``wideresnet`` alone.

    Raises:
        ConfigError: `out` is no multiple of 8, or of 64; or there is no such depth.
    """
    if kind == "conv":
        return build_convolutional(schema, hidden, out, dropout=dropout)
    unit = 8 if kind == "resnet" else 64
    if out % unit:
        rule = f"a multiple of {unit} with encoder_kind {kind!r}"
        raise check.fail("cut", rule, out, "A top model is needed.")
    if kind == "wideresnet":
        return wide_resnet(schema.shape[0], depth, out // unit)
    return nn.Sequential(*resnet18(schema.shape[0], out // unit, "small"))


def wide_resnet(channels: int, depth: int = 20, width: int = 4) -> nn.Sequential:
    """A wide ResNet without its classifier: images of 8 to 64 pixels -> 64 x `width` numbers.

    A convolution of 16 channels, three stages of n blocks with 16, 32 and 64 x `width` channels,
    of which the second and third halve the sides, normalisation, ReLU, mean over all pixels.

    Args:
        channels: of the images.
        depth: 6 n + 4 (as wide ResNets are counted) or 6 n + 2 (as ResNets for CIFAR are, without
            the convolutions of the shortcuts): 10, 16, 28, 40 or 8, 14, 20, 32, ...
        width: how many times as wide as the thin network.

    Raises:
        ConfigError: there is no such depth.
    """
    blocks = (depth - 2) // 6
    if depth < 8 or depth % 6 not in (2, 4):
        raise check.fail("encoder_depth", "6 n + 2 or 6 n + 4 with n >= 1, such as 20 or 28", depth)
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False)]
    before = 16
    for stage in range(3):
        out = 16 * width * 2**stage
        for i in range(blocks):
            layers.append(WideBlock(before, out, 2 if stage and not i else 1))
            before = out
    layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    made = nn.Sequential(*layers)
    _kaiming(made)
    return made


def _kaiming(module: nn.Module) -> None:
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")


def resnet18(
    channels: int, width: int = 64, stem: str = "imagenet"
) -> tuple[nn.Sequential, nn.Sequential]:
    """ResNet-18 without its classifier, cut after the first stage: (bottom, top).

    Args:
        channels: of the images.
        width: channels of the first stage; the output has 8 x width numbers.
        stem: ``imagenet`` (7 x 7 stride 2 and max-pooling, as in the paper's code) or ``small``
            (3 x 3 stride 1, for images of 8 to 64 pixels).

    Returns:
        stem with stage 1, and stages 2 to 4 with average pooling (11,019,008 parameters at
        width 64).
    """
    if stem == "imagenet":
        first: list[nn.Module] = [
            nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
    else:
        first = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    stages = [_stage(width, width, 1)]
    stages += [_stage(width * 2**i, width * 2 ** (i + 1), 2) for i in range(3)]
    bottom = nn.Sequential(OrderedDict(stem=nn.Sequential(*first), stage1=stages[0]))
    top = nn.Sequential(
        OrderedDict(
            stage2=stages[1],
            stage3=stages[2],
            stage4=stages[3],
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
        )
    )
    _kaiming(bottom)
    _kaiming(top)
    return bottom, top


def _stage(inputs: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, out, stride), BasicBlock(out, out))


@stacked(nn.Conv2d)
def _conv(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    weight, bias = s.params[f"{prefix}weight"], s.params.get(f"{prefix}bias")
    return torch.stack(
        [
            module._conv_forward(x[r], weight[r], None if bias is None else bias[r])
            for r in range(s.count)
        ]
    )


@stacked(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
def _pool(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    out = module(x.flatten(0, 1))
    return out.reshape(*x.shape[:2], *out.shape[1:])
