"""Small runs of the FedHSSL family for tests."""

from __future__ import annotations

from typing import Any

import torch
from by_hand import flatten
from torch import Tensor

from vflsec.core.federation import Federation
from vflsec.plugins import registry
from vflsec.testing import small_stack
from vflsec.train.loop import run_phases

SEEDS = [0, 1]
SMALL = {
    "hidden": (16,), "cut": 16, "projector_hidden": 16, "projector_out": 16,
    "predictor_hidden": 8, "pretrain_iterations": 2, "pretrain_batch_size": 32,
    "batch_size": 32, "epochs": 3, "own_control": False,
}  # fmt: skip
WORLD: dict[str, Any] = {"widths": (4, 6), "unaligned": 30}
_RUNS: dict[str, Any] = {}
METHODS = ("simsiam", "byol", "moco")


def make(name: str, **change: Any) -> Any:
    settings = SMALL | ({"queue": 64} if name != "fedcssl" else {})
    return registry.algorithms.create(name, settings | change)


def start(algorithm: Any, seeds: list[int] = SEEDS, **world: Any) -> Federation:
    fed = Federation.create(small_stack(seeds, **(WORLD | world)), seeds)
    algorithm.build(fed)
    return fed


def trained(name: str, world: dict[str, Any] | None = None, **change: Any) -> Any:
    """(algorithm, federation, state after each phase) of a run; runs of one kind are shared."""
    key = repr((name, world, sorted(change.items())))
    if key not in _RUNS:
        _RUNS[key] = _run(name, world, **change)
    return _RUNS[key]


def _run(name: str, world: dict[str, Any] | None, **change: Any) -> Any:
    algorithm = make(name, **change)
    fed = start(algorithm, **(world or {}))
    states = {phase.name: fed.state() for phase in run_phases(algorithm, fed)}
    return algorithm, fed, states


def tensors(state: Any, keep: str = "") -> dict[str, Tensor]:
    """All tensors of a state whose dotted name contains `keep`."""
    return {k: v for k, v in flatten(state).items() if keep in k}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert a
    assert a.keys() == b.keys()
    return all(torch.equal(v, b[k]) for k, v in a.items())


def ledger(fed: Federation, **where: str) -> list[tuple[int, int, int]]:
    return [
        (row["messages"], row["elements"], row["bytes"])
        for row in fed.channel.ledger.of(0)
        if all(row[k] == v for k, v in where.items())
    ]
