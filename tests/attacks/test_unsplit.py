"""UnSplit's label part: a clone of the one linear layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attack_views import iso, make_view, measure, null_band, rng, tables
from sampled import sampled
from torch import nn

from vflsec.attacks.unsplit import Unsplit, label_distances, replayed
from vflsec.plugins import registry


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_with_the_true_layer_it_is_exact(classes: int) -> None:
    """Closed form: the nearest of all labels' gradients is the true one's."""
    z = torch.randn(200, 8, generator=rng(), dtype=torch.float64)
    w = torch.randn(classes, 8, generator=rng(1), dtype=torch.float64)
    b = torch.randn(classes, generator=rng(2), dtype=torch.float64)
    y = torch.arange(200) % classes
    leaf = z.clone().requires_grad_()
    loss = nn.functional.cross_entropy(leaf @ w.T + b, y, reduction="sum")
    (g,) = torch.autograd.grad(loss, leaf)
    assert replayed((w, b), z, nn.functional.one_hot(y, classes).double()) == pytest.approx(g)
    scores = label_distances((w, b), z, g)
    assert torch.equal(scores.argmax(1), y)
    assert float(scores.amax(1).abs().max()) < 1e-20


@pytest.mark.parametrize("classes", [2, 4])
def test_a_clone_fitted_to_known_rows_is_enough(classes: int) -> None:
    y = torch.arange(300) % classes
    z = torch.randn(300, 8, generator=rng())
    peers = torch.randn(300, classes, generator=rng(3))
    w = torch.randn(classes, 8, generator=rng(1))
    p = torch.softmax(z @ w.T + peers, 1)
    g = (p - nn.functional.one_hot(y, classes)) @ w
    view = make_view(y, gradients=g, known=5 * classes, extra=tables([z], "embedding", "sent"))
    guess = registry.attacks.create("unsplit", {}).infer(view, rng())
    assert measure(guess, y, "accuracy") > 0.97
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())


@pytest.mark.parametrize("factor", sampled([1e-12, 1e6, 1e-9, 1e-6, 1e-3, 1e3], 2))
def test_an_unknown_factor_hides_no_label(factor: float) -> None:
    """Taken as 1 it left an AUC of 0.83 at 1e-9, 0.99 at 1e-6 and 0.00 at 1e-3."""
    y = torch.arange(300) % 4
    z = torch.randn(300, 8, generator=rng())
    w = torch.randn(4, 8, generator=rng(1))
    p = torch.softmax(z @ w.T + torch.randn(300, 4, generator=rng(3)), 1)
    g = (p - nn.functional.one_hot(y, 4)) @ w
    sent = tables([z], "embedding", "sent")
    views = [make_view(y, gradients=f * g, known=20, extra=sent) for f in (1.0, factor)]
    attack = registry.attacks.create("unsplit", {})
    told, scaled = attack.infer_many(views, [rng(), rng()])
    assert measure(scaled, y, "accuracy") > 0.97
    assert (told.scores.argmax(1) == scaled.scores.argmax(1)).mean() > 0.99
    assert scaled.notes["misfit"] == pytest.approx(told.notes["misfit"], abs=1e-3)


def test_the_factor_is_that_of_least_squares() -> None:
    """With the true layer and 3 g received, the factor is 3, and no distance is left."""
    z = torch.randn(1, 50, 8, generator=rng(), dtype=torch.float64)
    w = torch.randn(1, 3, 8, generator=rng(1), dtype=torch.float64)
    b = torch.zeros(1, 1, 3, dtype=torch.float64)
    y = (torch.arange(50) % 3).unsqueeze(0)
    g = replayed((w, b), z, nn.functional.one_hot(y, 3).double())
    clone = (w.clone().requires_grad_(), b.clone().requires_grad_())
    misfit, factor = Unsplit(steps=1, lr=1e-12)._fit(clone, z, 3 * g, y)
    assert float(factor) == pytest.approx(3.0)
    assert float(misfit) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("epochs", [1, 6])
def test_gradients_without_a_label_in_them_stay_at_chance(epochs: int) -> None:
    y = (torch.rand(1000, generator=rng(1)) < 0.4).long()
    z = torch.randn(1000, 5, generator=rng(3))
    noise = [torch.randn(1000, 5, generator=rng(2 + epochs + e)) for e in range(epochs)]
    extra = tables([z] * epochs, "embedding", "sent")
    view = make_view(y, gradients=noise, known=10, extra=extra)
    guess = registry.attacks.create("unsplit", {"steps": 30}).infer(view, rng())
    low, high = null_band(y, torch.from_numpy(guess.rows))
    assert low < measure(guess, y) < high


def behind_noise(strengths: list[float], epoch: str = "best") -> tuple[float, str]:
    """The AUC where each epoch's gradients had noise of such a strength, and which were read."""
    y = torch.arange(400) % 2
    z = torch.randn(400, 8, generator=rng())
    w = torch.randn(2, 8, generator=rng(1))
    p = torch.softmax(z @ w.T + torch.randn(400, 2, generator=rng(3)), 1)
    g = (p - nn.functional.one_hot(y, 2)) @ w
    sent = [iso(g, s, seed=e) if s else g for e, s in enumerate(strengths)]
    extra = tables([z] * len(sent), "embedding", "sent")
    view = make_view(y, gradients=sent, known=20, extra=extra)
    guess = registry.attacks.create("unsplit", {"epoch": epoch}).infer(view, rng())
    return measure(guess, y), guess.notes.get("epoch", "")


@pytest.mark.slow
def test_noise_that_is_drawn_anew_in_each_epoch_averages_out() -> None:
    for epoch in ("first", "last"):
        assert behind_noise([3.0] * 16, epoch)[0] < 0.8
    assert behind_noise([3.0] * 16) == (behind_noise([3.0] * 16, "mean")[0], "mean")
    assert behind_noise([3.0] * 16)[0] > 0.95


@pytest.mark.parametrize(
    ("strengths", "reads"),
    sampled([([0.0] + [20.0] * 9, "first"), ([20.0] + [0.0] * 9, "mean")]),
)
def test_a_defense_may_begin_or_end_with_an_epoch(strengths: list[float], reads: str) -> None:
    """Known rows tell which epochs to read; the first alone, or the last, would be at chance."""
    assert behind_noise(strengths, "last" if reads == "first" else "first")[0] < 0.65
    found, read = behind_noise(strengths)
    assert read == reads
    assert found > 0.99


def test_where_one_epoch_was_recorded_it_is_the_first_one() -> None:
    assert behind_noise([1.0]) == (behind_noise([1.0], "first")[0], "first")


def test_it_applies_behind_one_linear_layer_only() -> None:
    attack = registry.attacks.create("unsplit", {})
    facts = replace(make_view(torch.arange(4) % 2).facts, top=True, extra={"top": ()})
    assert attack.applicable(facts) == ""
    assert "one linear top layer" in attack.applicable(replace(facts, extra={"top": (32,)}))
    assert "direct" in attack.applicable(replace(facts, top=False))
