"""Image layers on the replica axis, a small convolutional bottom, and ResNet-18.

Convolution and normalisation of images run replica by replica: their kernels dwarf the cost of a
Python loop, and one replica's numbers do not depend on which kernel its company would choose.

Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vflsec.nn.replicas import Replicas, apply, stacked
from vflsec.view import Schema

__all__ = ["BasicBlock", "convolutional", "resnet18"]


class BasicBlock(nn.Module):
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

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def convolutional(
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
    for m in (*bottom.modules(), *top.modules()):
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return bottom, top


def _stage(inputs: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, out, stride), BasicBlock(out, out))


@stacked(BasicBlock)
def _block(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    body = apply(s, f"{prefix}body.", module.body, x, train)
    return torch.relu(body + apply(s, f"{prefix}shortcut.", module.shortcut, x, train))


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
