"""Drives algorithms by hand for tests: federations from tensors, and a tap on the channel."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vflsec.audit.intervals import mean_auc
from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.core.task import Stack, Task
from vflsec.core.view import Schema
from vflsec.nn.models import Twin, build_bottom
from vflsec.train.loop import run_phases

State = dict[str, dict[str, dict[str, Tensor]]]


def rank_rows(scores: np.ndarray, positive: np.ndarray) -> float:
    """AUC of scores (n,) against positive (n,) bool."""
    return mean_auc([(np.arange(len(scores)), scores, positive)])[0].value


def federation(
    algorithm: Algorithm,
    stack: Stack,
    seeds: Sequence[int] = (0,),
    policies: Mapping[str, Any] | None = None,
) -> Federation:
    """A federation with its modules built."""
    fed = Federation.create(stack, seeds, policies)
    algorithm.build(fed)
    fed.phase = "train"
    return fed


def trained(
    algorithm: Algorithm,
    stack: Stack,
    seeds: Sequence[int] = (0,),
    policies: Mapping[str, Any] | None = None,
) -> Federation:
    """A federation after all phases."""
    fed = federation(algorithm, stack, seeds, policies)
    for _ in run_phases(algorithm, fed):
        pass
    return fed


def without(task: Task, *parties: str) -> Task:
    """The same task with some passive parties left out."""
    keep = tuple(p for p in task.parties if p not in parties)

    def only(by_party: Mapping[str, Any]) -> dict[str, Any]:
        return {p: by_party[p] for p in keep}

    sets = {k: v for k, v in task.sets.items() if k.removeprefix("local:") not in parties}
    return replace(
        task, parties=keep, x=only(task.x), present=only(task.present), schema=only(task.schema),
        sets=sets,
    )  # fmt: skip


@contextmanager
def tapped(fed: Federation) -> Iterator[list[tuple[Message, Tensor]]]:
    """All messages sent meanwhile: (what the sender gave, what the receiver got)."""
    passed: list[tuple[Message, Tensor]] = []
    original = fed.channel.send

    def send(message: Message, labels: Tensor | None = None, **context: Any) -> Tensor:
        delivered = original(message, labels, **context)
        passed.append((message, delivered.clone()))
        return delivered

    fed.channel.send = send  # type: ignore[method-assign]
    try:
        yield passed
    finally:
        del fed.channel.send  # type: ignore[method-assign]


def models(fed: Federation, party: str) -> dict[str, nn.Module]:
    """Copies of replica 0's modules of a party, in train mode, as plain modules."""
    return {part: copy.deepcopy(m.one(0)).train() for part, m in fed.parties[party].modules.items()}


def assert_follows(
    fed: Federation, plain: Mapping[str, Mapping[str, nn.Module]], atol: float = 1e-12
) -> None:
    """Replica 0 of these parties has the weights of plain modules, by party and part."""
    for party, parts in plain.items():
        for part, module in parts.items():
            for key, value in module.named_parameters():
                mine = fed.parties[party].modules[part].params[key][0]
                torch.testing.assert_close(mine, value, rtol=0, atol=atol)


def flatten(state: State) -> dict[str, Tensor]:
    """All weights of a state, by ``party.part.name``."""
    return {
        f"{party}.{part}.{key}": value
        for party, parts in state.items()
        for part, weights in parts.items()
        for key, value in weights.items()
    }


def assert_same(a: State, b: State, *, of: tuple[Any, Any] = (slice(None), slice(None))) -> None:
    """Two states are equal bit for bit; `of` picks the replicas of each."""
    mine, theirs = flatten(a), flatten(b)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value[of[0]], theirs[name][of[1]]), name


def largest_difference(a: State, b: State) -> float:
    """The largest absolute difference between the weights of two states."""
    other = flatten(b)
    return max(float((value - other[name]).abs().max()) for name, value in flatten(a).items())


def twin(schema: Schema, out: int) -> Twin:
    """The two extractors of FedCVT as one bottom model, for FedSplitNN."""
    return Twin(*(build_bottom(schema, (7,), out // 2, width=4) for _ in range(2)))
