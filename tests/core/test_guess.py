"""Guesses and truths: shapes, types, and what may repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vflsec.core.guess import Guess, Truth
from vflsec.errors import ShapeError


def test_tensors_become_arrays_of_fixed_type() -> None:
    scores = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    guess = Guess("label", torch.tensor([3, 1, 2], dtype=torch.int32), scores)
    assert guess.rows.dtype == np.int64
    assert guess.scores.dtype == np.float64
    assert guess.rows.tolist() == [3, 1, 2]
    assert guess.scores.tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_an_answer_is_a_copy(kind: Callable[..., Any]) -> None:
    """An attack that fills one buffer for each replica in turn has not given all the last one."""
    rows, scores = kind([0, 1, 2]), kind([0.5, 1.5, 2.5])
    group, silent = kind([0, 0, 1]), kind([False, True, False])
    guess = Guess("label", rows, scores, group, silent)
    for array in (rows, scores, group):
        array += 7
    silent[:] = True
    assert guess.rows.tolist() == [0, 1, 2]
    assert guess.scores.tolist() == [0.5, 0.0, 2.5]
    assert guess.group is not None
    assert guess.group.tolist() == [0, 0, 1]
    assert guess.abstain is not None
    assert guess.abstain.tolist() == [False, True, False]


def test_lists_are_accepted_and_matrices_of_scores() -> None:
    guess = Guess("label", [1, 2], [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert guess.scores.shape == (2, 3)
    assert guess.scores.argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "scores"),
    [((3,), (2,)), ((3,), (2, 4)), ((3, 1), (3,)), ((3,), (3, 2, 1)), ((1,), ())],
)
def test_shapes_that_do_not_fit(rows: tuple[int, ...], scores: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"a Guess must have rows \(n,\)"):
        Guess("label", np.zeros(rows), np.zeros(scores))


def test_scores_of_rows_without_an_answer_are_not_read() -> None:
    mute = [False, True, True]
    for scores in ([1.0, np.nan, np.inf], [[1.0, 2.0], [np.nan] * 2, [np.inf] * 2]):
        guess = Guess("label", [0, 1, 2], scores, abstain=mute)
        assert (guess.scores[1:] == 0).all()
        assert (guess.scores[0] == np.asarray(scores)[0]).all()


@pytest.mark.parametrize("name", ["group", "abstain"])
def test_group_and_abstain_have_one_value_a_row(name: str) -> None:
    with pytest.raises(ShapeError, match=rf"Guess.{name} .*shape \(2,\), got \(3,\)"):
        Guess("label", np.arange(2), np.zeros(2), **{name: np.zeros(3)})


def test_group_and_abstain_types() -> None:
    guess = Guess(
        "label",
        np.arange(2),
        np.zeros(2),
        group=torch.tensor([7, 8]),
        abstain=[1, 0],
    )
    assert guess.group is not None
    assert guess.abstain is not None
    assert guess.group.dtype == np.int64
    assert guess.abstain.tolist() == [True, False]


def test_notes_are_not_shared() -> None:
    a, b = (Guess("label", np.arange(1), np.zeros(1)) for _ in range(2))
    a.notes["variant"] = "cosine"
    assert b.notes == {}


def test_truth_types_follow_the_target() -> None:
    labels = Truth("label", torch.tensor([5, 6]), torch.tensor([1, 0]))
    features = Truth("feature", torch.tensor([5, 6]), torch.tensor([[1.5], [2.0]]))
    assert labels.values.dtype == np.int64
    assert features.values.dtype == np.float64
    assert features.values.shape == (2, 1)


def test_truth_names_a_row_once() -> None:
    with pytest.raises(ShapeError, match="every row once"):
        Truth("label", np.array([5, 5]), np.array([1, 0]))


@pytest.mark.parametrize(("rows", "values"), [((2,), (3,)), ((2, 1), (2,))])
def test_truth_shapes(rows: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"rows \(n,\) and n values"):
        Truth("label", np.arange(2).reshape(rows), np.zeros(values))


@pytest.mark.parametrize("grouped", [False, True])
def test_rows_may_repeat_in_other_groups_alone(grouped: bool) -> None:
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        n = int(draw.integers(0, 6))
        rows, group = draw.integers(0, 6, n), draw.integers(0, 3, n) if grouped else None
        pairs = list(zip(rows.tolist(), [0] * n if group is None else group.tolist(), strict=True))
        try:
            Guess("label", rows, np.zeros(n), group)
        except ShapeError:
            refused += 1
            assert len(set(pairs)) < n
        else:
            assert len(set(pairs)) == n
    assert 50 < refused < 250
