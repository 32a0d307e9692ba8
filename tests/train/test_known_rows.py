"""Which labelled rows an attacker is granted."""

from dataclasses import replace

import pytest
import torch

from vflsec.testing import small_task
from vflsec.train.views import draw_known_rows


@pytest.mark.parametrize(("rare", "granted"), [(1, 1), (2, 1), (5, 3), (30, 10)])
def test_half_of_a_rare_class_is_left_to_guess(rare: int, granted: int) -> None:
    """Twenty known rows took all positives of a table with few, and nothing had a figure."""
    task = small_task(0)
    train = task.sets["labelled"]
    y = torch.zeros_like(task.y)
    y[train[:rare]] = 1
    known = draw_known_rows(replace(task, y=y), 0, 20)
    assert (len(known), int(known.labels.sum())) == (20, granted)
    assert torch.equal(known.labels, y[known.rows])
    fewer = draw_known_rows(replace(task, y=y), 0, 6)
    assert torch.equal(fewer.rows, known.rows[:6])
    every = draw_known_rows(replace(task, y=y), 0, len(train))
    assert torch.equal(every.rows.sort().values, train.sort().values)
