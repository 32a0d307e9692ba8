"""Linear layers as one function: equal to single operations, alone and in company, twice over."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from vflsec.core.rng import as_global, generator
from vflsec.nn import dense as module
from vflsec.nn.batch_invariance import find_variant_layers
from vflsec.nn.dense import Layer, dense
from vflsec.nn.models import mlp
from vflsec.nn.replicas import LEAST, Replicas

WIDTHS = [(6, 8, 3), (37, 5), (30, 9, 3), (12, 64, 32), (5, 37, 2), (1, 4, 1)]


def stack_of(
    widths: tuple[int, ...], count: int, dtype: torch.dtype = torch.float64, *, last: bool = False
) -> Replicas:
    modules = []
    for seed in range(count):
        with as_global(generator(seed, "dense")):
            modules.append(mlp(widths, last=last))
    return Replicas(modules, dtype=dtype)


def by_single_operations(stack: Replicas, x: Tensor, *, last: bool) -> Tensor:
    layers = [m for m in stack.template if isinstance(m, nn.Linear)]
    names = [n for n, m in stack.template.named_children() if isinstance(m, nn.Linear)]
    for k, name in enumerate(names):
        w, b = stack.params[f"{name}.weight"], stack.params[f"{name}.bias"]
        x = torch.einsum("rbi,roi->rbo", x, w) + b.unsqueeze(1)
        if k < len(layers) - 1 or last:
            x = torch.relu(x)
    return x


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("widths", WIDTHS)
def test_values_and_gradients_are_those_of_single_operations(
    widths: tuple[int, ...], last: bool
) -> None:
    stack = stack_of(widths, 4, last=last)
    x = torch.randn(4, 9, widths[0], dtype=torch.float64, generator=generator(0, "x"))
    x.requires_grad_()
    up = torch.randn(4, 9, widths[-1], dtype=torch.float64, generator=generator(0, "up"))
    inputs = [x, *stack.parameters()]
    got, want = stack(x), by_single_operations(stack, x, last=last)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    mine = torch.autograd.grad(got, inputs, up)
    theirs = torch.autograd.grad(want, inputs, up)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        assert torch.equal(stack(x), got)


def test_second_derivatives_and_modules_used_twice() -> None:
    stack = stack_of((3, 5, 3), 2)
    x = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator(0, "x")).requires_grad_()

    def twice(a: Tensor, *params: Tensor) -> Tensor:
        layers = [Layer(params[0], params[1], True), Layer(params[2], params[3], False)]
        return dense(layers, torch.tanh(dense(layers, a)))

    assert torch.autograd.gradcheck(twice, (x, *stack.parameters()))
    assert torch.autograd.gradgradcheck(twice, (x, *stack.parameters()))


def test_only_what_is_asked_for_is_computed() -> None:
    stack = stack_of((3, 5, 2), 2)
    frozen = stack.params["0.weight"].requires_grad_(False)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    stack(x).sum().backward()
    assert frozen.grad is None
    assert stack.params["0.bias"].grad is not None
    layers = Layer(torch.randn(2, 5, 3), None, False)
    assert dense([layers], torch.randn(2, 4, 7, 3)).shape == (2, 4, 7, 5)


@pytest.mark.parametrize("replicas", [2, 3, 5, 8])
def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    stack = stack_of((7, 37, 5), replicas)
    x = torch.randn(replicas, 16, 7, dtype=torch.float64, requires_grad=True)
    found = []
    for cached in (1 << 18, 1):
        monkeypatch.setattr(module, "CACHED", cached)
        out = stack(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *stack.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    spans = module._chunks(replicas, 100)
    assert [a for a, _ in spans][1:] == [b for _, b in spans][:-1]
    assert spans[-1][1] == replicas
    assert all(b - a >= LEAST for a, b in spans)


ODD = [(64, 37, 5), (17, 9, 3), (17, 30, 9), (33, 7, 11), (64, 64, 32), (7, 512, 1), (129, 65, 33)]
GRID = [*ODD, *itertools.product([1, 5, 17, 64, 512], [1, 3, 13, 16, 37], [1, 2, 11, 48, 63])]


def test_layers_of_many_shapes_do_not_depend_on_company() -> None:
    g = generator(0, "shapes")
    odd = [2 * torch.randint(0, 40, (3,), generator=g) + 1 for _ in range(20)]
    shapes = [*GRID, *((int(b), int(i), int(o)) for b, i, o in odd)]
    assert find_variant_layers(shapes, (0, 7, 13, 19)) == []
