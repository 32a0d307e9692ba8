"""The similarity attack: the label of the nearest known row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import made, make_view, measure, rng
from torch import nn

from vflsec.attacks import similarity as module
from vflsec.core.view import Known
from vflsec.errors import ThreatModelError

similarity = partial(made, "similarity")

VARIANTS = [f"{how}_{by}" for how in ("nearest", "centre", "seeded") for by in ("cosine", "euclid")]


def blobs(n: int, classes: int, apart: float) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % classes
    x = apart * nn.functional.one_hot(y, classes).double()
    return x + torch.randn(n, classes, generator=rng(), dtype=torch.float64), y


@pytest.mark.parametrize("variant", VARIANTS)
def test_separated_classes_need_one_known_row_each(variant: str) -> None:
    x, y = blobs(300, 5, 30.0)
    view = make_view(y, gradients=x, columns=x, known=5, test=50)
    for on in ("gradient", "embedding"):
        guess = similarity(on=on, variants=(variant,)).infer(view, rng())
        assert measure(guess, y, "accuracy") == 1.0


def test_the_variant_is_chosen_on_known_rows() -> None:
    """Length is noise here and direction is the class: a cosine must win."""
    y = torch.arange(400) % 2
    length = torch.rand(400, generator=rng(), dtype=torch.float64).sub(0.5).mul(8).exp()
    direction = torch.stack([torch.ones(400), 2.0 * y - 1 + 0.2], 1).double()
    x = direction * length.unsqueeze(1)
    view = make_view(y, gradients=x, known=20)
    guess = similarity(variants=("nearest_euclid", "nearest_cosine")).infer(view, rng())
    assert guess.notes["variant"] == "nearest_cosine"
    assert measure(guess, y) == 1.0


def test_permuted_class_names_permute_the_answer() -> None:
    x, y = blobs(200, 3, 2.0)
    view = make_view(y, gradients=x, known=12)
    known = view.require_known()
    order = torch.tensor([2, 0, 1])
    attack = similarity(variants=("centre_euclid",))
    plain = attack.infer(view, rng())
    turned = attack.infer(replace(view, known=Known(known.rows, order[known.labels])), rng())
    assert turned.scores[:, order] == pytest.approx(plain.scores)


def test_a_class_without_a_known_row_is_refused() -> None:
    x, y = blobs(60, 3, 3.0)
    with pytest.raises(ThreatModelError, match="every class"):
        similarity().infer(make_view(y, gradients=x, known=2), rng())


def test_many_rows_are_chosen_by_fewer_and_answered_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone variant has nothing to choose, so that its answer may not change at all."""
    x, y = blobs(400, 2, 2.0)
    view, seen = make_view(y, gradients=x, known=20), []
    real = module.k_means

    def counted(points: torch.Tensor, *rest: Any, **more: Any) -> Any:
        seen.append(len(points))
        return real(points, *rest, **more)

    monkeypatch.setattr(module, "k_means", counted)
    attack = similarity(variants=("seeded_euclid",))
    whole = attack.infer(view, rng())
    monkeypatch.setattr(module, "ENOUGH", 150)
    fewer = attack.infer(view, rng())
    assert sorted(set(seen)) == [134, 400]  # every third of 400
    assert seen.count(134) == 5
    assert seen[-1] == 400
    assert np.array_equal(fewer.scores, whole.scores)
    assert len(fewer.rows) == 380
