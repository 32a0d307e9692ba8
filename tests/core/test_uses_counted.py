"""Counts of uses by hand: rows, replicas, phases, Poisson batches, what stopped, what went past."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vflsec.core.privacy_usage import (
    Batches,
    Counter,
    Guarded,
    Uses,
    lend_labels,
    mask_silent,
    unguard,
)  # fmt: skip


def told_numbers(uses: Uses) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", uses.sentence("messages"))]


def test_a_sentence_has_the_counts_that_are_not_zero() -> None:
    assert told_numbers(Uses(7, phases={"train": 4, "idle": 0, "predict": 3})) == [7, 4, 3]
    assert told_numbers(Uses(7, 2, {"train": 7})) == [7, 7, 2]
    assert told_numbers(Uses(5, phases={"idle": 0})) == [5]
    assert Uses(5).sentence("x").count("(") == 0
    assert Uses(7, 2).most == 9


@given(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=6), min_size=1, max_size=8))
def test_uses_are_those_of_a_loop_over_rows(batches: list[list[int]]) -> None:
    """Of three replicas the second has stopped, and in the third single rows are left out."""
    counter = Counter(3, 5)
    counter.phase = "train"
    counter.alive = torch.tensor([True, False, True])
    slow = [[0] * 5 for _ in range(3)]
    for k, rows in enumerate(batches):
        on = torch.ones(3, len(rows), dtype=torch.bool)
        on[2, 0] = False
        counter.add(torch.tensor([rows] * 3), "" if k % 2 else "first", on)
        for i, row in enumerate(rows):
            slow[0][row] += 1
            slow[2][row] += i > 0
    counter.mark(torch.tensor([[False] * 5, [True] * 5, [True, *[False] * 4]]), "seen")
    slow[1] = [1] * 5
    slow[2][0] += 1
    assert counter.total().tolist() == slow
    found = [counter.uses(r) for r in range(3)]
    assert [u.counted for u in found] == [max(row) for row in slow]
    assert [u.phases["seen"] for u in found] == [0, 1, 1]
    odd, even = len(batches) // 2, (len(batches) + 1) // 2
    assert (counter.calls.get("train", 0), counter.calls["first"]) == (odd, even)
    assert all((u.whole, u.batches, u.past, u.stopped) == (0, (), (), 0) for u in found)


def test_no_rows_are_no_uses() -> None:
    assert Counter(2, 0).uses(0) == Uses()


def test_what_takes_time_is_due_at_powers_of_two() -> None:
    counter, due = Counter(1, 2), []
    for _ in range(10):
        due.append(counter.due)
        counter.add(torch.tensor([[0]]), counter.phase)
    assert [i for i, d in enumerate(due) if d] == [1, 2, 4, 8]


def test_uses_in_poisson_batches_count_apart() -> None:
    """Rate 1/4: four batches of two calls in epoch 0, one of three in epoch 1; two uses outside."""
    counter = Counter(2, 3, poisson=True)
    counter.phase, counter.planned = "train", {"train": 5}
    rows = torch.tensor([[0, 1], [2, 2]])
    counter.add(rows)
    for epoch, calls in ((0, 1), (0, 2), (0, 1), (0, 2), (1, 3)):
        counter.sampled("train", epoch, 0.25, 1e-9)
        for _ in range(calls):
            counter.add(rows)
    counter.drawn_all()
    counter.add(rows[:, :1])
    counter.sampled("later", 0, 0.5, 0.0)
    found = counter.uses(0)
    assert found.batches == (Batches("train", 0.25, 20, 3, 1e-9), Batches("later", 0.5, 1, 0, 0.0))
    assert (found.whole, found.counted) == (2, 11)
    assert (counter.uses(1).whole, counter.uses(1).counted) == (3, 21)
    plain = Counter(2, 3)
    plain.add(rows, "train")
    assert plain.uses(0).whole == 0


@pytest.mark.parametrize(
    ("ran", "planned", "stopped"),
    [
        ((3, 3), 3, (0, 0)),
        ((3, 2), 3, (0, 3)),  # 5 uses in 2 epochs are 3 an epoch
        ((1, 4), 6, (25, 4)),
        ((5, 9), 4, (0, 0)),  # more than planned leaves nothing out
        ((0, 2), 2, (10, 0)),  # stopped before its first epoch ended
    ],
)
def test_what_stopped_early_counts_at_its_pace(
    ran: tuple[int, int], planned: int, stopped: tuple[int, int]
) -> None:
    for poisson in (False, True):
        counter = Counter(2, 4, poisson=poisson)
        counter.phase = "train"
        for _ in range(5):
            counter.add(torch.tensor([[1, 2], [3, 0]]))
        counter.stop("train", torch.tensor(ran), planned)
        found = [counter.uses(r) for r in (0, 1)]
        assert [u.stopped for u in found] == list(stopped)
        assert [u.whole for u in found] == [(5 + s) * poisson for s in stopped]


def test_what_stopped_without_a_use_counts_once_an_epoch_where_another_phase_used() -> None:
    counter = Counter(2, 4, poisson=True)
    counter.add(torch.tensor([[1], [1]]), "train")
    counter.stop("later", torch.tensor([1, 3]), 3)
    assert [counter.uses(r).stopped for r in (0, 1)] == [2, 0]
    assert [counter.uses(r).whole for r in (0, 1)] == [1, 1]
    idle = Counter(1, 4)
    idle.stop("later", torch.tensor([1]), 3)
    assert idle.uses(0) == Uses()


def test_what_went_past_is_of_the_replicas_in_which_it_did() -> None:
    counter = Counter(3, 4)
    counter.passed("a", [False, True, False])
    counter.passed("a", [False, False, True])
    counter.passed("b", [False] * 3)
    counter.passed("c")
    assert [counter.uses(r).past for r in range(3)] == [("c",), ("a", "c"), ("a", "c")]
    assert counter.past == ["a", "c"]


def rows_of(*values: float, width: int = 3) -> Tensor:
    return torch.tensor(values).reshape(1, -1, 1).expand(1, len(values), width).clone()


BEFORE = rows_of(1, 2, 3)
LEFT: dict[str, tuple[Tensor, Tensor, bool]] = {
    "all changed": (BEFORE, BEFORE + 1, False),
    "one row left": (BEFORE, torch.cat([BEFORE[:, :1], BEFORE[:, 1:] + 1], 1), True),
    "one number of each row left": (BEFORE, BEFORE + torch.tensor([0.0, 1.0, 1.0]), False),
    "a row of zeros left": (0 * BEFORE, 0 * BEFORE, False),
    "a row with one number": (
        BEFORE * torch.tensor([1, 0, 0]),
        BEFORE * torch.tensor([1, 0, 0]),
        True,
    ),
    "single numbers, one left": (rows_of(1, 2, width=1), rows_of(1, 3, width=1), False),
    "single numbers, all left": (rows_of(1, 2, width=1), rows_of(1, 2, width=1), True),
    "labels, one left": (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]]), False),
    "labels, all left": (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]]), True),
    "one label, left": (torch.tensor([[1.0]]), torch.tensor([[1.0]]), False),
    "two numbers of one row, left": (rows_of(1, width=2), rows_of(1, width=2), True),
}


@pytest.mark.parametrize("name", LEFT)
def test_rows_that_come_back_as_they_were_are_seen(name: str) -> None:
    """In a replica that trains, and where the policy is on; at any call."""
    before, after, left = LEFT[name]
    changed = (after + 1).expand(4, *after.shape[1:])
    both = before.expand(4, *before.shape[1:])
    mixed = torch.cat([after, after, after, after + 1])
    counter = Counter(4, 9)
    counter.alive = torch.tensor([True, False, True, True])
    on = torch.tensor([True, True, False, True])
    counter.untouched("columns", both, changed, on)
    counter.untouched("columns", both, mixed, on)
    counter.untouched("columns", both, changed, torch.zeros(4, dtype=torch.bool))
    assert [len(counter.uses(r).past) for r in range(4)] == [int(left), 0, 0, 0]


def guarded(counter: Any = None) -> Guarded:
    y = torch.tensor([[1, 0, 2]])
    silent = torch.tensor([[False, True, False]])
    return Guarded.over(y, torch.tensor([[5, 6, 7]]), (counter,) if counter else (), silent)


QUIET: list[Callable[[Any], object]] = [
    lambda y: y.shape, lambda y: y.dim(), lambda y: len(y), lambda y: y.dtype, lambda y: y.size(0),
    lambda y: y.numel(), lambda y: y.is_floating_point(), lambda y: y.device, unguard,
]  # fmt: skip
TOLD: list[Callable[[Any], object]] = [
    lambda y: y + 1, lambda y: y.sum(), lambda y: torch.cat([y, y]), lambda y: y[0],
    lambda y: torch.stack([torch.zeros(1, 3).long(), y]),
    lambda y: torch.add(torch.ones(1), other=y),
    lambda y: torch.einsum("ab,ab->a", (y, y)),
]  # fmt: skip


@pytest.mark.parametrize("ask", [*QUIET, *TOLD])
def test_a_shape_may_be_asked_for_and_a_value_is_told(ask: Callable[[Any], object]) -> None:
    counter = Counter(1, 9)
    found = ask(guarded(counter))
    assert len(counter.past) == (ask in TOLD)
    assert not isinstance(found, Guarded)


def test_lent_labels_tell_of_the_replicas_of_the_policy() -> None:
    first, second = Counter(2, 9), Counter(2, 9)
    y, rows = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[5, 6], [5, 6]])
    on = [False, True]
    assert lend_labels(None, rows, on, [first]) is None
    assert lend_labels(y, rows, on) is y
    mine = Guarded.over(y, rows, (first,), torch.tensor([[True, False]] * 2))
    assert lend_labels(mine, None, on, [second]) is mine
    for lent, counters in (
        (lend_labels(y, rows, on, [second]), (second,)),
        (lend_labels(mine, rows, on), (first,)),
    ):
        assert isinstance(lent, Guarded)
        lent.sum()
        for counter in counters:
            assert [len(counter.uses(r).past) for r in (0, 1)] == [0, 1]
    assert torch.equal(unguard(mine), y)
    both = lend_labels(mine, rows, on, [second])
    assert isinstance(both, Guarded)
    assert [c.counter for c in both.counters] == [first, second]
    assert both.silent is mine.silent
    plain = lend_labels(y, rows, on, [second])
    assert isinstance(plain, Guarded)
    assert plain.silent is None


def test_silent_rows_add_nothing_to_a_loss() -> None:
    losses = torch.tensor([[1.0, 2.0, 3.0]])
    assert mask_silent(losses, guarded()).tolist() == [[1.0, 0.0, 3.0]]
    assert mask_silent(losses, torch.tensor([[1, 0, 2]])) is losses
    loud = Guarded.over(torch.tensor([[1]]), torch.tensor([[1]]), ())
    assert mask_silent(losses, loud) is losses
