"""The same steps as torch's optimizers, without the import of the compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vflsec.nn import optim

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
