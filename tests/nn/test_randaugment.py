"""RandAugment: each change against Pillow or by hand, the draws, and the stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vflsec.core.rng import Streams, generator
from vflsec.errors import ConfigError
from vflsec.nn.fixmatch import ImageViews
from vflsec.nn.randaugment import CHANGES, randaugment
from vflsec.plugins import registry

LEVEL = 1 / 255


def images(n: int = 6, h: int = 32, w: int = 16) -> Tensor:
    """Colour images in whole levels, (n, 3, h, w), of different brightness."""
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=(n, 3, h, w)).cumsum(2).cumsum(3)
    smooth = 40 + rng.uniform(60, 200, (n, 1, 1, 1)) * (smooth - smooth.min()) / np.ptp(smooth)
    return torch.from_numpy(smooth.round() / 255).float().clamp(0, 1)


def pillow(x: Tensor) -> Image.Image:
    return Image.fromarray((x.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy())


def back(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


def weaker(m: float) -> float:
    return 0.05 + 0.9 * m


PILLOW: dict[str, Any] = {
    "auto_contrast": lambda i, m: ImageOps.autocontrast(i),
    "brightness": lambda i, m: ImageEnhance.Brightness(i).enhance(weaker(m)),
    "color": lambda i, m: ImageEnhance.Color(i).enhance(weaker(m)),
    "contrast": lambda i, m: ImageEnhance.Contrast(i).enhance(weaker(m)),
    "equalize": lambda i, m: ImageOps.equalize(i),
    "identity": lambda i, m: i,
    "posterize": lambda i, m: ImageOps.posterize(i, 4 + int(5 * m)),
    "sharpness": lambda i, m: ImageEnhance.Sharpness(i).enhance(weaker(m)),
    "solarize": lambda i, m: ImageOps.solarize(i, int(np.ceil(255 * m))),
    "rotate": lambda i, m: i.rotate(round((2 * m - 1) * 30, 1)),
    "translate_x": lambda i, m: i.transform(
        i.size, Image.Transform.AFFINE, (1, 0, round((2 * m - 1) * 0.3 * i.width), 0, 1, 0)
    ),
    "translate_y": lambda i, m: i.transform(
        i.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, round((2 * m - 1) * 0.3 * i.height))
    ),
    "shear_x": lambda i, m: i.transform(i.size, Image.Transform.AFFINE, (
        1, (2 * m - 1) * 0.3, -(2 * m - 1) * 0.3 * i.height / 2, 0, 1, 0)),
    "shear_y": lambda i, m: i.transform(i.size, Image.Transform.AFFINE, (
        1, 0, 0, (2 * m - 1) * 0.3, 1, -(2 * m - 1) * 0.3 * i.width / 2)),
}  # fmt: skip


def test_the_list_is_the_published_one() -> None:
    assert set(CHANGES) == set(PILLOW)
    assert len(CHANGES) == 14


@pytest.mark.parametrize("name", list(PILLOW))
@pytest.mark.parametrize("m", [0.0, 0.13, 0.37, 0.62, 0.97])
def test_each_change_is_pillows(name: str, m: float) -> None:
    """Within two levels where both round; turned and sheared images agree on 19 of 20 pixels,
    for the nearest pixel is a tie at the rest."""
    x = images()
    got = CHANGES[name](x, torch.full((len(x),), m))
    want = torch.stack([back(PILLOW[name](pillow(i), m)) for i in x])
    far = (got - want).abs() > 2 * LEVEL
    if name in ("rotate", "shear_x", "shear_y"):
        assert float(far.float().mean()) < 0.05
    else:
        assert not far.any()
    if name != "identity" and m == 0.13:
        assert float((got - x).abs().mean()) > LEVEL  # it does something


def test_grey_images_of_one_channel() -> None:
    x = images()[:, :1]
    for name, change in CHANGES.items():
        made = change(x, torch.full((len(x),), 0.3))
        assert made.shape == x.shape, name
        assert float(made.min()) >= 0, name
        assert float(made.max()) <= 1, name
    assert torch.equal(CHANGES["color"](x, torch.zeros(6)), x)


def test_draws_are_the_replicas_own_and_cover_the_list() -> None:
    x = images(20).expand(3, 20, 3, 32, 16)
    made = randaugment(x, Streams([5, 6, 7], "views"))
    alone = randaugment(x[:2], Streams([7, 5], "views"))
    assert torch.equal(made[2], alone[0])
    assert torch.equal(made[0], alone[1])
    assert not torch.equal(made[0], made[1])
    one = images(1).expand(2, 400, 3, 32, 16)
    single = randaugment(one, Streams([0, 1], "views"), changes=1)[0]
    same = float((single == one[0]).flatten(1).all(1).float().mean())
    assert 0.04 < same < 0.16  # identity is one in fourteen; some sizes change nothing
    u = Streams([0], "views").uniform((400, 1, 2))[0, :, 0, 0]
    assert len((u * 14).long().unique()) == 14


def test_views_take_it_by_option() -> None:
    g = generator(0, "x")
    x = torch.rand(2, 8, 3, 32, 16, generator=g)
    weak, strong = ImageViews(Streams([0, 1], "v"), random=True).pair(x)
    torch.testing.assert_close(weak, ImageViews(Streams([0, 1], "v")).pair(x)[0])
    assert float((strong == 0).float().mean()) > 0.1  # the hole
    assert float((strong - weak).abs().mean()) > 0.1
    made = registry.algorithms.create("oneshot", {"augment": "randaugment"})
    assert made.augment == "randaugment"
    with pytest.raises(
        ConfigError, match="'fewshot': augment must be one of 'jitter', 'randaugment'"
    ):
        registry.algorithms.create("fewshot", {"augment": "cutmix"})
