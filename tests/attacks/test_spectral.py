"""The spectral attack: the first principal direction of embeddings or gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from attack_views import made, make_view, measure, rng

from vflsec.core.view import Known
from vflsec.inference.score_orientation import find_orientation

spectral = partial(made, "spectral")


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("score", ["signed", "squared"])
def test_a_rank_one_table_is_read_without_error(sign: float, score: str) -> None:
    """E = y v + c with rare positives; the sign of v must not matter."""
    y = (torch.rand(500, generator=rng()) < 0.2).long()
    v = sign * torch.randn(6, generator=rng(1), dtype=torch.float64)
    view = make_view(y, columns=y.unsqueeze(1) * v + 3.0, test=100)
    guess = spectral(score=score, orient="size").infer(view, rng())
    assert measure(guess, y) == 1.0
    assert guess.notes["share_of_variance"] == 1.0
    assert measure(guess, y, rows=view.targets["test"]) == 1.0


def test_rare_negatives_are_recognised_by_the_prior() -> None:
    y = (torch.rand(500, generator=rng()) < 0.8).long()
    view = make_view(y, columns=y.double().unsqueeze(1) * torch.ones(1, 3))
    assert measure(spectral(orient="size").infer(view, rng()), y) == 1.0
    assert measure(spectral(score="squared", orient="size").infer(view, rng()), y) == 1.0


def test_known_rows_fix_the_sign_where_sizes_cannot() -> None:
    y = (torch.rand(401, generator=rng()) < 0.7).long()
    columns = y.double().unsqueeze(1) * torch.ones(1, 3)
    columns = columns + 0.1 * torch.randn(401, 3, generator=rng(1), dtype=torch.float64)
    view = make_view(1 - y, columns=columns, known=4)
    assert measure(spectral(orient="known").infer(view, rng()), 1 - y) > 0.99


def test_needs_and_splits_follow_what_is_observed() -> None:
    assert spectral(orient="size").needs == {"model", "prior"}
    assert spectral().splits == ("train", "test")
    on_gradients = spectral(on="gradient", orient="known", accumulate=False)
    assert on_gradients.needs == {"gradient:first", "known_rows"}
    assert on_gradients.splits == ("train",)


@pytest.mark.parametrize("orient", ["known", "size"])
@pytest.mark.parametrize("score", ["signed", "squared"])
def test_a_leak_in_reverse_is_found_with_known_rows(score: str, orient: str) -> None:
    """The rare class lies at the centre, the common one far off: both rules name the wrong end."""
    y = (torch.rand(800, generator=rng()) < 0.85).long()
    far = 3.0 + 0.5 * torch.randn(800, generator=rng(1), dtype=torch.float64)
    if score == "squared":
        side = torch.where(torch.arange(800) % 2 == 0, 1.0, -1.0)
        near = 0.3 * torch.randn(800, generator=rng(2), dtype=torch.float64)
        a = torch.where(y == 1, far * side, near)
    else:  # a few of the common class far off, so that the smaller cluster is the common class
        a = torch.where((y == 1) & (torch.arange(800) % 8 == 0), 10 * far, -far + 2.0 * y)
    view = make_view(y, columns=a.unsqueeze(1), known=20)
    rows = view.targets["train"]
    attack = spectral(score=score, orient=orient)
    auc = measure(attack.infer(view, rng()), y, rows=rows)
    assert auc > (0.99 if score == "squared" else 0.9)
    if orient == "size":
        blind = attack.infer(replace(view, known=None), rng())
        assert measure(blind, y, rows=rows) == pytest.approx(1 - auc, abs=1e-12)


def test_squares_by_known_rows_on_mostly_positive_labels() -> None:
    """85 percent positives far from the centre: an outlier is a positive, and no prior is asked."""
    y = (torch.rand(800, generator=rng()) < 0.85).long()
    a = torch.where(y == 1, torch.randn(800, generator=rng(1)).sign() * 2.0, torch.tensor(0.0))
    view = make_view(y, columns=a.double().unsqueeze(1), known=20)
    attack = spectral(score="squared", orient="known")
    assert attack.needs == {"model", "known_rows"}
    turned = (1 - y, make_view(1 - y, columns=a.double().unsqueeze(1), known=20))
    for truth, one in ((y, view), turned):
        guess = attack.infer(replace(one, prior=None), rng())
        assert measure(guess, truth, rows=one.targets["train"]) == 1.0


def test_orientation_weighs_known_rows_against_theory() -> None:
    rows = torch.arange(100)
    score = torch.arange(100.0)
    up = Known(torch.tensor([90, 10]), torch.tensor([1, 0]))
    down = Known(torch.tensor([10, 90]), torch.tensor([1, 0]))
    assert find_orientation(score, rows, None, 1.0) == 1.0
    assert find_orientation(score, rows, up, 1.0) == 1.0
    assert (
        find_orientation(score, rows, down, 1.0) == -1.0
    )  # a single pair stands the wrong way round
    mixed = Known(torch.tensor([50, 60, 40, 45, 62, 52]), torch.tensor([1, 0, 1, 0, 1, 0]))
    assert find_orientation(score, rows, mixed, 0.0) == -1.0  # 4 of 9 pairs the right way round
    assert find_orientation(score, rows, mixed, 1.0) == 1.0
    alone = Known(torch.tensor([5]), torch.tensor([1]))
    assert find_orientation(score, rows, alone, 1.0) == -1.0
    assert find_orientation(score, rows, Known(torch.tensor([500]), torch.tensor([1])), 1.0) == 1.0
