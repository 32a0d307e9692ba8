"""The small convolutional bottom: its shapes, and its stack."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vflsec.core.rng import as_global, generator
from vflsec.core.view import Schema
from vflsec.nn.images import build_convolutional
from vflsec.nn.replicas import Replicas

HALF = Schema((), (), (1, 8, 4))


@pytest.mark.parametrize(
    ("channels", "shape", "linear"),
    [((6,), (1, 8, 4), 6 * 4 * 2), ((6, 5), (1, 8, 4), 5 * 2 * 1), ((6, 5, 4), (1, 8, 4), 4 * 2),
     ((7,), (3, 32, 16), 7 * 16 * 8), ((), (3, 4, 4), 48)],
)  # fmt: skip
def test_pools_as_long_as_there_is_something_to_pool(
    channels: tuple[int, ...], shape: tuple[int, int, int], linear: int
) -> None:
    made = build_convolutional(Schema((), (), shape), channels, 9)
    last = made[-1]
    assert isinstance(last, nn.Linear)
    assert last.in_features == linear
    assert made(torch.zeros(2, *shape)).shape == (2, 9)
    convolutions = [m for m in made if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == list(channels)


def test_stacked_equals_the_modules_one_by_one() -> None:
    with as_global(generator(3, "conv")):
        modules = [build_convolutional(HALF, (5, 4), 6).double() for _ in range(3)]
    stack = Replicas(modules, dtype=torch.float64)
    assert stack.path == "stacked"
    x = torch.randn(3, 7, 1, 8, 4, dtype=torch.float64, generator=generator(0, "x"))
    twins = [copy.deepcopy(m) for m in modules]
    got = stack(x)
    got.square().sum().backward()
    for r, twin in enumerate(twins):
        want = twin(x[r])
        want.square().sum().backward()
        torch.testing.assert_close(got[r], want, rtol=1e-12, atol=1e-12)
        for name, p in twin.named_parameters():
            stacked = stack.params[name].grad
            assert stacked is not None
            assert p.grad is not None
            torch.testing.assert_close(stacked[r], p.grad, rtol=1e-12, atol=1e-12)
