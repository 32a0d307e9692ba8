"""What can be reached from a view, and that each way out is found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from attack_views import PARTY, make_view
from torch import Tensor

from vflsec.core.view import Update, View
from vflsec.testing import small_task
from vflsec.testing.reach import find_foreign

BOTH = torch.randn(2, 6, 3)


def with_columns(x: Tensor) -> View:
    return replace(make_view(torch.arange(6) % 2), columns=MappingProxyType({PARTY: x}))


def with_encoder(f: Callable[[Tensor], Tensor]) -> View:
    return replace(make_view(torch.arange(6) % 2), encoders=MappingProxyType({PARTY: f}))


def test_a_view_of_copies_is_closed() -> None:
    assert find_foreign(with_columns(BOTH[0].clone())) == []


def _closure(held: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x + len(held.parties)


class Method:
    def __init__(self, held: Any) -> None:
        self.held = held

    def embed(self, x: Tensor) -> Tensor:
        return x


def _second(held: Any, x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (with_columns(BOTH[0]), "144 bytes behind 72"),
        (with_columns(torch.ones(6, 3, requires_grad=True) * 2), "gradient graph"),
        (with_encoder(_closure(small_task())), "vflsec.core.task.Task"),
        (with_encoder(Method(small_task()).embed), "vflsec.core.task.Task"),
        (with_encoder(functools.partial(_second, small_task())), "vflsec.core.task.Task"),
        (
            replace(
                make_view(torch.arange(6) % 2),
                updates=MappingProxyType(
                    {PARTY: [Update(0, 0, torch.arange(3), {"w": BOTH[1]}, {})]}
                ),
            ),
            "gradients['w']: 144 bytes",
        ),
    ],
)  # fmt: skip
def test_each_way_out_is_named(view: View, why: str) -> None:
    assert any(why in line for line in find_foreign(view)), find_foreign(view)
