"""Optimizers treat every replica alike: what one gets does not depend on its place or company."""

from __future__ import annotations

import pytest
import torch

from vflsec.nn.optim import optimizer
from vflsec.rng import generator


@pytest.mark.parametrize("name", ["adam", "sgd", "adagrad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_place_in_the_stack_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    g = generator(0, "optim")
    for shape in ((2,), (3,), (7, 5), (16, 4)):
        for _ in range(10):
            many = torch.randn(5, *shape, generator=g, dtype=dtype)
            twins = torch.stack([many[4]] * 2)
            p, q = many.clone().requires_grad_(), twins.clone().requires_grad_()
            a, b = (optimizer(name, [{"params": [t]}], lr=0.01, weight_decay=3e-5) for t in (p, q))
            for _ in range(5):
                p.grad = torch.randn(5, *shape, generator=g, dtype=dtype)
                q.grad = torch.stack([p.grad[4]] * 2)
                a.step()
                b.step()
            assert torch.equal(p[4], q[0])
            assert not torch.equal(p[4], many[4])


def test_groups_keep_their_own_settings() -> None:
    p, q = (torch.ones(2, n, requires_grad=True) for n in (16, 3))
    made = optimizer("sgd", [{"params": [p, q], "mark": 1}, {"params": []}], lr=0.5, momentum=0.0)
    assert [(g["fused"], g["mark"]) for g in made.param_groups] == [(True, 1), (False, 1)]
    for t in (p, q):
        t.grad = torch.ones_like(t)
    made.step()
    assert torch.equal(p, torch.full((2, 16), 0.5))
    assert torch.equal(q, torch.full((2, 3), 0.5))
