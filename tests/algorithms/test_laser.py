"""LASER-VFL: its loss by hand, draws without bias, its two ends, and who sends what."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from by_hand import (
    assert_follows,
    assert_same,
    federation,
    largest_difference,
    models,
    tapped,
    trained,
    without,
)
from torch import nn
from worlds import few_aligned, small_task, stack

from vflsec.algorithms.laser import Laser, list_sets
from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.task import Stack
from vflsec.errors import ConfigError

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "batch_size": 16, "lr": 1e-2, "epochs": 3, "patience": 2,
}  # fmt: skip
NAMES = ("active", "passive1", "passive2")
WIDTHS = (3, 4, 5)


def few(seeds: list[int]) -> Stack:
    """64 aligned rows; the active party has 80 more and their labels."""
    tasks = {s: few_aligned(small_task(s, widths=WIDTHS), 64) for s in set(seeds)}
    return Stack.build(tasks, seeds, dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_draws_count_every_set_once_for_each_of_its_parties(count: int) -> None:
    """A set of s parties counts 1/s for each of them, in the mean over what is drawn."""
    found: Counter[tuple[int, ...]] = Counter()
    for k in range(count):
        for size in range(1, count + 1):
            sets = list_sets(count, k, size)
            assert len(sets) == math.comb(count - 1, size - 1)
            for one in sets:
                of = tuple(one.nonzero().flatten().tolist())
                assert k in of
                assert len(of) == size
                found[of] += len(sets) / size * (1 / len(sets))
    every = [s for n in range(1, count + 1) for s in combinations(range(count), n)]
    assert found.keys() == set(every)
    assert all(value == pytest.approx(1) for value in found.values())


def test_a_step_is_that_of_the_sum_over_all_sets() -> None:
    """Against PyTorch's own autograd and SGD on the printed sum, three parties."""
    algorithm = Laser(**{**SMALL, "optimizer": "sgd", "lr": 0.3}, sets="all")
    fed = federation(algorithm, few([0]))
    mine = {name: models(fed, name) for name in NAMES}
    heads = ["top", "top_passive1", "top_passive2"]
    assert sorted(fed.active.modules) == sorted(["bottom", *heads])
    every = [*(m for n in NAMES for m in (mine[n]["bottom"],)), *(mine["active"][h] for h in heads)]
    optimizer = torch.optim.SGD([p for m in every for p in m.parameters()], lr=0.3, momentum=0.9)
    task, rows = fed.stack.first, fed.stack.rows("labelled")[:, :16]
    for _ in range(3):
        algorithm.step(fed, rows)
        z = [mine[n]["bottom"](task.x[n][rows[0]].double()) for n in NAMES]
        loss = torch.zeros((), dtype=torch.float64)
        for size in (1, 2, 3):
            for of in combinations(range(3), size):
                mean = torch.stack([z[j] for j in of]).mean(0)
                for k in of:
                    logits = mine["active"][heads[k]](mean)
                    one = nn.functional.cross_entropy(logits, task.y[rows[0]])
                    loss = loss + one / size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert_follows(fed, mine)


def test_alone_it_is_local_training_bit_for_bit() -> None:
    """With and without labelled rows beside the aligned ones."""
    task = without(small_task(0, widths=WIDTHS), "passive1", "passive2")
    alone = Stack.build({0: task}, [0], dtype=torch.float64)
    laser, local = Laser(**SMALL), Local(**SMALL, aggregation="mean")
    assert_same(trained(laser, alone).state(), trained(local, alone).state())
    more = Stack.build({0: few_aligned(task, 64)}, [0], dtype=torch.float64)
    fewer = trained(replace(laser, own_labels=False), more).state()
    assert_same(fewer, trained(local, more).state())
    assert largest_difference(fewer, trained(laser, more).state()) > 1e-4


@pytest.mark.parametrize("count", [1, 2])
def test_two_parties_draw_nothing_and_three_draw_by_seed(count: int) -> None:
    """Of two parties there is one set of each size, so that both ways are one."""
    tasks = {0: small_task(0, widths=WIDTHS[: count + 1])}
    world = Stack.build(tasks, [0], dtype=torch.float64)
    drawn = trained(Laser(**SMALL), world).state()
    assert_same(drawn, trained(Laser(**SMALL), world).state())
    difference = largest_difference(drawn, trained(Laser(**SMALL, sets="all"), world).state())
    assert (difference > 1e-4) == (count == 2)


def test_it_sends_what_splitnn_sends() -> None:
    """And nothing for the rows that the active party has alone."""
    same = {**SMALL, "patience": 0}
    ledger = trained(Laser(**same), few([0])).channel.ledger.of(0)
    assert ledger == trained(SplitNN(**same, aggregation="mean"), few([0])).channel.ledger.of(0)
    (up,) = (r for r in ledger if (r["phase"], r["kind"], r["sender"]) ==
             ("train", "embedding", "passive1"))  # fmt: skip
    assert (up["messages"], up["elements"]) == (3 * 4, 3 * 64 * 3)


def test_absent_parties_send_nothing_and_do_not_count() -> None:
    fed = trained(Laser(**SMALL), few([0]))
    rows = fed.stack.rows("test")[:, :9]
    answers = {}
    for absent in [(), ("passive2",), ("passive1", "passive2"), ("active",)]:
        algorithm = Laser(**SMALL, absent=absent)
        with tapped(fed) as passed:
            answers[absent] = algorithm.predict(fed, rows)
        senders = [m.sender for m, _ in passed if m.kind == "embedding"]
        assert senders == [n for n in NAMES[1:] if n not in absent]
    a = fed.active.modules
    z = a["bottom"](fed.columns("active", rows, train=False), train=False)
    assert torch.equal(answers["passive1", "passive2"], a["top"](z, train=False))
    assert len({tuple(v.flatten().tolist()) for v in answers.values()}) == 4


@pytest.mark.parametrize("wrong", [
    {"absent": ("bank",)}, {"absent": NAMES}, {"aggregation": "sum"}, {"linear_top": False},
    {"sets": "some"}, {"parties": {"active": {"cut": 2}}},
])  # fmt: skip
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        federation(Laser(**{**SMALL, **wrong}), stack([0], widths=WIDTHS))
