"""Vectors of categorical columns: their width, hashing into fewer of them, and their own decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import federation, trained
from worlds import with_category

from vflsec.algorithms.fedhssl import FedHSSL
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.nn.models import TabularInput
from vflsec.nn.replicas import Replicas
from vflsec.testing import small_stack

SCHEMA = Schema(("a", "b", "c"), (1000, 0, 5), (3,))
SMALL: dict[str, Any] = {"hidden": (7,), "cut": 3, "batch_size": 32, "epochs": 1, "patience": 0}


def rows() -> torch.Tensor:
    return torch.stack([torch.arange(1000.0), torch.randn(1000), torch.arange(1000.0) % 5], dim=1)


def test_codes_share_the_vectors_that_there_are() -> None:
    module = TabularInput(SCHEMA, 4, rows=11)
    assert [t.num_embeddings for t in module.tables] == [11, 5]  # type: ignore[union-attr]
    at = module.row(0, torch.arange(1000.0))
    assert int(at[0]) == 0  # missing values have a vector of their own
    counts = torch.bincount(at[1:], minlength=11)
    assert int(counts[0]) == 0
    assert 80 <= int(counts[1:].min()) <= int(counts[1:].max()) <= 120
    assert torch.equal(module.row(1, torch.arange(5.0)), torch.arange(5))
    assert torch.equal(TabularInput(SCHEMA, 4).row(0, torch.arange(1000.0)), torch.arange(1000))


@pytest.mark.parametrize("most", [0, 11])
def test_stacked_tables_look_up_what_single_ones_do(most: int) -> None:
    modules = [TabularInput(SCHEMA, 4, rows=most) for _ in range(3)]
    x = rows()
    stacked = Replicas(modules)(x.expand(3, -1, -1))
    for got, module in zip(stacked, modules, strict=True):
        assert torch.equal(got, module(x))
        assert module.out_features == 9 == got.shape[1]


def test_width_and_rows_reach_the_bottoms() -> None:
    stack = with_category(small_stack([0, 1]))
    for settings, shape in (
        ({"embedding": 0}, (2, 4, 3)), ({}, (2, 4, 4)), ({"embedding": 6}, (2, 4, 6)),
        ({"embedding": 6, "embedding_rows": 3}, (2, 3, 6)),
    ):  # fmt: skip
        fed = federation(SplitNN(**SMALL, **settings), stack, [0, 1])  # type: ignore[arg-type]
        table = fed.active.modules["bottom"].params["0.tables.0.weight"]
        assert table.shape == shape


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_decay_of_tables_is_of_tables_alone(optimizer: str) -> None:
    """One step from the same weights on the same batch: only the tables differ, by lr l2 w."""
    stack = with_category(small_stack([0, 1]))
    states = []
    for l2 in (0.0, 0.5):
        algorithm = SplitNN(**SMALL, optimizer=optimizer, lr=0.1, embedding_l2=l2)
        fed = federation(algorithm, stack, [0, 1])
        before = fed.active.modules["bottom"].state()["0.tables.0.weight"]
        algorithm.step(fed, stack.rows("labelled")[:, :32])
        states.append(fed.active.modules["bottom"].state())
    for key, value in states[0].items():
        if key != "0.tables.0.weight":
            assert torch.equal(value, states[1][key])
    moved = states[0]["0.tables.0.weight"] - states[1]["0.tables.0.weight"]
    if optimizer == "sgd":
        assert torch.allclose(moved, 0.1 * 0.5 * before)
    assert bool((moved != 0).any())


def test_without_decay_of_tables_nothing_changes() -> None:
    stack = small_stack([0, 1])
    a, b = (trained(SplitNN(**SMALL, embedding_l2=w), stack, [0, 1]).state() for w in (0.0, 0.5))
    assert all(torch.equal(v, b["active"]["bottom"][k]) for k, v in a["active"]["bottom"].items())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SplitNN(embedding=-1), "splitnn.embedding must be an integer >= 0"),
        (lambda: SplitNN(embedding_rows=1), "splitnn.embedding_rows must be 0 or at least 2"),
        (lambda: SplitNN(embedding_l2=-1.0), "splitnn.embedding_l2"),
        (lambda: FedHSSL(embedding_rows=5), "fedhssl.embedding_rows must be 0: corrupted fields"),
    ],
)
def test_wrong_settings_are_refused(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()
