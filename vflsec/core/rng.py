"""Named random streams: every draw comes from a generator that is named by what it is for.

A seed and a path of names give one generator, so what one component draws never shifts what
another one draws. On the replica axis each replica has generators of its own; a replica's numbers
therefore do not depend on which replicas share its batch.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vflsec.errors import VflsecError


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed from a base seed and a path of names; different paths are independent."""
    text = "\x1f".join([str(int(seed)), *(str(n) for n in names)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *names: object, device: torch.device | str = "cpu") -> torch.Generator:
    """The torch generator of a named stream."""
    g = torch.Generator(device=device)
    g.manual_seed(derive(seed, *names))
    return g


def numpy_generator(seed: int, *names: object) -> np.random.Generator:
    """The numpy generator of a named stream."""
    return np.random.default_rng(derive(seed, *names))


_GLOBAL = threading.RLock()


@contextmanager
def own_global() -> Iterator[None]:
    """The global CPU generator for one thread at a time, restored afterwards.

    A process has one for all its threads: two trainings side by side would draw from each other's.
    """
    with _GLOBAL, torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def as_global(g: torch.Generator) -> Iterator[None]:
    """Make the global generator of its device start where `g` stands, and restore it afterwards.

    For code that knows no generator argument, such as the constructors of `torch.nn` and dropout
    within a layer, which draws where its numbers are.
    """
    if g.device.type == "cuda":
        with _GLOBAL:
            before = torch.cuda.get_rng_state(g.device)
            try:
                torch.cuda.set_rng_state(g.get_state(), g.device)
                yield
                g.set_state(torch.cuda.get_rng_state(g.device))
            finally:
                torch.cuda.set_rng_state(before, g.device)
        return
    with own_global():
        torch.random.set_rng_state(g.get_state())
        yield
        g.set_state(torch.random.get_rng_state())


class Globals:
    """Where the global generators of the CPU stand: those of torch and numpy.

    Nothing draws from them but within :func:`as_global`: what does cannot be repeated, and changes
    with whatever ran before it in the process. Python's own is left out: imports draw names from it
    (scikit-learn's does), and so do threads of others (a notebook's, a cluster's).
    """

    def __init__(self) -> None:
        self._states = self._now()

    @staticmethod
    def _now() -> dict[str, object]:
        with _GLOBAL:  # while another thread has lent it, torch's stands elsewhere
            torchs = torch.random.get_rng_state()
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (asked, not drawn from)
        return {
            "torch": torchs.numpy().tobytes(),
            "numpy": (kind, np.asarray(keys).tobytes(), *rest),
        }

    def drawn(self) -> str:
        """Whose global generator was drawn from or seeded since, or ''."""
        now = self._now()
        return " and ".join(k for k, state in self._states.items() if now[k] != state)

    def hold(self, what: str, kind: type[VflsecError], remedy: str) -> None:
        """Refuse that a global generator was drawn from: no seed would repeat that."""
        if whose := self.drawn():
            text = f"{what}: draws from the global random numbers of {whose}."
            raise kind(f"{text} {remedy}")


Fill = Callable[[Tensor, torch.Generator], Any]
"""Writes drawn numbers into a tensor."""


def _fill_normal(out: Tensor, g: torch.Generator) -> None:
    out.normal_(generator=g)


def _fill_uniform(out: Tensor, g: torch.Generator) -> None:
    torch.rand(out.shape, generator=g, out=out, dtype=out.dtype)


class Stock:
    """Numbers drawn in advance, for a GPU: a launch for each replica and block, not for each step.

    Each replica's numbers come from its own generator, and what it takes depends on its own calls
    alone.

    Args:
        numbers: (R, block), which is filled when a replica first takes some.
        fill: draws them.
        generators: one a replica.
    """

    def __init__(self, numbers: Tensor, fill: Fill, generators: Sequence[torch.Generator]) -> None:
        self.numbers, self.fill, self.generators = numbers, fill, generators
        self.taken = [numbers.shape[1]] * len(generators)
        self.drawn = [False] * len(generators)

    def take(self, many: int, active: Sequence[bool] | None, idle: float) -> Tensor:
        """The next numbers of every active replica, `idle` for others; (R, many)."""
        block = self.numbers.shape[1]
        takes = [True] * len(self.generators) if active is None else [bool(a) for a in active]
        starts: list[int] = []
        for r in (r for r, yes in enumerate(takes) if yes):
            if self.taken[r] + many > block:
                self.fill(self.numbers[r], self.generators[r])
                self.taken[r], self.drawn[r] = 0, True
            starts.append(self.taken[r])
            self.taken[r] += many
        if len(set(starts)) == 1 and self.drawn == takes:
            return self.numbers[:, starts[0] : starts[0] + many].clone()
        out = torch.full_like(self.numbers[:, :many], idle)
        for r, start in zip((r for r, yes in enumerate(takes) if yes), starts, strict=True):
            out[r] = self.numbers[r, start : start + many]
        return out


BLOCK = 1 << 17
"""Numbers that each replica of a GPU draws at a time."""


class Streams:
    """One generator for each replica of a cohort, drawn from side by side.

    Args:
        seeds: base seed of each replica, length R.
        names: path of names of this stream; the same path and seed give the same numbers.
        device: where the numbers are drawn (and stay).
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *names: object,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.seeds = tuple(int(s) for s in seeds)
        self.names = names
        self.device = torch.device(device)
        self.dtype = dtype
        self.generators = [generator(s, *names, device=self.device) for s in self.seeds]
        self.block = BLOCK if self.device.type == "cuda" else 0
        self._stocks: dict[tuple[Fill, torch.dtype], Stock] = {}

    def __len__(self) -> int:
        return len(self.seeds)

    def spawn(self, *names: object) -> Streams:
        """A fresh set of streams below this one."""
        return Streams(self.seeds, *self.names, *names, device=self.device, dtype=self.dtype)

    def normal(
        self,
        shape: Sequence[int],
        *,
        active: Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Standard normal numbers, shape (R, *shape); replicas not `active` get zeros."""
        return self._draw(_fill_normal, 0.0, shape, active, dtype or self.dtype)

    def uniform(
        self,
        shape: Sequence[int],
        *,
        active: Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Numbers uniform on [0, 1), shape (R, *shape); replicas not `active` get 1/2.

        Coins that carry a guarantee are drawn in float64: float32 knows no chance below 2^-24.
        """
        return self._draw(_fill_uniform, 0.5, shape, active, dtype or self.dtype)

    def _draw(
        self,
        fill: Fill,
        idle: float,
        shape: Sequence[int],
        active: Sequence[bool] | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Numbers (R, *shape) of `fill`; `idle` for replicas that are not active."""
        many = math.prod(shape)
        if 0 < many <= self.block:
            if (fill, dtype) not in self._stocks:
                empty = torch.full((len(self), self.block), idle, dtype=dtype, device=self.device)
                self._stocks[fill, dtype] = Stock(empty, fill, self.generators)
            return self._stocks[fill, dtype].take(many, active, idle).reshape(len(self), *shape)
        out = torch.empty((len(self), *shape), dtype=dtype, device=self.device)
        for r, (g, part) in enumerate(zip(self.generators, out.unbind(0), strict=True)):
            if active is None or active[r]:
                fill(part, g)
            else:
                part.fill_(idle)
        return out

    def integers(self, high: int, shape: Sequence[int]) -> Tensor:
        """Integers uniform on [0, high), shape (R, *shape), int64."""
        out = torch.empty((len(self), *shape), dtype=torch.int64, device=self.device)
        for r, g in enumerate(self.generators):
            torch.randint(high, tuple(shape), generator=g, out=out[r])
        return out

    def laplace(
        self,
        shape: Sequence[int],
        *,
        active: Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Laplace numbers of scale 1, shape (R, *shape); replicas not `active` get zeros."""
        u = self.uniform(shape, active=active, dtype=dtype) - 0.5
        tiny = torch.finfo(u.dtype).tiny
        return -u.sign() * torch.log((1 - 2 * u.abs()).clamp_min(tiny))

    def permutations(self, n: int) -> Tensor:
        """One permutation of 0..n-1 for each replica, shape (R, n), int64."""
        out = torch.empty((len(self), n), dtype=torch.int64, device=self.device)
        for r, g in enumerate(self.generators):
            torch.randperm(n, generator=g, out=out[r])
        return out
