"""A message says who sends what to whom, and refuses what makes no sense."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest
import torch

from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, Kind, find_kinds
from vflsec.errors import ShapeError, VflsecError


def test_the_kinds() -> None:
    assert get_args(Kind) == (*KINDS,)


def test_what_follows_from_a_kind() -> None:
    assert find_kinds(lambda kind: kind.has_every_row) == ("embedding", "gradient", "partition")
    assert find_kinds(lambda kind: kind.comes_again) == ("embedding", "gradient", "state")
    trees = ("gradient_pair", "partition")
    of_rows = ("own_pair", "derivative", "score", "woe_value", "match", "match_count")
    wide = ("embedding", "gradient", "prediction", *trees, *of_rows)
    assert find_kinds(lambda kind: kind.has_one_width) == wide
    rows = ("embedding", "gradient", "state", "prediction", *trees, *of_rows)
    assert find_kinds(lambda kind: kind.has_rows) == rows
    hidden = ("ids", "signal", "ciphertext", "masked", "masked_sum")
    assert find_kinds(lambda kind: not kind.is_readable) == hidden
    assert find_kinds(lambda kind: kind.is_encrypted) == ("ciphertext",)
    for kind in KINDS.values():
        assert all(source in KINDS for source in kind.made_of)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_sent(kind: str) -> None:
    message = Message(kind, "a", "b", torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))  # type: ignore[arg-type]
    assert (message.kind, message.phase, message.epoch, message.step) == (kind, "train", 0, 0)
    assert message.policies == ()


def test_unknown_kind() -> None:
    with pytest.raises(ShapeError, match=r"'embedding', .*, got 'secrets'"):
        Message("secrets", "a", "b", torch.zeros(1, 1))  # type: ignore[arg-type]


def test_a_message_to_oneself_is_none() -> None:
    with pytest.raises(ShapeError, match="'a' sends a message to itself"):
        Message("embedding", "a", "a", torch.zeros(1, 1))


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 4), (2, 3, 1), (1, 3)])
def test_rows_belong_to_the_payload(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"both start with \(replicas, batch\)"):
        Message("gradient", "a", "b", torch.zeros(2, 3, 4), torch.zeros(shape, dtype=torch.int64))


def test_rows_may_be_absent() -> None:
    assert Message("state", "a", "b", torch.zeros(2, 7)).rows is None


def test_errors_are_the_users_and_value_errors() -> None:
    assert issubclass(ShapeError, VflsecError)
    assert issubclass(ShapeError, ValueError)


def test_with_tensor_stamps_and_keeps_the_rest() -> None:
    rows = torch.tensor([[4, 5]])
    first = Message("gradient", "a", "b", torch.ones(1, 2, 3), rows, "tune", 3, 9, "cross")
    second = first.with_tensor(torch.zeros(1, 2, 3), "noise").with_tensor(
        torch.full((1, 2, 3), 2.0), "clip"
    )
    assert second.policies == ("noise", "clip")
    assert first.policies == ()
    assert first.tensor.sum() == 6
    assert second.tensor.sum() == 12
    assert second.rows is rows
    assert (second.phase, second.epoch, second.step, second.name) == ("tune", 3, 9, "cross")


def test_with_tensor_checks_the_new_payload() -> None:
    message = Message("gradient", "a", "b", torch.ones(1, 2, 3), torch.tensor([[4, 5]]))
    with pytest.raises(ShapeError, match="rows and payload must"):
        message.with_tensor(torch.ones(1, 3, 3), "bad")


def test_a_message_is_a_value() -> None:
    message = Message("signal", "a", "b", torch.ones(1))
    with pytest.raises(FrozenInstanceError):
        message.kind = "ids"  # type: ignore[misc]
