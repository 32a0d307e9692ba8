"""The replica axis: stacked modules equal a loop over single ones, alone and in company."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from vflsec.core.party import Party
from vflsec.core.rng import Streams, as_global, generator
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.nn.encoders import mlp_encoder, resnet_encoder
from vflsec.nn.images import build_convolutional
from vflsec.nn.models import TabularInput, build_bottom, from_path, mlp
from vflsec.nn.replicas import LEAST, ReplicaFallbackWarning, Replicas


def build(make, count=4, **kwargs) -> tuple[list[nn.Module], Replicas]:
    modules = []
    for seed in range(count):
        with as_global(generator(seed, "test")):
            modules.append(make().double())
    return modules, Replicas(modules, dtype=torch.float64, **kwargs)


class Odd(nn.Module):
    """A module without a stacking rule."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3)
        self.out = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x.unsqueeze(1))).flatten(1))


class Drops(nn.Module):
    """Dropout inside a module without a rule cannot share draws between replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.inner(x))


TABLE = Schema(("a", "b", "c"), (0, 4, 0), (3,))
IMAGE = Schema((), (), (3, 8, 8))
CASES = {
    "mlp": (lambda: mlp([6, 8, 3]), (6,)),
    "layer_norm": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh()), (6,)),
    "batch_norm": (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()), (6,)),
    "odd": (Odd, (6,)),
    "conv": (lambda: build_convolutional(IMAGE, (5, 4), 6), IMAGE.shape),
    "tabular": (lambda: build_bottom(TABLE, (5,), 2, width=0), (3,)),
    "encoder": (lambda: mlp_encoder(TABLE, (8,), 8, embedding=4), (3,)),
    "imagenet": (lambda: resnet_encoder(IMAGE, 16, stem="imagenet"), IMAGE.shape),
    "small": (lambda: resnet_encoder(IMAGE, 16, stem="small"), IMAGE.shape),
}


@pytest.mark.parametrize("name", CASES)
def test_stack_equals_loop(name: str) -> None:
    """Outputs, gradients and running statistics of training, then outputs of use."""
    make, shape = CASES[name]
    near = 1e-10 if name in ("encoder", "imagenet", "small") else 1e-12
    modules, stack = build(make)
    assert stack.path == ("vmap" if name == "odd" else "stacked")
    x = torch.randn(4, 10, *shape, dtype=torch.float64, generator=generator(0, "x"))
    if name in ("tabular", "encoder"):
        x[..., 1] = torch.arange(40).reshape(4, 10) % 4
    got = stack(x)
    got.square().sum().backward()
    for r, m in enumerate(modules):
        want = m(x[r])
        want.square().sum().backward()
        torch.testing.assert_close(got[r], want, rtol=near, atol=near)
        for k, p in m.named_parameters():
            torch.testing.assert_close(stack.params[k].grad[r], p.grad, rtol=near, atol=near)
        for k, b in m.named_buffers():
            torch.testing.assert_close(stack.buffers[k][r], b, rtol=near, atol=1e-12)
    alone = torch.stack([m.eval()(x[r]) for r, m in enumerate(modules)])
    torch.testing.assert_close(stack(x, train=False), alone, rtol=near, atol=near)


SMOOTH = (nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.Softplus, nn.ReLU, nn.LeakyReLU)
LINEAR = [(7, 5, 1), (1, 5, 3), (16, 1, 4), (16, 30, 2), (64, 12, 64)]
COMPANY = {
    **{f"linear {b, i, o}": (partial(nn.Linear, i, o), (b, i)) for b, i, o in LINEAR},
    **{f"norm {d}": (partial(nn.BatchNorm1d, d), (33, d)) for d in (1, 3, 10, 16)},
    **{f"{a.__name__} {s}": (a, s) for a in SMOOTH for s in ((1, 1), (5, 3), (17, 7))},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", COMPANY)
def test_a_replica_does_not_depend_on_its_company(name: str, dtype: torch.dtype) -> None:
    """Odd sizes leave vector registers partly filled; numbers, gradients and statistics stay."""
    make, shape = COMPANY[name]
    modules, g = build(make, count=20)[0], generator(1, name)
    for p in (p for m in modules for p in m.parameters()):
        nn.init.normal_(p, generator=g)
    x = 3 * torch.randn(20, *shape, dtype=dtype, generator=g)

    def run(some: list[int]) -> list[torch.Tensor]:
        stack = Replicas([modules[r] for r in some], dtype=dtype)
        given = [x[some].requires_grad_(), *stack.parameters()]
        out = stack(given[0])
        return [out, *torch.autograd.grad(out.pow(3).sum(), given), *stack.buffers.values()]

    many = run([*range(20)])
    for r in range(20):
        few = run([r] * (LEAST if len(many) > 2 else 1))
        assert all(torch.equal(a[0], b[r]) for a, b in zip(few, many, strict=True))


def test_dropout_does_not_depend_on_company() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5))

    modules, stack = build(make, rng=Streams(range(4), "d", dtype=torch.float64))
    x = torch.ones(4, 3, 6, dtype=torch.float64)
    together = stack(x)
    one = Replicas([modules[2]], dtype=torch.float64, rng=Streams([2], "d", dtype=torch.float64))
    assert torch.equal(one(x[:1])[0], together[2])
    share = float((together == 0).double().mean())
    assert abs(share - 0.5) < 5 * (0.25 / together.numel()) ** 0.5
    assert torch.equal(stack(x, train=False), stack(x, train=False))


def test_module_that_draws_runs_in_a_loop_and_says_so() -> None:
    with pytest.warns(ReplicaFallbackWarning, match="Drops cannot be stacked"):
        modules, stack = build(Drops, rng=Streams(range(4), "d", dtype=torch.float64))
    x = torch.ones(4, 3, 6, dtype=torch.float64)
    together = stack(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplicaFallbackWarning)
        one = Replicas(
            [modules[1]], dtype=torch.float64, rng=Streams([1], "d", dtype=torch.float64)
        )
    assert torch.equal(one(x[:1])[0], together[1])


def test_state_round_trip_touches_chosen_replicas_only() -> None:
    _, stack = build(lambda: mlp([3, 2]))
    before = stack.state()
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(1.0)
    stack.load(before, torch.tensor([1, 3]))
    after = stack.state()
    for k in before:
        assert torch.equal(after[k][[1, 3]], before[k][[1, 3]])
        assert torch.equal(after[k][[0, 2]], before[k][[0, 2]] + 1)


def test_one_is_the_replica_itself() -> None:
    _, stack = build(CASES["batch_norm"][0])
    x = torch.randn(4, 10, 6, dtype=torch.float64, generator=generator(0, "x"))
    stack(x)
    single = stack.one(2)
    assert not single.training
    torch.testing.assert_close(single(x[2]), stack(x, train=False)[2], rtol=1e-12, atol=1e-12)


def test_wrong_replica_count_is_an_error() -> None:
    _, stack = build(lambda: mlp([3, 2]))
    with pytest.raises(ConfigError, match="4 replicas got inputs"):
        stack(torch.zeros(3, 5, 3, dtype=torch.float64))


def test_tabular_input_embeds_categories() -> None:
    first = build_bottom(TABLE, (5,), 2, width=0)[0]
    assert isinstance(first, TabularInput)
    assert first.out_features == 2 + 3  # two numeric columns, width ceil(sqrt(4)) + 1


def test_own_module_by_path() -> None:
    module = from_path("torch.nn:Flatten", TABLE, 3)
    assert module(torch.zeros(4, 3)).shape == (4, 3)
    with pytest.raises(ConfigError, match=r"'package\.module:Name'"):
        from_path("nothing", TABLE, 2)
    with pytest.raises(ConfigError, match="cannot be imported"):
        from_path("no_such_module:Thing", TABLE, 2)
    with pytest.raises(ConfigError, match=r"must map a batch of 3 to \(3, 2\), got \(3, 3\)"):
        from_path("torch.nn:Identity", TABLE, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adagrad"])
def test_optimizers_do_not_depend_on_company(optimizer: str, dtype: torch.dtype) -> None:
    """100 steps of parameters of odd and even size, alone and among 20."""
    sizes = (1, 3, 7, 21, 64)

    def run(replicas: slice) -> list[torch.Tensor]:
        g = generator(0, "steps")
        party = Party("p", False)
        layers = [nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in sizes])] * 20
        party.modules["bottom"] = Replicas(layers[replicas], dtype=dtype)
        party.start(optimizer, 1e-2, 1e-3)
        for _ in range(100):
            grads = [torch.randn(20, n, dtype=dtype, generator=g)[replicas] for n in sizes]
            party.update(grads)
        return [p.detach() for p in party.parameters()]

    many = run(slice(None))
    for r in (0, 7, 19):
        alone = run(slice(r, r + 1))
        assert all(torch.equal(a[0], m[r]) for a, m in zip(alone, many, strict=True))
