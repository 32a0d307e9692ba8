"""ExPLoit and UnSplit: what a replay of gradients leaves at the truth, and what it recovers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
from attack_views import iso, made, make_view, measure, rng, tables
from sampled import sampled
from torch import Tensor, nn

from vflsec.attacks.unsplit import Unsplit, label_distances, replayed
from vflsec.core.view import Facts, View
from vflsec.inference.gradient_replay import compute_misfits, compute_slopes, list_factors
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.plugins import registry

exploit = partial(made, "exploit")


def world(classes: int = 2, n: int = 240, noise: float = 0.0) -> tuple[View, Tensor, nn.Module]:
    """Embeddings that predict labels, the gradients that a half-trained top gives, and that top."""
    z = torch.randn(n, 6, generator=rng(1), dtype=torch.float64)
    y = (z[:, :classes] + torch.tensor([1.0, 0.0, 0.0, 0.0])[:classes]).argmax(1)
    torch.manual_seed(0)
    top = mlp([6, 8, classes]).double()
    fit = torch.optim.Adam(top.parameters(), lr=0.02)
    for _ in range(12):
        fit.zero_grad()
        nn.functional.cross_entropy(top(z), y).backward()
        fit.step()
    top.requires_grad_(False)
    leaf = z.clone().requires_grad_()
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(top(leaf), y, reduction="sum"), leaf)
    size = torch.linalg.vector_norm(g, dim=1).mean() / 6**0.5
    g = g + noise * size * torch.randn(g.shape, generator=rng(5), dtype=g.dtype)
    extra = tables([z], "embedding", "sent")
    return make_view(y, gradients=g, known=20, extra=extra), y, top


def test_at_the_true_top_and_labels_nothing_is_left_to_replay() -> None:
    """The gradient term is 0, the accuracy term is the loss over H(P), the KL is finite."""
    view, y, top = world()
    stack = Replicas([top], dtype=torch.float64)
    table = view.sent("embedding", "last")
    z, g = table.tensor.unsqueeze(0), view.received("gradient", "last").tensor.unsqueeze(0)
    t = 60.0 * nn.functional.one_hot(y, 2).double().unsqueeze(0)
    prior = view.require_prior().unsqueeze(0)
    zero, one = torch.zeros(1, 1, 6, dtype=z.dtype), torch.ones(1, 1, 6, dtype=z.dtype)
    bare = exploit(accuracy=0.0, divergence=0.0, entropy=0.0)
    on = torch.ones(1, dtype=torch.float64)
    assert bare.objective(stack, z, g, t, prior, zero, one, on).item() < 1e-9  # type: ignore[attr-defined]
    full = exploit(divergence=0.0, entropy=0.0).objective(  # type: ignore[attr-defined]
        stack, z, g, t, prior, zero, one, on
    )
    h = -(prior * prior.log()).sum()
    expected = nn.functional.cross_entropy(top(z[0]), y) / h
    assert full.item() == pytest.approx(expected.item(), abs=1e-9)
    wrong = bare.objective(stack, z, g, t.flip(2), prior, zero, one, on)  # type: ignore[attr-defined]
    assert wrong.item() > 0.5


def test_the_entropy_of_even_shares_is_log_of_classes() -> None:
    """With labels and predictions all even the accuracy term is 1, and so is the replay's."""
    view, _, _ = world(4)
    flat = mlp([6, 4]).double()
    with torch.no_grad():
        for p in flat.parameters():
            p.zero_()
    stack = Replicas([flat], dtype=torch.float64)
    z = view.sent("embedding", "last").tensor.unsqueeze(0)
    t = torch.zeros(1, 240, 4, dtype=torch.float64)
    zero, one = torch.zeros(1, 1, 6, dtype=z.dtype), torch.ones(1, 1, 6, dtype=z.dtype)
    prior = torch.full((1, 4), 0.25, dtype=torch.float64)
    attack = exploit(divergence=5.0, entropy=0.0)
    on = torch.ones(1, dtype=torch.float64)
    value = attack.objective(stack, z, torch.ones_like(z), t, prior, zero, one, on)  # type: ignore[attr-defined]
    assert value.item() == pytest.approx(2.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("classes", sampled([3, 2]))
def test_it_recovers_labels_from_gradients_alone(classes: int) -> None:
    view, y, _ = world(classes)
    guess = exploit(steps=300).infer(view, rng())
    assert measure(guess, y, "accuracy") > 0.97
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())


def times(view: View, factor: float) -> View:
    """The view of a party whose gradients carried a factor."""
    changed = {
        key: replace(t, tensor=t.tensor * factor) if key[1] == "gradient" else t
        for key, t in view.tables.items()
    }
    return replace(view, tables=MappingProxyType(changed))


def linear_world(classes: int = 2, n: int = 400) -> tuple[View, Tensor]:
    """Gradients of one linear layer whose logits are added to those of peers."""
    y = torch.arange(n) % classes
    z = torch.randn(n, 8, generator=rng())
    w = torch.randn(classes, 8, generator=rng(1))
    p = torch.softmax(z @ w.T + torch.randn(n, classes, generator=rng(3)), 1)
    g = (p - nn.functional.one_hot(y, classes)) @ w
    extra = tables([z], "embedding", "sent")
    return make_view(y, gradients=g, known=5 * classes, extra=extra), y


@pytest.mark.parametrize("classes", sampled([4, 2]))
def test_a_clone_fitted_to_known_rows_is_enough(classes: int) -> None:
    view, y = linear_world(classes, 300)
    guess = registry.attacks.create("unsplit", {}).infer(view, rng())
    assert measure(guess, y, "accuracy") > 0.97
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())


@pytest.mark.parametrize("factor", sampled([1e-9, 1e6, 1e-12, 1e3, 1e-6, 1e-3]))
@pytest.mark.parametrize(
    ("name", "params"), sampled([("unsplit", {}), ("exploit", {"steps": 120})])
)
def test_an_unknown_factor_hides_no_label(name: str, params: dict[str, Any], factor: float) -> None:
    """Read as they came, or taken as 1, an AUC of 0.46 to 0.99 was left, or of 0.00 at 1e-3."""
    view, y = linear_world(4, 300) if name == "unsplit" else world()[:2]
    attack = registry.attacks.create(name, params)
    told, scaled = attack.infer_many([view, times(view, factor)], [rng(), rng()])
    assert measure(scaled, y) > 0.97
    if name == "unsplit":
        assert measure(scaled, y, "accuracy") > 0.97
        assert (told.scores.argmax(1) == scaled.scores.argmax(1)).mean() > 0.99
        assert scaled.notes["misfit"] == pytest.approx(told.notes["misfit"], abs=1e-3)
    else:
        part = exploit(steps=120, rows=100).infer(times(view, factor), rng())
        assert measure(part, y) > 0.95


def behind_noise(name: str, strengths: list[float], epoch: str = "best") -> tuple[float, str]:
    """The AUC where each epoch's gradients had noise of such a strength, and which were read."""
    view, y = linear_world() if name == "unsplit" else world(n=400)[:2]
    z, g = view.sent("embedding", "last").tensor, view.received("gradient", "last").tensor
    sent = [iso(g, s, seed=e) if s else g for e, s in enumerate(strengths)]
    extra = tables([z] * len(sent), "embedding", "sent")
    noisy = make_view(y, gradients=sent, known=20, extra=extra)
    quick = {"steps": 150} if name == "exploit" else {}
    guess = registry.attacks.create(name, {"epoch": epoch, **quick}).infer(noisy, rng())
    return measure(guess, y), guess.notes.get("epoch", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strength", "alone", "least"),
    sampled([("unsplit", 3.0, 0.8, 0.95), ("exploit", 2.0, 0.75, 0.9)]),
)
def test_noise_that_is_drawn_anew_in_each_epoch_averages_out(
    name: str, strength: float, alone: float, least: float
) -> None:
    assert behind_noise(name, [strength] * 16, "first")[0] < alone
    found, read = behind_noise(name, [strength] * 16)
    assert read == "mean"
    assert found > least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strengths", "reads"),
    sampled([([0.0] + [20.0] * 9, "first"), ([20.0] + [0.0] * 9, "mean")]),
)
@pytest.mark.parametrize(("name", "least"), sampled([("unsplit", 0.99), ("exploit", 0.95)]))
def test_a_defense_may_begin_or_end_with_an_epoch(
    name: str, least: float, strengths: list[float], reads: str
) -> None:
    """Known rows tell which epochs to read; the first alone, or the last, would be at chance."""
    found, read = behind_noise(name, strengths)
    assert read == reads
    assert found > least
    assert behind_noise(name, strengths, "last" if reads == "first" else "first")[0] < 0.7


def test_where_one_epoch_was_recorded_it_is_the_first_one() -> None:
    assert behind_noise("unsplit", [1.0]) == (behind_noise("unsplit", [1.0], "first")[0], "first")


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


def test_unsplit_applies_behind_one_linear_layer_only() -> None:
    attack = registry.attacks.create("unsplit", {})
    facts = replace(make_view(torch.arange(4) % 2).facts, top=True, extra={"top": ()})
    assert attack.applicable(facts) == ""
    assert "one linear top layer" in attack.applicable(replace(facts, extra={"top": (32,)}))
    assert "direct" in attack.applicable(replace(facts, top=False))


def test_gradients_of_a_usual_size_are_read_as_they_came() -> None:
    """So what a training without a factor tells is bit for bit what the paper's form tells."""
    view, _, _ = world()
    z = view.sent("embedding", "last").tensor
    g = view.received("gradient", "last").tensor
    prior = view.require_prior()
    assert list_factors(z, g, prior) == (1.0,)
    one, other = list_factors(z, 1e-6 * g, prior)
    assert one == 1.0
    assert list_factors(z, g, prior) == list_factors(z, 1e-6 * g / other, prior)
    assert list_factors(z, 0 * g, prior) == (1.0,)
    both = exploit(steps=20).infer_many([view, times(view, 1e-6)], [rng(), rng()])
    alone = [exploit(steps=20).infer(v, rng()) for v in (view, times(view, 1e-6))]
    assert all((a.scores == b.scores).all() for a, b in zip(both, alone, strict=True))
    assert "factor" not in both[0].notes
    assert "factor" in both[1].notes


def test_needs_follow_how_classes_are_named() -> None:
    assert exploit().needs == {
        "gradient:scaled", "gradient:first", "sent.embedding:last", "sent.embedding:first",
        "prior", "known_rows",
    }  # fmt: skip
    assert exploit(names="prior", epoch="first").needs == {
        "gradient:first", "sent.embedding:first", "prior",
    }  # fmt: skip


def test_misfits_without_a_network_are_those_of_the_objective() -> None:
    view, _, top = world(3)
    stack = Replicas([top], dtype=torch.float64)
    z = view.sent("embedding", "last").tensor.unsqueeze(0)
    g = view.received("gradient", "last").tensor.unsqueeze(0)
    mean, sd = z.mean(1, keepdim=True), z.std(1, keepdim=True)
    log_p, pulled, gram = compute_slopes(stack, z, g, mean, sd, chunk=100)
    t = torch.randn(1, 240, 3, generator=rng(3), dtype=torch.float64)
    off = compute_misfits(log_p.exp() - torch.softmax(t, 2), pulled, gram, g.square().sum(2))
    bare = exploit(accuracy=0.0, divergence=0.0, entropy=0.0)
    one = torch.ones(1, dtype=torch.float64)
    whole = bare.objective(  # type: ignore[attr-defined]
        stack, z, g, t, view.require_prior().unsqueeze(0), mean, sd, one
    )
    length = torch.linalg.vector_norm(g, dim=2).mean()
    assert (off.mean() / length).item() == pytest.approx(whole.item(), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "least"), sampled([(0.0, 0.97), (1.5, 0.7)]))
def test_a_part_of_the_rows_tells_as_much_as_all(noise: float, least: float) -> None:
    """A surrogate of 300 rows of 1000: the guesses of all rows agree with those of a full one."""
    view, y, _ = world(2, n=1000, noise=noise)
    whole, part = (exploit(rows=rows, steps=200).infer(view, rng()) for rows in (0, 300))
    assert (whole.rows == part.rows).all()
    full, fewer = measure(whole, y), measure(part, y)
    assert full > least
    n = len(y) / 2
    error = (2 * (full * (1 - full) + 1 / n) / n) ** 0.5  # of a difference, Hanley and McNeil bound
    assert abs(full - fewer) < 2 * error
    assert (whole.scores.argmax(1) == part.scores.argmax(1)).mean() > (0.97 if not noise else 0.8)


def test_more_rows_than_there_are_change_nothing() -> None:
    view, _, _ = world()
    one, other = (exploit(steps=20, rows=rows).infer(view, rng()) for rows in (0, 240))
    assert (one.scores == other.scores).all()


@pytest.mark.parametrize(
    ("extra", "fits"), [({}, True), ({"samples": 5, "joint": 4}, True), ({"top_input": "x"}, False)]
)
def test_only_a_top_model_of_embeddings_is_imitated(extra: dict[str, Any], fits: bool) -> None:
    """What it gets is said, and not read off the names of hyper-parameters."""
    facts = Facts("own", "train", "a", ("a", "b"), 2, extra=extra)
    assert (registry.attacks.create("exploit").applicable(facts) == "") is fits
