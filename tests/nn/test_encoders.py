"""Encoders: published sizes, statistics in stacks, pooling, shared submodules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vflsec.core.rng import as_global, generator
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.nn.encoders import POOLINGS, build_towers, mlp_encoder, resnet_encoder
from vflsec.nn.images import resnet18
from vflsec.nn.replicas import Replicas

TABLE = Schema(("a", "b", "c"), (0, 0, 4), (3,))
IMAGE = Schema((), (), (3, 8, 8))


def count(m: nn.Module) -> int:
    return sum(p.numel() for p in m.parameters())


def test_published_parameter_counts() -> None:
    assert count(mlp_encoder(TABLE, (512,), 512, embedding=32).top) == 263_680  # type: ignore[arg-type]
    bottom, top = resnet18(3)
    assert count(top) == 11_019_008
    assert count(bottom) == 7 * 7 * 3 * 64 + 128 + 4 * (3 * 3 * 64 * 64 + 128)
    assert top(bottom(torch.zeros(2, 3, 32, 32))).shape == (2, 512)


def rows(schema: Schema, r: int, b: int) -> torch.Tensor:
    x = torch.randn(r, b, *schema.shape, dtype=torch.float64, generator=generator(0, "x"))
    if schema.cardinalities:
        x[..., 2] = torch.arange(r * b).reshape(r, b) % 4
    return x


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_the_vmap_path_updates_running_statistics(layer: type[nn.Module]) -> None:
    class Own(nn.Module):  # no stacking rule, as a user's module
        def __init__(self) -> None:
            super().__init__()
            self.norm = layer(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    shape = (4,) if layer is nn.BatchNorm1d else (4, 2, 2)
    x = torch.randn(3, 6, *shape, dtype=torch.float64, generator=generator(0)) + 2
    modules = [Own().double() for _ in range(3)]
    stack = Replicas(modules, dtype=torch.float64)
    inner = stack.sub("norm")
    assert stack.path == "vmap"
    got = stack(x)
    for r, m in enumerate(modules):
        torch.testing.assert_close(got[r], m(x[r]))
        for k, b in m.named_buffers():
            torch.testing.assert_close(stack.buffers[k][r], b)
    assert int(stack.buffers["norm.num_batches_tracked"][1]) == 1
    before = {k: v.clone() for k, v in stack.buffers.items()}
    stack(x, train=False)
    assert all(torch.equal(v, before[k]) for k, v in stack.buffers.items())
    assert torch.equal(inner.buffers["running_mean"], stack.buffers["norm.running_mean"])


def test_sub_shares_weights_and_statistics_both_ways() -> None:
    stack = Replicas([mlp_encoder(TABLE, (16,), 16, embedding=4) for _ in range(2)])
    top = stack.sub("top")
    assert top.params["0.weight"] is stack.params["top.0.weight"]
    stack(rows(TABLE, 2, 6).float())
    assert torch.equal(top.buffers["1.running_mean"], stack.buffers["top.1.running_mean"])
    assert float(top.buffers["1.running_mean"].abs().sum()) > 0
    assert stack.sub("") is stack


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling(pooling: str) -> None:
    spare: list[nn.Module] = []
    with as_global(generator(0)):
        both = build_towers("mean", lambda: nn.Linear(3, 4)).double()
    with as_global(generator(0)):
        made = build_towers(pooling, lambda: nn.Linear(3, 4), spare).double()
    x = torch.randn(5, 3, dtype=torch.float64, generator=generator(1))
    cross, local = both.cross(x), both.local(x)
    want = {
        "mean": (cross + local) / 2,
        "concat": torch.cat([cross, local], dim=1),
        "cross": cross,
        "local": local,
    }[pooling]
    assert torch.equal(made(x), want)
    left_out = {"cross": local, "local": cross}.get(pooling)
    assert len(spare) == (left_out is not None)
    if left_out is not None:
        assert torch.equal(spare[0].double()(x), left_out)
    stack = Replicas([made], dtype=torch.float64)
    assert stack.path == "stacked"
    torch.testing.assert_close(stack(x.unsqueeze(0))[0], want)


def test_resnet_refuses_tables_and_odd_widths() -> None:
    with pytest.raises(ConfigError, match="encoder_kind must be 'mlp' or 'auto' for rows"):
        resnet_encoder(TABLE, 16)
    with pytest.raises(ConfigError, match="cut must be a multiple of 8"):
        resnet_encoder(IMAGE, 20)
