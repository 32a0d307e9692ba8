"""Views: how many fields are hit, where the new values come from, per-replica streams."""

from __future__ import annotations

import pytest
import torch

from vflsec.core.rng import Streams, generator
from vflsec.core.view import Schema
from vflsec.nn.augment import Corruption, ImageViews

SCHEMA = Schema(tuple("abcdefghij"), (0, 0, 0, 5, 6, 7, 3, 4, 9, 8), (10,))  # 3 numeric, 7 codes


def table(r: int = 3, b: int = 40) -> torch.Tensor:
    x = torch.randn(r, b, 10, dtype=torch.float64, generator=generator(0, "table"))
    x[..., 3:] = 1 + (x[..., 3:].abs() * 10).floor() % 2
    return x


def corruption(x: torch.Tensor, source: str, seeds: list[int], rate: float = 0.3) -> Corruption:
    return Corruption(SCHEMA, x, rate, source, Streams(seeds, "views", dtype=x.dtype))


def test_uniform_hits_published_counts_within_the_range_and_code_zero() -> None:
    x = table()
    out = corruption(x, "uniform", [0, 1, 2])(x)
    hit = out != x
    assert torch.equal(hit[..., :3].sum(-1), torch.ones(3, 40, dtype=torch.int64))
    assert torch.equal(hit[..., 3:].sum(-1), torch.full((3, 40), 2))
    assert bool((out[..., 3:][hit[..., 3:]] == 0).all())
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    assert bool(((out >= torch.minimum(low, torch.zeros(()))) & (out <= high)).all())
    wide = Schema(tuple(str(i) for i in range(634)), (0,) * 634, (634,))
    many = torch.randn(1, 20, 634, dtype=torch.float64, generator=generator(1))
    rng = Streams([0], "v", dtype=torch.float64)
    assert int((Corruption(wide, many, 0.3, "uniform", rng)(many) != many).sum()) == 20 * 190


def test_marginal_takes_values_of_the_column() -> None:
    x = table()
    out = corruption(x, "marginal", [0, 1, 2], rate=1.0)(x)
    for r in range(3):
        for c in range(10):
            assert bool(torch.isin(out[r, :, c], x[r, :, c]).all())
    assert not torch.equal(out, x)
    joint = {tuple(v) for v in x[0, :, :3].tolist()}
    assert not any(tuple(v) in joint for v in out[0, :, :3].tolist())  # drawn column by column


def test_rate_zero_is_the_identity() -> None:
    x = table()
    assert torch.equal(corruption(x, "uniform", [0, 1, 2], rate=0.0)(x), x)


@pytest.mark.parametrize("source", ["uniform", "marginal"])
def test_corruption_of_a_replica_ignores_its_company(source: str) -> None:
    x = table()
    together = corruption(x, source, [4, 5, 6])(x)
    alone = corruption(x[1:2], source, [5])(x[1:2])
    assert torch.equal(alone[0], together[1])


def images(channels: int) -> torch.Tensor:
    return torch.rand(2, 6, channels, 8, 6, dtype=torch.float64, generator=generator(0, "im"))


@pytest.mark.parametrize("channels", [1, 3])
def test_image_views_stay_images_and_ignore_company(channels: int) -> None:
    x = images(channels)
    out = ImageViews(Streams([3, 4], "views", dtype=torch.float64))(x)
    assert out.shape == x.shape
    assert float(out.min()) >= 0
    assert float(out.max()) <= 1 + 1e-12
    assert float((out - x).abs().mean()) > 0.02
    alone = ImageViews(Streams([4], "views", dtype=torch.float64))(x[1:2])
    torch.testing.assert_close(alone[0], out[1], rtol=0, atol=1e-12)


STILL = {
    "scale": (1.0, 1.0), "aspect": 1.0, "jitter_rate": 0.0, "grey_rate": 0.0, "blur_rate": 0.0,
    "flip_rate": 0.0,
}  # fmt: skip


def viewed(x: torch.Tensor, **change: object) -> torch.Tensor:
    rng = Streams([0, 1], "v", dtype=torch.float64)
    return ImageViews(rng, **(STILL | change))(x)  # type: ignore[arg-type]


def test_each_image_step_alone() -> None:
    x = images(3)
    torch.testing.assert_close(viewed(x), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(viewed(x, flip_rate=1.0), x.flip(-1), rtol=0, atol=1e-12)
    grey = viewed(x, grey_rate=1.0)
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=x.dtype).reshape(3, 1, 1)
    torch.testing.assert_close(grey, (x * weights).sum(2, keepdim=True).expand_as(x))
    flat = torch.full_like(x, 0.25)
    for step in ({"blur_rate": 1.0}, {"scale": (0.3, 0.3)}):
        torch.testing.assert_close(viewed(flat, **step), flat, rtol=0, atol=1e-12)
        assert float((viewed(x, **step) - x).abs().mean()) > 0.01
    assert float(viewed(x, blur_rate=1.0).var()) < float(x.var())
    assert float((viewed(x, jitter_rate=1.0) - x).abs().mean()) > 0.01
    still = viewed(x, jitter_rate=1.0, jitter=(0.0, 0.0, 0.0, 0.0))
    torch.testing.assert_close(still, x, rtol=0, atol=1e-12)
