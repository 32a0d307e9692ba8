"""Small tasks for tests, made from tensors: no data layer involved."""

from __future__ import annotations

import torch

from vflsec.rng import generator
from vflsec.task import Stack, Task
from vflsec.view import Schema


def small_task(
    seed: int = 0,
    *,
    n: int = 240,
    widths: tuple[int, ...] = (4, 6),
    classes: int = 2,
    signal: float = 2.0,
    positive_rate: float | None = None,
    categorical: bool = False,
) -> Task:
    """A Gaussian world: the label depends on the last party's first columns by `signal`."""
    g = generator(seed, "small_task")
    names = ("active", *(f"passive{k}" for k in range(1, len(widths))))
    x = {p: torch.randn(n, w, generator=g) for p, w in zip(names, widths)}
    score = signal * x[names[-1]][:, :classes] + x[names[0]][:, :classes]
    score = score + 0.5 * torch.randn(n, classes, generator=g)
    y = score.argmax(1)
    if positive_rate is not None:
        cut = score[:, 0].quantile(1 - positive_rate)
        y = (score[:, 0] > cut).long()
    schema = {
        p: Schema(tuple(f"{p}{i}" for i in range(w)), (0,) * w, (w,)) for p, w in zip(names, widths)
    }
    if categorical:
        last = names[-1]
        x[last][:, 0] = (x[last][:, 0] > 0).float() + 1
        schema[last] = Schema(schema[last].names, (3, *(0,) * (widths[-1] - 1)), (widths[-1],))
    order = torch.randperm(n, generator=g)
    a, b = n * 6 // 10, n * 75 // 100
    train, validation, test = (s.sort().values for s in (order[:a], order[a:b], order[b:]))
    sets = {"labelled": train, "aligned": train, "validation": validation, "test": test}
    sets |= {f"local:{p}": train for p in names}
    present = {p: torch.ones(n, dtype=torch.bool) for p in names}
    return Task("small", names, x, present, schema, y, classes, sets, train)


def stack(seeds: list[int], dtype: torch.dtype = torch.float64, **world: object) -> Stack:
    """Tasks of these seeds side by side."""
    tasks = {s: small_task(s, **world) for s in set(seeds)}  # type: ignore[arg-type]
    return Stack.build(tasks, seeds, dtype=dtype)
