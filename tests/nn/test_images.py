"""Image bottoms: shapes and published sizes, the formula written out, the stack, refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from by_hand import assert_same, trained
from sampled import sampled
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d

from vflsec.core.rng import as_global, generator
from vflsec.core.task import Stack, Task
from vflsec.core.view import Schema
from vflsec.data.prepare import make_task
from vflsec.errors import ConfigError, PolicyError
from vflsec.nn.images import build_convolutional, image_bottom, wide_resnet
from vflsec.nn.replicas import Replicas
from vflsec.plugins import registry
from vflsec.train.loop import predict

HALF = Schema((), (), (3, 32, 16))
SMALL: dict[str, Any] = {"batch_size": 32, "patience": 0, "lr": 0.01, "epochs": 1}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("channels", "shape", "linear"),
    [((6,), (1, 8, 4), 6 * 4 * 2), ((6, 5), (1, 8, 4), 5 * 2 * 1), ((6, 5, 4), (1, 8, 4), 4 * 2),
     ((7,), (3, 32, 16), 7 * 16 * 8), ((), (3, 4, 4), 48)],
)  # fmt: skip
def test_pools_as_long_as_there_is_something_to_pool(
    channels: tuple[int, ...], shape: tuple[int, int, int], linear: int
) -> None:
    made = build_convolutional(Schema((), (), shape), channels, 9)
    last = made[-1]
    assert isinstance(last, nn.Linear)
    assert last.in_features == linear
    assert made(torch.zeros(2, *shape)).shape == (2, 9)
    convolutions = [m for m in made if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == list(channels)


@pytest.mark.parametrize(
    ("depth", "width", "published"), [(16, 4, 2_748_890), (40, 2, 2_243_546)], ids=["16-4", "40-2"]
)  # fmt: skip
def test_parameters_of_the_published_networks(depth: int, width: int, published: int) -> None:
    """Of CIFAR-10, with a linear layer to ten classes on top."""
    assert count(wide_resnet(3, depth, width)) + 64 * width * 10 + 10 == published


def test_resnet18_has_its_published_size() -> None:
    assert count(image_bottom("resnet", HALF, (), 512)) + 512 * 10 + 10 == 11_173_962


def test_the_papers_bottom_has_256_outputs_and_20_layers() -> None:
    """6 n + 2 = 20: a stem and nine blocks of two convolutions, one linear layer."""
    made = image_bottom("wideresnet", HALF, (), 256)
    assert made(torch.zeros(2, 3, 32, 16)).shape == (2, 256)
    wide = [m for m in made.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(wide) + 1 == 20
    thin = image_bottom("wideresnet", HALF, (), 64, depth=8)
    assert thin(torch.zeros(2, 3, 32, 16)).shape == (2, 64)


def by_formula(state: dict[str, Tensor], x: Tensor, blocks: int) -> Tensor:
    """The wide ResNet by functions alone, in training mode (statistics of the batch)."""

    def normal(prefix: str, h: Tensor) -> Tensor:
        h = batch_norm(h, None, None, state[f"{prefix}.weight"], state[f"{prefix}.bias"], True)
        return h.clamp_min(0)

    h = conv2d(x, state["0.weight"], padding=1)
    for i in range(1, 3 * blocks + 1):
        stride = 2 if i in (blocks + 1, 2 * blocks + 1) else 1
        a = normal(f"{i}.first.0", h)
        b = conv2d(a, state[f"{i}.body.0.weight"], stride=stride, padding=1)
        b = conv2d(normal(f"{i}.body.1", b), state[f"{i}.body.3.weight"], padding=1)
        cut = state.get(f"{i}.shortcut.weight")
        h = b + (h if cut is None else conv2d(a, cut, stride=stride))
    return normal(f"{3 * blocks + 1}", h).mean((2, 3))


@pytest.mark.parametrize("depth", [8, 14])
def test_the_stack_computes_the_formula_and_its_gradients(depth: int) -> None:
    with as_global(generator(3, "wide")):
        modules = [wide_resnet(1, depth, 1).double() for _ in range(2)]
        for m in modules:  # not the initial ones and zeros
            for p in m.parameters():
                p.data += 0.1 * torch.randn_like(p)
    stack = Replicas(modules, dtype=torch.float64)
    assert stack.path == "stacked"
    x = torch.randn(2, 6, 1, 8, 4, dtype=torch.float64, generator=generator(0, "x"))
    got = stack(x)
    got.square().sum().backward()
    for r, m in enumerate(modules):
        state = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
        want = by_formula(state, x[r], (depth - 2) // 6)
        want.square().sum().backward()
        torch.testing.assert_close(got[r], want, rtol=1e-10, atol=1e-10)
        twin = copy.deepcopy(m).train()
        torch.testing.assert_close(twin(x[r]), want, rtol=1e-10, atol=1e-10)
        for name, p in state.items():
            grad = stack.params[name].grad
            assert grad is not None
            torch.testing.assert_close(grad[r], p.grad, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "cut", "depth", "text"),
    [("wideresnet", 100, 20, "cut must be a multiple of 64 with encoder_kind 'wideresnet'"),
     ("resnet", 12, 20, "cut must be a multiple of 8 with encoder_kind 'resnet'"),
     ("wideresnet", 64, 18, r"encoder_depth must be 6 n \+ 2 or 6 n \+ 4")],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_named(kind: str, cut: int, depth: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        image_bottom(kind, HALF, (), cut, depth=depth)


@pytest.fixture(scope="module")
def tasks() -> dict[int, Task]:
    source = registry.datasets.create("digits", {"as_images": True}).load(0)
    return {s: make_task(source, s, aligned=129, validation=0.05, test=0.1) for s in (0, 1, 2)}


def stacked(tasks: dict[int, Task], seeds: list[int]) -> Stack:
    return Stack.build({s: tasks[s] for s in seeds}, seeds)


@pytest.mark.parametrize(
    ("name", "kind", "cut"),
    sampled([("splitnn", "wideresnet", 64), ("fedbcd", "resnet", 8), ("splitnn", "resnet", 8),
             ("oneshot", "wideresnet", 64)]),
)  # fmt: skip
def test_a_cell_does_not_depend_on_its_company(
    name: str, kind: str, cut: int, tasks: dict[int, Task]
) -> None:
    """129 rows in batches of 32 leave one row, which cannot be normalised and is left out."""
    params = {**SMALL, "encoder_kind": kind, "cut": cut, "encoder_depth": 8}
    if name == "oneshot":
        params |= {"local_steps": 3, "unlabelled_ratio": 1}
    algorithm = registry.algorithms.create(name, params)
    three = trained(algorithm, stacked(tasks, [0, 1, 2]), [0, 1, 2]).state()
    two = trained(algorithm, stacked(tasks, [2, 0]), [2, 0]).state()
    assert_same(three, two, of=(torch.tensor([2, 0]), slice(None)))


@pytest.mark.slow
def test_a_residual_bottom_learns(tasks: dict[int, Task]) -> None:
    params = {**SMALL, "encoder_kind": "resnet", "cut": 16, "epochs": 12, "select": False}
    stack, algorithm = stacked(tasks, [0, 1]), registry.algorithms.create("splitnn", params)
    fed = trained(algorithm, stack, [0, 1])
    rows = stack.rows("test")
    truth = torch.stack([t.y for t in stack.tasks]).gather(1, rows)
    right = predict(algorithm, fed, rows).argmax(-1) == truth
    assert right.double().mean(1).min() > 0.6  # ten classes, 129 labels


def test_what_treats_single_rows_refuses_what_mixes_them(tasks: dict[int, Task]) -> None:
    params = {**SMALL, "encoder_kind": "resnet", "cut": 8}
    algorithm = registry.algorithms.create("splitnn", params)
    policy = registry.defenses.create("dpsgd")
    strength = torch.tensor([1.0, 1.0])
    policies = {p: [(policy, strength)] for p in ("active", "passive")}
    with pytest.raises(PolicyError, match="no gradients of single rows with BatchNorm2d"):
        trained(algorithm, stacked(tasks, [0, 1]), [0, 1], policies)
