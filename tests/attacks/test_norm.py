"""The norm attack: a rare class has the longer gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from attack_views import binary_gradients, made, make_view, measure, rng, same

norm = partial(made, "norm")


def test_constructed_gradients_are_ranked_without_error() -> None:
    """900 negatives, 100 positives, p = 0.1 everywhere, rows (p - y) v."""
    y = (torch.arange(1000) < 100).long()
    v = torch.randn(8, generator=rng())
    view = make_view(y, gradients=(0.1 - y.float()).unsqueeze(1) * v)
    assert measure(norm().infer(view, rng()), y) == 1.0


def test_the_rare_class_is_known_from_the_prior_not_from_the_truth() -> None:
    """With 90 percent positives and p = 0.9 the negatives' gradients are the long ones."""
    y = (torch.arange(1000) >= 100).long()
    g = (0.9 - y.float()).unsqueeze(1) * torch.ones(1, 4)
    guess = norm().infer(make_view(y, gradients=g), rng())
    assert measure(guess, y) == 1.0
    assert guess.notes["rare_class"] == 0


@pytest.mark.parametrize(
    ("positive_rate", "auc", "within"), [(0.5, 0.496, 0.02), (0.25, 0.972, 0.02), (0.1, 1.0, 0.01)]
)
def test_it_depends_on_balance(positive_rate: float, auc: float, within: float) -> None:
    """Nothing on balanced classes, much on rare ones (20,000 rows)."""
    g, y = binary_gradients(20_000, 4, positive_rate)
    assert measure(norm().infer(make_view(y, gradients=g), rng()), y) == pytest.approx(
        auc, abs=within
    )


def test_one_epoch_is_compared_within_its_batch() -> None:
    g, y = binary_gradients(256, 4)
    guess = norm(accumulate=False).infer(make_view(y, gradients=g, batch=64), rng())
    assert guess.group is not None
    assert sorted(set(guess.group.tolist())) == [0, 1, 2, 3]


def test_it_needs_no_known_row_and_those_that_agree_with_theory_change_nothing() -> None:
    g, y = binary_gradients(300)
    assert same(
        norm().infer(make_view(y, gradients=g), rng()),
        norm().infer(make_view(y, gradients=g, known=40), rng()),
    )
    assert norm().needs == {"gradient:mean", "prior"}
    assert norm(accumulate=False, epoch="last").needs == {"gradient:last", "prior"}


@pytest.mark.parametrize("accumulate", [True, False])
def test_a_leak_in_reverse_is_found_with_known_rows_and_mirrored_without(accumulate: bool) -> None:
    """The common class has the longer gradient, as with swapped soft labels."""
    y = (torch.rand(640, generator=rng()) < 0.3).long()
    batch_scale = torch.rand(10, generator=rng(1)).repeat_interleave(64) + 0.1
    g = ((1.5 - y) * batch_scale).unsqueeze(1) * torch.ones(1, 4)
    if accumulate:
        g = (1.5 - y.float()).unsqueeze(1) * torch.ones(1, 4)
    attack = norm(accumulate=accumulate)
    rest = make_view(y, gradients=g, known=20).targets["train"]
    without = attack.infer(make_view(y, gradients=g), rng())
    assert measure(without, y, rows=rest) == 0.0
    assert without.notes["as_theory"] is True
    for known in (2, 4, 20):
        view = make_view(y, gradients=g, known=known)
        guess = attack.infer(view, rng())
        assert measure(guess, y, rows=view.targets["train"]) == 1.0
        assert guess.notes["as_theory"] is False
