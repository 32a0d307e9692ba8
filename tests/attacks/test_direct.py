"""Direct label inference: the smallest entry of a gradient of summed logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attack_views import iso, make_view, measure, rng

from vflsec import registry
from vflsec.attack import Attack
from vflsec.view import Facts


def direct(**params: object) -> Attack:
    return registry.attacks.create("direct", params)


def logit_gradients(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(p - one-hot y) of normal logits in float64: (n, C), (n,)."""
    y = torch.randint(classes, (n,), generator=rng(seed))
    y[:classes] = torch.arange(classes)
    p = torch.randn(n, classes, generator=rng(seed + 1), dtype=torch.float64).softmax(1)
    return p - torch.nn.functional.one_hot(y, classes), y


@pytest.mark.parametrize("classes", [2, 5, 10, 100])
def test_it_is_exact_on_any_number_of_classes(classes: int) -> None:
    """T1: 4096 random rows; each row sums to zero."""
    g, y = logit_gradients(4096, classes)
    assert float(g.sum(1).abs().max()) < 1e-7
    assert measure(direct().infer(make_view(y, gradients=g), rng()), y, "accuracy") == 1.0


def test_permuted_classes_permute_the_answer_and_a_factor_changes_nothing() -> None:
    g, y = logit_gradients(500, 5)
    order = torch.tensor([3, 1, 4, 0, 2])
    plain = direct().infer(make_view(y, gradients=g), rng()).scores.argmax(1)
    turned = direct().infer(make_view(y, gradients=g[:, order]), rng()).scores.argmax(1)
    scaled = direct().infer(make_view(y, gradients=g / 128), rng()).scores.argmax(1)
    assert (order[turned].numpy() == plain).all()
    assert (scaled == plain).all()


def test_a_saturated_row_is_still_read_and_an_empty_one_is_declined() -> None:
    """T2: in float32 a margin of 30 rounds the true entry to 0; the smallest entry survives."""
    logits = torch.tensor([[30.0, 0.0, 1.0], [0.0, 30.0, 1.0], [0.0, 0.0, 200.0]])
    y = torch.tensor([0, 1, 2])
    g = logits.softmax(1) - torch.nn.functional.one_hot(y, 3)
    assert (g[:2] >= 0).any()
    guess = direct().infer(make_view(y, gradients=g), rng())
    assert guess.scores[:2].argmax(1).tolist() == [0, 1]
    assert guess.abstain is not None
    assert guess.abstain.tolist() == [False, False, True]


def test_through_an_unknown_linear_top_it_is_at_chance() -> None:
    """T3: g W of a random square W hides the label from the smallest entry."""
    g, y = logit_gradients(4096, 10)
    w = torch.randn(10, 10, generator=rng(3), dtype=torch.float64)
    seen = measure(direct().infer(make_view(y, gradients=g @ w), rng()), y, "accuracy")
    known = g @ w @ torch.linalg.pinv(w)
    assert seen < 0.2
    assert measure(direct().infer(make_view(y, gradients=known), rng()), y, "accuracy") == 1.0


@pytest.mark.parametrize(
    ("strength", "expected"), [(0.1, 1.0), (0.4, 0.999), (1.0, 0.791), (5.0, 0.199), (25.0, 0.121)]
)
def test_under_isotropic_noise(strength: float, expected: float) -> None:
    """Ten classes, 4096 rows, one exchange."""
    g, y = logit_gradients(4096, 10)
    view = make_view(y, gradients=iso(g.float(), strength))
    assert measure(direct().infer(view, rng()), y, "accuracy") == pytest.approx(expected, abs=0.04)


def test_accumulating_averages_noise_out() -> None:
    g, y = logit_gradients(1000, 10)
    view = make_view(y, gradients=[iso(g.float(), 3.0, s) for s in range(25)], batch=1000)
    once = measure(direct(accumulate=False).infer(view, rng()), y, "accuracy")
    often = measure(direct().infer(view, rng()), y, "accuracy")
    assert once < 0.4
    assert often > 0.9


def test_labels_unrelated_to_the_gradients_stay_at_chance() -> None:
    g, _ = logit_gradients(2000, 10)
    y = torch.randint(10, (2000,), generator=rng(9))
    accuracy = measure(direct().infer(make_view(y, gradients=g), rng()), y, "accuracy")
    assert 0.1 - 4 * (0.09 / 2000) ** 0.5 < accuracy < 0.1 + 4 * (0.09 / 2000) ** 0.5


def test_behind_a_top_model_it_does_not_apply_and_says_what_would() -> None:
    facts = Facts("splitnn", "train", "a", ("a", "b"), 3, aggregation="sum", top=False)
    assert direct().applicable(facts) == ""
    assert "trainable top" in direct().applicable(replace(facts, top=True))
    assert "trainable top" in direct().applicable(replace(facts, aggregation="concat"))
