"""Cross entropy by hand: its gradient, shares of classes, and no dependence on company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vflsec.nn.loss import cross_entropy, slope

SHAPES = [(3, 17, 2), (5, 33, 3), (4, 7, 5), (3, 1, 7)]


def drawn(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, classes, and the classes as shares."""
    g = torch.Generator().manual_seed(sum(shape))
    logits = 3 * torch.randn(shape, generator=g, dtype=dtype)
    y = torch.randint(shape[2], shape[:2], generator=g)
    return logits, y, torch.nn.functional.one_hot(y, shape[2]).to(dtype)


def gradient(logits: Tensor, y: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(cross_entropy(leaf, y).mean(1).sum(), leaf)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_classes_of_whole_shares_and_of_a_replica_alone(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    logits, y, hot = drawn(shape, dtype)
    by_hand = slope(logits, y)
    for found in (slope(logits, hot), gradient(logits, y), gradient(logits, hot)):
        assert torch.equal(found, by_hand)
    assert torch.equal(cross_entropy(logits, y), cross_entropy(logits, hot))
    for r in range(shape[0]):
        twins = [torch.stack([t[r], t[r]]) for t in (logits, y, hot)]
        assert torch.equal(slope(*twins[:2])[1], by_hand[r])
        assert torch.equal(slope(twins[0], twins[2])[0], by_hand[r])


@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient_are_those_of_the_formula(shape: tuple[int, int, int]) -> None:
    logits, y, _ = drawn(shape, torch.float64)
    shares = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for target in (y, shares):  # shares that do not add up to 1, too
        leaf = logits.clone().requires_grad_()
        log_p = torch.log_softmax(leaf, dim=-1)
        hot = torch.nn.functional.one_hot(y, shape[2]) if target is y else target
        plain = -(hot * log_p).sum(2)
        torch.testing.assert_close(cross_entropy(logits, target), plain.detach())
        (expected,) = torch.autograd.grad(plain.mean(1).sum(), leaf)
        torch.testing.assert_close(slope(logits, target), expected, rtol=1e-12, atol=1e-14)


def test_second_derivatives_and_shares_that_learn() -> None:
    logits, y, hot = drawn((3, 4, 3), torch.float64)
    for target in (y, hot):
        assert torch.autograd.gradgradcheck(
            lambda x, t=target: cross_entropy(x, t), logits.clone().requires_grad_()
        )
    shares = hot.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: cross_entropy(logits, t), shares)


@pytest.mark.parametrize("classes", [2, 7])
def test_a_class_is_taken_off_exactly(classes: int) -> None:
    """p - e_y in one rounding, whatever kernel subtracts."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 40, classes, generator=g)
    y = torch.randint(classes, (3, 40), generator=g)
    p = torch.log_softmax(logits.transpose(1, 2).contiguous(), 1).exp()
    one = torch.nn.functional.one_hot(y, classes).transpose(1, 2).float()
    wanted = ((p - one) * (1.0 / 40)).transpose(1, 2)
    assert torch.equal(slope(logits, y), wanted)
