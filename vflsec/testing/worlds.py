"""Small worlds made of tensors, and training in them by the engine's loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.core.policy import Policy
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.rng import generator
from vflsec.core.task import Stack, Task
from vflsec.core.view import Known, Schema
from vflsec.label import Classes
from vflsec.train.loop import run_phases
from vflsec.train.views import read_initial_states

Check = Callable[[str], None]
SEEDS = (0, 1, 2)


def small_task(
    seed: int = 0,
    *,
    n: int = 240,
    widths: tuple[int, ...] = (4, 6),
    classes: int = 2,
    signal: float = 2.0,
    positive_rate: float | None = None,
    categorical: bool = False,
    unaligned: int = 0,
) -> Task:
    """A Gaussian world from tensors alone, for tests.

    Args:
        seed: of the world.
        n: aligned rows, 60 % labelled training, 15 % validation, 25 % test.
        widths: columns of each party, the active one first, which may have 0: labels only.
        classes: number of classes; the label is the argmax of `signal` times the last party's first
            columns plus the active party's first columns plus noise.
        positive_rate: share of class 1 instead, for two classes.
        categorical: turn the last party's first column into a categorical one.
        unaligned: training rows that each party holds alone, on top; the active party's are
        labelled.
    """
    g = generator(seed, "small_task")
    names = ("active", *(f"passive{k}" for k in range(1, len(widths))))
    total = n + unaligned * len(names)
    x = {p: torch.randn(total, w, generator=g) for p, w in zip(names, widths, strict=True)}
    value = signal * x[names[-1]][:, :classes]
    if widths[0]:
        value = value + x[names[0]][:, :classes]
    value = value + 0.5 * torch.randn(total, classes, generator=g)
    y = value.argmax(1)
    if positive_rate is not None:
        y = (value[:, 0] > value[:n, 0].quantile(1 - positive_rate)).long()
    schema = {
        p: Schema(tuple(f"{p}{i}" for i in range(w)), (0,) * w, (w,))
        for p, w in zip(names, widths, strict=True)
    }
    if categorical:
        last = names[-1]
        x[last][:, 0] = (x[last][:, 0] > 0).float() + 1
        schema[last] = Schema(schema[last].names, (3, *(0,) * (widths[-1] - 1)), (widths[-1],))
    order = torch.randperm(n, generator=g)
    a, b = n * 6 // 10, n * 75 // 100
    train, validation, test = (s.sort().values for s in (order[:a], order[a:b], order[b:]))
    sets = {"labelled": train, "aligned": train, "validation": validation, "test": test}
    present = {p: torch.ones(total, dtype=torch.bool) for p in names}
    for k, p in enumerate(names):
        own = torch.arange(n + k * unaligned, n + (k + 1) * unaligned)
        sets[f"local:{p}"] = torch.cat([train, own])
        present[p][n:] = False
        present[p][own] = True
        x[p][~present[p]] = 0.0
    y[n + unaligned :] = -1
    return Task(
        "small", names, x, present, schema, y, Classes(classes), sets, sets[f"local:{names[0]}"]
    )


def small_stack(seeds: list[int], dtype: torch.dtype = torch.float64, **world: Any) -> Stack:
    """:func:`small_task` for these seeds, side by side."""
    return Stack.build({s: small_task(s, **world) for s in set(seeds)}, seeds, dtype=dtype)


@dataclass
class Trained:
    """A federation after training, with what is needed to look at it."""

    algorithm: Algorithm
    fed: Federation
    initial: dict[str, dict[str, Tensor]]


def train(
    algorithm: Algorithm,
    stack: Stack,
    seeds: list[int],
    policies: Mapping[str, list[tuple[Policy, Tensor]]] | None = None,
    wanted: list[tuple[str, str, str, str]] | None = None,
    known: list[Known] | None = None,
    aux: list[tuple[Tensor, dict[str, Tensor], Tensor]] | None = None,
    watch: Callable[[Message, Tensor], None] | None = None,
) -> Trained:
    """Train `algorithm` on `stack` by the engine's loop; stack at least two replicas.

    `known` and `aux` are what each replica's active attackers were granted, see
    :func:`vflsec.train.views.build_grants`; `watch` is told each message and what was delivered.
    """
    granted = {k: v for k, v in (("known", known), ("aux", aux)) if v is not None}
    recorder = Recorder(wanted or [], stack.replicas, len(stack.first.y))
    fed = Federation.create(stack, seeds, policies, recorder, RunFacts(epochs=3, batch_size=32))
    for bound in (b for name in policies or {} for b in fed.parties[name].bindings):
        bound.own.memory |= granted
    if watch is not None:
        send = fed.channel.send

        def watched(message: Message, *args: Any, **kwargs: Any) -> Tensor:
            out = send(message, *args, **kwargs)
            watch(message, out)
            return out

        fed.channel.send = watched  # type: ignore[method-assign]
    algorithm.build(fed)
    initial = read_initial_states(fed)
    for _ in run_phases(algorithm, fed):
        pass
    return Trained(algorithm, fed, initial)
