"""Convolutional bottoms in the algorithms: they learn on image halves; wrong uses are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, trained
from sampled import sampled
from torch import nn

from vflsec.core.task import Stack, Task
from vflsec.data.prepare import make_task
from vflsec.errors import ConfigError
from vflsec.nn.fixmatch import ImageViews
from vflsec.plugins import registry
from vflsec.testing import small_stack
from vflsec.train.loop import predict

CONV: dict[str, Any] = {
    "encoder_kind": "conv", "hidden": [8, 8], "cut": 16, "batch_size": 32, "patience": 0,
    "lr": 0.01,
}  # fmt: skip


def halves(*seeds: int) -> dict[int, Task]:
    """Digits cut into two halves of 8 x 4 pixels, 128 aligned rows."""
    source = registry.datasets.create("digits", {"as_images": True}).load(0)
    return {s: make_task(source, s, aligned=128, validation=0.1) for s in seeds}


@pytest.fixture(scope="module")
def tasks() -> dict[int, Task]:
    return halves(0, 1, 2)


def stacked(tasks: dict[int, Task], seeds: list[int]) -> Stack:
    return Stack.build({s: tasks[s] for s in seeds}, seeds, dtype=torch.float64)


def test_one_shot_learns_with_fixmatch_on_image_halves(tasks: dict[int, Task]) -> None:
    stack = stacked(tasks, [0, 1])
    algorithm = registry.algorithms.create(
        "oneshot", {**CONV, "epochs": 15, "local_epochs": 10, "unlabelled_ratio": 2}
    )
    fed = trained(algorithm, stack, [0, 1])
    for party in fed.parties.values():
        kinds = [type(m) for m in party.modules["bottom"].template]
        assert kinds.count(nn.Conv2d) == 2
        assert party.modules["bottom"].path == "stacked"
        assert isinstance(fed.extra[f"views.{party.name}"], ImageViews)
    rows = stack.rows("test")
    right = predict(algorithm, fed, rows).argmax(-1) == stack.labels().gather(1, rows)
    assert right.double().mean(1).min() > 0.6  # ten classes
    up = [r for r in fed.channel.ledger.of(0) if r["phase"] != "predict" and r["elements"] > 1]
    sizes = {(r["kind"], r["name"]): r["elements"] for r in up}
    assert sizes == {
        ("ids", "intersection"): 128, ("embedding", "initial"): 128 * 16,
        ("gradient", ""): 128 * 16, ("embedding", "trained"): 128 * 16,
    }  # fmt: skip


@pytest.mark.parametrize("name", sampled(["splitnn", "oneshot", "fewshot"]))
def test_a_cell_does_not_depend_on_its_company(name: str, tasks: dict[int, Task]) -> None:
    params = {**CONV, "epochs": 1}
    if name != "splitnn":
        params |= {"local_epochs": 1, "unlabelled_ratio": 2}
    algorithm = registry.algorithms.create(name, params)
    three = trained(algorithm, stacked(tasks, [0, 1, 2]), [0, 1, 2]).state()
    two = trained(algorithm, stacked(tasks, [2, 0]), [2, 0]).state()
    assert_same(three, two, of=(torch.tensor([2, 0]), slice(None)))


@pytest.mark.parametrize("name", ["splitnn", "oneshot", "fedbcd", "vflhlp"])
def test_tables_cannot_be_convolved(name: str) -> None:
    algorithm = registry.algorithms.create(name, {"encoder_kind": "conv"})
    with pytest.raises(ConfigError, match=rf"{name}: encoder_kind 'conv' must have rows of"):
        federation(algorithm, small_stack([0], unaligned=20))
