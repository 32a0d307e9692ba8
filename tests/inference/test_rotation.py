"""The rotation that lays one sample over another."""

from __future__ import annotations

import pytest
import torch
from sampled import sampled

from vflsec.core.rng import generator
from vflsec.inference.orthogonal_alignment import rotate_nearest


def skewed(n: int, seed: int) -> torch.Tensor:
    """Three independent columns of distinct shape, mean 0, sd about 1."""
    g = generator(seed, "skewed")
    u = torch.rand(n, 3, generator=g)
    rare = (u[:, 1] < 0.15).float() * 2.8 - 0.42
    return torch.stack([-u[:, 0].log() - 1, rare, (u[:, 2] - 0.5) * 3.46], dim=1)


def beside(n: int) -> torch.Tensor:
    return torch.zeros(n, 0)


@pytest.mark.parametrize("seed", sampled([0, 1]))
def test_a_rotation_with_a_mirror_is_found_from_other_rows(seed: int) -> None:
    """But for the sign of the column that is symmetrical."""
    a, b = skewed(800, seed), skewed(900, seed + 10)
    drawn = torch.randn(3, 3, generator=generator(seed, "turn"))
    true = torch.linalg.qr(drawn).Q
    found = rotate_nearest(
        (a, beside(800)), (b @ true, beside(900)), torch.eye(3), generator(0, "x")
    )
    assert torch.allclose(found @ found.T, torch.eye(3), atol=1e-5)
    agree = (found * true).sum(1)
    assert agree[:2].min() > 0.99
    assert abs(float(agree[2])) > 0.99


def test_what_stands_beside_tells_a_symmetrical_column_from_its_mirror() -> None:
    x = torch.randn(600, 1, generator=generator(0, "x"))
    told = torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).float()
    for true in (1.0, -1.0):
        turn = rotate_nearest((x, told), (true * x, told), torch.eye(1), generator(1, "x"))
        assert turn.item() == true
    blind = [rotate_nearest((x[:300], beside(300)), (s * x[300:], beside(300)), torch.eye(1),
                     generator(2, "x")).item() for s in (1.0, -1.0)]  # fmt: skip
    assert blind[0] == -blind[1] or blind == [1.0, 1.0], "it knows a sign that nothing tells"


def test_a_rotation_that_fits_stays() -> None:
    a = skewed(500, 0)
    true = torch.linalg.qr(torch.randn(3, 3, generator=generator(5, "turn"))).Q
    stays = rotate_nearest((a, beside(500)), (a @ true, beside(500)), true, generator(0, "x"))
    assert torch.equal(stays, true)
