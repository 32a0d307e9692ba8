"""The step without an autograd graph is the step with one, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vflsec import registry
from vflsec.channel import Recorder
from vflsec.federation import Federation
from vflsec.party import Party
from vflsec.testing import small_stack

CASES: list[tuple[dict[str, Any], torch.dtype]] = [
    ({"hidden": [8], "cut": 4}, torch.float32),
    ({"hidden": [37], "cut": 5, "top": [7]}, torch.float64),
    ({"hidden": [30, 9], "cut": 3, "batch_size": 17, "aggregation": "mean"}, torch.float32),
    ({"top": [], "linear_top": False, "aggregation": "sum", "optimizer": "sgd"}, torch.float64),
]
STRENGTHS = [0.0, 1.0, 0.5]


def steps(settings: dict[str, Any], dtype: torch.dtype) -> tuple[Any, ...]:
    seeds = [0, 1, 1]
    stack = small_stack(seeds)
    stack.dtype = dtype
    iso = registry.defenses.create("iso")
    wanted = [("passive1", "received", "gradient", form) for form in ("mean", "all")]
    recorder = Recorder(wanted, 3, len(stack.first.y))
    on = {"active": [(iso, torch.tensor(STRENGTHS, dtype=torch.float64))]}
    fed = Federation.create(stack, seeds, on, recorder)
    algorithm = registry.algorithms.create("splitnn", {"batch_size": 32, **settings})
    algorithm.build(fed)
    (phase,) = algorithm.phases(fed)
    fed.phase = phase.name
    by_hand = [p.by_hand for p in fed.parties.values()]
    for _ in range(3):
        for rows in fed.batches(phase):
            fed.batch = rows
            phase.step(rows)
            fed.steps += 1
    weights = [
        (name, v)
        for p in fed.parties.values()
        for part, m in p.modules.items()
        for name, v in m.state().items()
    ]
    tables = [recorder.tables(r, ["passive1"], "train") for r in range(3)]
    return by_hand, weights, tables, [fed.channel.ledger.of(r) for r in range(3)]


@pytest.mark.parametrize(("settings", "dtype"), CASES)
def test_both_ways_give_the_same_bits(
    settings: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, weights, tables, ledgers = steps(settings, dtype)
    assert all(taken)
    monkeypatch.setattr(Party, "by_hand", False)
    graph, other_weights, other_tables, other_ledgers = steps(settings, dtype)
    assert not any(graph)
    for (name, a), (_, b) in zip(weights, other_weights, strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b), name
    for mine, theirs in zip(tables, other_tables, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine
        for key, table in mine.items():
            assert torch.equal(table.tensor, theirs[key].tensor)
    assert ledgers == other_ledgers


def test_what_works_on_the_graph_gets_one() -> None:
    stack = small_stack([0, 1])
    on = torch.ones(2, dtype=torch.float64)
    algorithm = registry.algorithms.create("splitnn", {})
    found = {}
    for name in ("", "mixup", "dcor"):
        if name and name not in registry.defenses.names():
            continue
        policies = {"active": [(registry.defenses.create(name), on)]} if name else {}
        fed = Federation.create(stack, [0, 1], policies)
        algorithm.build(fed)
        hooks = [b.policy.overrides(h) for b in fed.active.bindings for h in ("loss", "penalty")]
        found[name] = fed.active.by_hand
        assert fed.active.by_hand != any(hooks)
    assert found[""] is True
    assert False in found.values()
