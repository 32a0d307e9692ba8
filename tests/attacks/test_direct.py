"""Direct label inference: the smallest entry of a gradient of summed logits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from attack_views import iso, made, make_view, measure, rng
from cohorts import cohort
from sampled import sampled

from vflsec.core.view import Facts, Known
from vflsec.data.prepare import make_task
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec

direct = partial(made, "direct")


def logit_gradients(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(p - one-hot y) of normal logits in float64: (n, C), (n,)."""
    y = torch.randint(classes, (n,), generator=rng(seed))
    y[:classes] = torch.arange(classes)
    p = torch.randn(n, classes, generator=rng(seed + 1), dtype=torch.float64).softmax(1)
    return p - torch.nn.functional.one_hot(y, classes), y


@pytest.mark.parametrize("classes", [2, 5, 10, 100])
def test_it_is_exact_on_any_number_of_classes(classes: int) -> None:
    """4096 random rows; each row sums to zero."""
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
    """In float32 a margin of 30 rounds the true entry to 0; the smallest entry survives."""
    logits = torch.tensor([[30.0, 0.0, 1.0], [0.0, 30.0, 1.0], [0.0, 0.0, 200.0]])
    y = torch.tensor([0, 1, 2])
    g = logits.softmax(1) - torch.nn.functional.one_hot(y, 3)
    assert (g[:2] >= 0).any()
    guess = direct().infer(make_view(y, gradients=g), rng())
    assert guess.scores[:2].argmax(1).tolist() == [0, 1]
    assert guess.abstain is not None
    assert guess.abstain.tolist() == [False, False, True]


def test_through_an_unknown_linear_top_it_is_at_chance() -> None:
    """Gradients g times W of a random square W hides the label from the smallest entry."""
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
    assert "summed logits" in direct().applicable(replace(facts, top=True))
    assert "summed logits" in direct().applicable(replace(facts, aggregation="concat"))


def test_swapped_labels_are_read_where_a_row_is_known_and_mirrored_where_none_is() -> None:
    """Two classes renamed into each other: a perfect leak in reverse."""
    g, y = logit_gradients(500, 2)
    swapped = g.flip(1)
    assert measure(direct().infer(make_view(y, gradients=swapped), rng()), y) == 0.0
    for known in (1, 2, 20):
        guess = direct().infer(make_view(y, gradients=swapped, known=known), rng())
        assert measure(guess, y) == 1.0
        assert guess.notes["reading"] == "largest entry"
        plain = direct().infer(make_view(y, gradients=g, known=known), rng())
        assert measure(plain, y) == 1.0
        assert plain.notes["reading"] == "smallest entry"


def test_the_least_likely_class_and_renamed_classes_are_read_from_known_rows() -> None:
    """Five classes: soft labels that shun the true class, and class names turned by one."""
    g, y = logit_gradients(600, 5)
    shunned = -g
    guess = direct().infer(make_view(y, gradients=shunned, known=10), rng())
    assert measure(guess, y, "accuracy") == 1.0
    assert guess.notes["reading"] == "largest entry"
    turned = g[:, [1, 2, 3, 4, 0]]
    guess = direct().infer(make_view(y, gradients=turned, known=10), rng())
    assert measure(guess, y, "accuracy") == 1.0
    assert guess.notes["reading"] == "smallest entry, classes renamed"
    alone = direct().infer(make_view(y, gradients=turned, known=2), rng())
    assert measure(alone, y, "accuracy") < 0.5  # two rows of five classes show no permutation


def test_known_rows_do_not_make_a_reading_out_of_noise() -> None:
    y = torch.randint(5, (2000,), generator=rng(9))
    g = torch.randn(2000, 5, generator=rng(4), dtype=torch.float64)
    accuracies = [
        measure(direct().infer(make_view(y.roll(k), gradients=g, known=20), rng()), y.roll(k),
                "accuracy")
        for k in range(10)
    ]  # fmt: skip
    assert abs(sum(accuracies) / 10 - 0.2) < 4 * (0.16 / 2000 / 10) ** 0.5


def test_the_known_rows_own_labels_are_all_that_turns_the_answer() -> None:
    g, y = logit_gradients(300, 3)
    view = make_view(y, gradients=g, known=9)
    held = view.require_known()
    order = torch.tensor([1, 2, 0])
    turned = replace(view, known=Known(held.rows, order[held.labels]))
    plain, other = direct().infer(view, rng()), direct().infer(turned, rng())
    assert (order.numpy()[plain.scores.argmax(1)] == other.scores.argmax(1)).all()


@pytest.mark.parametrize("attack", sampled(["direct", "batch_inference"]))
def test_confusing_soft_labels_of_a_trained_system_are_read_with_known_rows_only(
    attack: str,
) -> None:
    """CoAE at 0.1 without a top model: AUC 0 for who goes by theory, 1 with 20 known rows."""
    source = registry.datasets.create("control_gaussian", {"rows": 400})
    seeds = (0, 1)
    tasks = {s: make_task(source.load(s), s) for s in seeds}
    summed = {"cut": 2, "top": (), "linear_top": False, "aggregation": "sum"}
    coae = [DefenseSpec("coae", strength=0.1)]
    passive = (tasks[0].passive[0],)
    attacks = [AttackSpec(attack, {}, passive, known_rows=k) for k in (0, 20)]
    for result in cohort(attacks, tasks, coae, epochs=4, patience=0, **summed):
        auc = [m.value if m.value is not None else -1 for m in result.measures if m.metric == "auc"]
        assert -1 < auc[0] < 0.02
        assert auc[1] > 0.98
