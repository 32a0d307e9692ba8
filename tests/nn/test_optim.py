"""Optimizers: the same steps as torch's, for every parameter on its own and in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from vflsec.nn import optim
from vflsec.nn.flat_parameters import LANES, Flat, find_blocks, gradients_like

SHAPES = {"a": (3, 5, 16), "b": (3, 7), "c": (3, 16), "d": (3, 2, 3)}


def values(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {k: torch.randn(s, generator=g, dtype=dtype) for k, s in SHAPES.items()}


def made(name: str, params: Sequence[Any], module: Any = optim, **settings: object) -> Any:
    return getattr(module, {"adam": "Adam", "sgd": "SGD"}[name])(params, lr=0.05, **settings)


theirs = partial(made, module=torch.optim)


def test_segments_begin_at_whole_registers_and_gaps_stay_zero() -> None:
    flat = Flat(values())
    assert all(start % LANES == 0 for start, _ in flat.spans.values())
    assert len(flat.data) % LANES == 0
    for name, value in values().items():
        assert torch.equal(flat.leaves[name], value)
        assert torch.equal(flat.view(flat.data, name), value)
    used = sum(v.numel() for v in values().values())
    assert sum(b - a for a, b in flat.gaps) == len(flat.data) - used > 0
    assert all(not flat.fresh()[a:b].any() for a, b in flat.gaps)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_kernel_steps_like_torch(name: str, decay: float, dtype: torch.dtype) -> None:
    settings = {"weight_decay": decay, **({"momentum": 0.9} if name == "sgd" else {})}
    mine = list(Flat(values(dtype)).leaves.values())
    plain = [v.clone().requires_grad_() for v in values(dtype).values()]
    a, b = made(name, mine, **settings), theirs(name, plain, fused=True, **settings)
    assert a.flat
    g = torch.Generator().manual_seed(1)
    for k in range(6):
        grads = [torch.randn(p.shape, generator=g, dtype=dtype) for p in plain]
        for p, grad in zip(plain, grads, strict=True):
            p.grad = grad
        b.step()
        if k % 2:  # as a kernel writes them, and as a copy
            written = gradients_like(mine)
            for to, grad in zip(written, grads, strict=True):
                to.copy_(grad)
            assert written[0]._base is not None
            grads = written
        a.take(mine, grads)
    whole = [i for i, p in enumerate(plain) if p.numel() % LANES == 0]
    assert whole
    for i, (p, q) in enumerate(zip(mine, plain, strict=True)):
        if i in whole:
            assert torch.equal(p, q)
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        assert not torch.equal(p, list(values(dtype).values())[i])


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_parameter_without_a_gradient_stays_and_counts_its_own_steps(name: str) -> None:
    settings = {"momentum": 0.9} if name == "sgd" else {}
    mine = list(Flat(values()).leaves.values())
    plain = [v.clone().requires_grad_() for v in values().values()]
    a, b = made(name, mine, **settings), theirs(name, plain, **settings)
    g = torch.Generator().manual_seed(1)
    for k in range(7):
        grads = [torch.randn(p.shape, generator=g, dtype=p.dtype) for p in plain]
        some = [None if k in (2, 3) and i == 1 else grad for i, grad in enumerate(grads)]
        before = mine[1].clone()
        for p, q, grad in zip(mine, plain, some, strict=True):
            p.grad, q.grad = grad, grad
        a.step()
        b.step()
        assert torch.equal(before, mine[1]) == (k in (2, 3))
    for p, q in zip(mine, plain, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
    if name == "adam":
        assert [int(a.state[p]["step"]) for p in mine] == [7, 5, 7, 7]
        kept = a.state[mine[1]]["exp_avg"]
        torch.testing.assert_close(kept, b.state[plain[1]]["exp_avg"], rtol=1e-12, atol=1e-12)


def test_groups_of_one_buffer_have_their_own_settings() -> None:
    leaves = list(Flat(values()).leaves.values())
    start = [p.detach().clone() for p in leaves]
    groups = [{"params": [leaves[0], leaves[2]], "lr": 0.0}, {"params": [leaves[3], leaves[1]]}]
    optimizer = optim.Adam(groups, lr=0.1)
    optimizer.take(leaves, [torch.ones_like(p) for p in leaves])
    moved = [not torch.equal(p, q) for p, q in zip(leaves, start, strict=True)]
    assert moved == [False, True, False, True]
    assert [len(b.params) for b in find_blocks(leaves) or []] == [4]
    assert [len(b.params) for b in find_blocks(leaves[:2] + leaves[3:]) or []] == [2, 1]


def test_a_tensor_of_its_own_lies_in_no_block() -> None:
    leaves = list(Flat(values()).leaves.values())
    assert find_blocks([*leaves, torch.zeros(3, 2)]) is None
    optimizer = optim.Adam([torch.zeros(3, 2, requires_grad=True)], lr=0.1)
    assert not optimizer.flat


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_groups_of_equal_settings_are_one_until_they_differ(name: str) -> None:
    settings = {"momentum": 0.9} if name == "sgd" else {}
    flats = [list(Flat(values()).leaves.values()) for _ in range(2)]
    mine, apart = flats
    one = made(name, [{"params": mine[:2]}, {"params": mine[2:], "fused": True}], **settings)
    two = [made(name, part, **settings) for part in (apart[:2], apart[2:])]
    assert one.flat
    g = torch.Generator().manual_seed(1)
    for k in range(6):
        if k == 3:
            one.param_groups[1]["lr"] = two[1].param_groups[0]["lr"] = 0.01
        grads = [torch.randn(p.shape, generator=g, dtype=p.dtype) for p in mine]
        one.take(mine, grads)
        two[0].take(apart[:2], grads[:2])
        two[1].take(apart[2:], grads[2:])
        assert len(one._flat) == (1 if k < 3 else 2)
    for p, q in zip(*flats, strict=True):
        assert torch.equal(p, q)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "fused": True}),
    ("Adam", {"lr": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("Adagrad", {"lr": 0.1}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_steps_are_those_of_torch_bit_for_bit(name: str, settings: dict[str, Any]) -> None:
    found = []
    for module in (optim, torch.optim):
        g = torch.Generator().manual_seed(3)
        p = torch.randn(5, 16, generator=g).requires_grad_()
        optimizer = getattr(module, name)([p], **settings)
        for _ in range(7):
            p.grad = torch.randn(5, 16, generator=g)
            optimizer.step()
        found.append(p.detach().clone())
    assert torch.equal(found[0], found[1])
    start = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    assert not torch.equal(found[0], start)
