"""Streams: named, independent of company, and without trace in global state."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vflsec.core.rng import Streams, as_global, derive, generator, numpy_generator

SEEDS = list(range(100, 120))
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
DRAWS = {
    "normal": lambda s: s.normal((3, 4)),
    "uniform": lambda s: s.uniform((5,)),
    "integers": lambda s: s.integers(1000, (6,)),
    "laplace": lambda s: s.laplace((7,)),
    "permutations": lambda s: s.permutations(50),
}


@DEVICES
@pytest.mark.parametrize("draw", DRAWS)
def test_a_replica_alone_equals_itself_among_twenty(draw: str, device: str) -> None:
    together = DRAWS[draw](Streams(SEEDS, "noise", "passive", device=device))
    assert together.shape[0] == 20
    for r, seed in enumerate(SEEDS):
        alone = DRAWS[draw](Streams([seed], "noise", "passive", device=device))
        assert torch.equal(alone[0], together[r])


@DEVICES
@pytest.mark.parametrize("draw", DRAWS)
def test_replicas_differ_and_equal_seeds_agree(draw: str, device: str) -> None:
    out = DRAWS[draw](Streams([1, 2, 1], "x", device=device)).cpu()
    assert torch.equal(out[0], out[2])
    assert not torch.equal(out[0], out[1])


def test_the_next_draws_also_do_not_depend_on_company() -> None:
    one, many = Streams([107], "n"), Streams(SEEDS, "n")
    for _ in range(3):
        assert torch.equal(one.normal((2,))[0], many.normal((2,))[7])


@DEVICES
def test_an_inactive_replica_gets_zeros_and_draws_nothing(device: str) -> None:
    some, every = (Streams([1, 2, 3], "n", device=device) for _ in range(2))
    first = some.normal((4,), active=[True, False, True])
    full = every.normal((4,))
    assert torch.equal(first[1].cpu(), torch.zeros(4))
    assert torch.equal(first[0], full[0])
    assert torch.equal(first[2], full[2])
    assert torch.equal(some.normal((4,))[1], full[1])  # its stream has not moved


@pytest.mark.parametrize("draw", ["normal", "uniform", "laplace"])
def test_numbers_drawn_in_advance_depend_on_a_replicas_own_calls_alone(draw: str) -> None:
    """As on a GPU: blocks of 16 numbers, which calls of several sizes use up."""
    shapes = [(3,), (2, 5), (4,), (16,), (40,), (1,), (0,), (7,)]
    turns = [[True, False, True], [True, True, False], [True, True, True]]

    def drawn(seeds: list[int], keep: list[int]) -> list[torch.Tensor]:
        streams = Streams(seeds, "n")
        streams.block = 16
        return [
            getattr(streams, draw)(shape, active=[turns[k % 3][r] for r in keep])
            for k, shape in enumerate(shapes)
        ]

    whole = drawn([5, 6, 7], [0, 1, 2])
    for r, seed in enumerate((5, 6, 7)):
        for together, alone in zip(whole, drawn([seed], [r]), strict=True):
            assert torch.equal(together[r], alone[0])
    some = torch.cat([x[0].flatten() for x in whole])
    assert len(some.unique()) == len(some)  # none is given out twice


def test_named_streams_differ() -> None:
    paths = [("a",), ("b",), ("a", "b"), ("b", "a"), ("ab",), ("a", 1), ("a", 11), (), ("a", "")]
    seen = {derive(seed, *path) for path in paths for seed in (0, 1, -1)}
    assert len(seen) == 27


def test_what_one_stream_draws_does_not_shift_another() -> None:
    quiet = generator(3, "split")
    noisy = generator(3, "batches")
    torch.rand(1000, generator=noisy)
    assert torch.equal(
        torch.rand(4, generator=quiet), torch.rand(4, generator=generator(3, "split"))
    )


def test_spawn_is_the_longer_path() -> None:
    assert torch.equal(
        Streams([5], "a").spawn("b", 2).normal((3,)), Streams([5], "a", "b", 2).normal((3,))
    )


@given(st.integers(0, 2**62), st.text(max_size=10))
def test_derived_seeds_fit_every_generator(seed: int, name: str) -> None:
    value = derive(seed, name)
    assert 0 <= value < 2**63
    assert value == derive(seed, name)
    torch.Generator().manual_seed(value)


def test_derive_is_pinned() -> None:
    """Published results name seeds; the mapping may not move without a note in the changelog."""
    assert derive(0, "split") == 3692668185207323792


def test_numpy_generators_are_named_too() -> None:
    a = numpy_generator(1, "a").normal(size=3)
    assert np.array_equal(a, numpy_generator(1, "a").normal(size=3))
    assert not np.array_equal(a, numpy_generator(1, "b").normal(size=3))


N = 40_000


def within(found: float, expected: float, variance_of_mean: float) -> None:
    assert abs(found - expected) <= 5 * math.sqrt(variance_of_mean)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laplace_moments(dtype: torch.dtype, device: str) -> None:
    """Scale 1: E|x| = 1, E x^2 = 2, var|x| = 1, var x^2 = 24 - 4, P(|x| > 3) = e^-3."""
    x = Streams([0], "laplace", dtype=dtype, device=device).laplace((N,))[0]
    assert x.dtype == dtype
    x = x.double()
    assert bool(torch.isfinite(x).all())
    within(x.mean().item(), 0.0, 2 / N)
    within(x.abs().mean().item(), 1.0, 1 / N)
    within(x.square().mean().item(), 2.0, 20 / N)
    tail = math.exp(-3)
    within((x.abs() > 3).double().mean().item(), tail, tail * (1 - tail) / N)


@DEVICES
def test_normal_moments(device: str) -> None:
    x = Streams([0], "normal", dtype=torch.float64, device=device).normal((N,))[0]
    within(x.mean().item(), 0.0, 1 / N)
    within(x.square().mean().item(), 1.0, 2 / N)
    within(x.pow(4).mean().item(), 3.0, 96 / N)


@DEVICES
def test_uniform_and_integers_moments(device: str) -> None:
    s = Streams([0], "flat", dtype=torch.float64, device=device)
    u = s.uniform((N,))[0]
    assert u.min() >= 0
    assert u.max() < 1
    within(u.mean().item(), 0.5, 1 / 12 / N)
    k = s.integers(10, (N,))[0]
    assert set(k.tolist()) == set(range(10))
    within((k == 3).double().mean().item(), 0.1, 0.09 / N)


@DEVICES
def test_permutations_are_permutations(device: str) -> None:
    p = Streams([1, 2], "order", device=device).permutations(17).cpu()
    assert p.shape == (2, 17)
    assert torch.equal(p.sort(dim=1).values, torch.arange(17).expand(2, 17))


def test_as_global_restores_the_global_state() -> None:
    before = torch.random.get_rng_state()
    g = generator(9, "init")
    with as_global(g):
        inside = torch.nn.Linear(3, 2).weight.detach().clone()
        second = torch.rand(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    with as_global(generator(9, "init")):
        assert torch.equal(torch.nn.Linear(3, 2).weight, inside)
    assert not torch.equal(torch.rand(2, generator=g), second)  # g moved on with what was drawn


def test_as_global_restores_after_an_error() -> None:
    before = torch.random.get_rng_state()

    def fail() -> None:
        with as_global(generator(9, "init")):
            torch.rand(3)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_two_threads_do_not_draw_from_each_others_streams() -> None:
    """One global generator serves all threads of a process: audits in two threads were random."""

    def drawn(seed: int) -> list[float]:
        with as_global(generator(seed, "init")):
            return [torch.rand(()).item() for _ in range(3)]

    inside, done = threading.Event(), threading.Event()
    found: list[list[float]] = []

    def other() -> None:
        with as_global(generator(2, "init")):
            inside.set()
            done.wait(1)
            found.append([torch.rand(()).item() for _ in range(3)])

    thread = threading.Thread(target=other)
    with as_global(generator(1, "init")):
        mine = [torch.rand(()).item()]
        thread.start()
        assert not inside.wait(0.2)  # it waits until this one is done
        mine += [torch.rand(()).item() for _ in range(2)]
        done.set()
    thread.join()
    assert [mine, *found] == [drawn(1), drawn(2)]


def test_a_global_generator_is_that_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout within a layer draws where its numbers are: the CPU's generator does not move it."""
    real, told = torch.Generator(), {"state": torch.tensor([7])}
    g: Any = SimpleNamespace(
        device=torch.device("cuda:1"), get_state=lambda: torch.tensor([3]),
        set_state=lambda s: told.__setitem__("left", s),
    )  # fmt: skip
    assert real.device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: told["state"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, _: told.__setitem__("state", s))
    before = torch.random.get_rng_state()
    with as_global(g):
        assert told["state"].item() == 3
        told["state"] = torch.tensor([4])  # something was drawn
    assert (told["state"].item(), told["left"].item()) == (7, 4)
    assert torch.equal(torch.random.get_rng_state(), before)
