"""Batch label inference: from the gradient of own parameters back to rows."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import PARTY, make_view, measure, rng
from torch import Tensor, nn

from vflsec import registry
from vflsec.attack import Attack
from vflsec.attacks.batch_inference import System, linear_system, zero_sum_basis
from vflsec.channel import Recorder
from vflsec.errors import ThreatModelError
from vflsec.testing import small_stack, train
from vflsec.view import Facts, Update, View, as_needs


def bli(**params: object) -> Attack:
    return registry.attacks.create("batch_inference", params)


def one_step(
    batch: int, columns: int, classes: int, hidden: int = 0, batches: int = 1, noise: float = 0.0
) -> tuple[View, Tensor]:
    """Recorded steps of a bottom whose logits are added to those of a peer."""
    n = batch * batches
    y = torch.arange(n) % classes
    y = y[torch.randperm(n, generator=rng(1))]
    x = torch.randn(n, columns, generator=rng(2), dtype=torch.float64)
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(columns, hidden or classes)]
    if hidden:
        layers += [nn.Tanh(), nn.Linear(hidden, classes)]
    bottom = nn.Sequential(*layers).double()
    names = [k for k, _ in bottom.named_parameters()]
    peer = torch.randn(n, classes, generator=rng(3), dtype=torch.float64)
    updates = []
    for t, rows in enumerate(torch.arange(n).split(batch)):
        loss = nn.functional.cross_entropy(bottom(x[rows]) + peer[rows], y[rows])
        found = torch.autograd.grad(loss, list(bottom.parameters()))
        found = [g + noise * torch.randn(g.shape, generator=rng(t), dtype=g.dtype) for g in found]
        updates.append(
            Update(
                0, t, rows,
                {f"bottom.{k}": g for k, g in zip(names, found)},
                {f"bottom.{k}": p.detach().clone() for k, p in bottom.named_parameters()},
            )
        )  # fmt: skip
    view = make_view(y, columns=x, bottom=bottom, batch=batch)
    return replace(view, updates=MappingProxyType({PARTY: updates})), y


@pytest.mark.parametrize(("batch", "columns", "classes"), [(16, 32, 10), (32, 32, 2), (1, 4, 3)])
def test_closed_form_is_exact_while_the_batch_fits_the_width(
    batch: int, columns: int, classes: int
) -> None:
    """T17: one linear layer, batch <= width."""
    view, y = one_step(batch, columns, classes)
    guess = bli().infer(view, rng())
    assert (guess.scores.argmax(1) == y.numpy()[guess.rows]).all()
    assert guess.notes == {"batches": 1, "closed_form": 1}


def test_trained_twice_on_labels_in_stages_each_row_is_guessed_once_by_its_last_release() -> None:
    view, y = one_step(8, 8, 2)
    (update,) = view.updates[PARTY]
    flipped = {k: -g for k, g in update.gradients.items()}  # of the other class, for two classes
    before = replace(update, gradients=flipped)
    twice = replace(view, updates=MappingProxyType({PARTY: (before, update)}))
    once, guess = bli().infer(view, rng()), bli().infer(twice, rng())
    assert np.array_equal(guess.rows, once.rows)
    assert np.array_equal(guess.scores, once.scores)
    assert measure(guess, y) == 1.0


def test_deeper_bottoms_determine_larger_batches() -> None:
    """Batch 60 at a last layer 16 wide: its own gradient is not enough, all layers' are."""
    view, y = one_step(60, 12, 2, hidden=16, batches=3)
    guess = bli().infer(view, rng())
    assert guess.notes["closed_form"] == 3
    assert measure(guess, y) == 1.0


def test_the_search_finds_what_is_underdetermined_better_than_chance() -> None:
    view, y = one_step(64, 32, 10)
    assert not linear_system(
        view.models[PARTY], view.columns[PARTY], view.updates[PARTY][0]
    ).determined
    guess = bli(steps=400).infer(view, rng())
    assert guess.notes["closed_form"] == 0
    accuracy = measure(guess, y, "accuracy")
    assert accuracy > 0.85
    assert 0.8 < measure(bli(method="closed").infer(view, rng()), y, "accuracy") < accuracy


@pytest.mark.parametrize("factor", [1e-9, 1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("method", ["closed", "search"])
def test_an_unknown_factor_hides_no_label(method: str, factor: float) -> None:
    """Taken as 1 / b the search fell from an AUC of 0.90 to 0.63 at 1e-3 and below."""
    view, y = one_step(24, 8, 2, hidden=6, batches=2)
    updates = [
        replace(u, gradients={k: factor * g for k, g in u.gradients.items()})
        for u in view.updates[PARTY]
    ]
    other = replace(view, updates=MappingProxyType({PARTY: updates}))
    told, scaled = (bli(method=method, steps=150).infer(v, rng()) for v in (view, other))
    assert measure(scaled, y) > max(measure(told, y) - 0.05, 0.7)


def test_the_length_of_a_gradient_tells_its_factor() -> None:
    view, _ = one_step(64, 32, 10)
    at = (view.models[PARTY], view.columns[PARTY])
    update = view.updates[PARTY][0]
    plain = linear_system(*at, update).factor_seen
    assert 0.5 < plain < 2
    scaled = {k: 1e-6 * g for k, g in update.gradients.items()}
    other = linear_system(*at, replace(update, gradients=scaled)).factor_seen
    assert other == pytest.approx(1e-6 * plain)


def test_the_truth_leaves_no_misfit() -> None:
    """T18: D = 0 at the true labels and peers' logits, and its gradient is zero there."""
    view, y = one_step(8, 4, 3, hidden=5)
    system = linear_system(view.models[PARTY], view.columns[PARTY], view.updates[PARTY][0])
    peer = torch.randn(8, 3, generator=rng(3), dtype=torch.float64)
    p = torch.softmax(system.logits + peer, 1)
    g = ((p - nn.functional.one_hot(y, 3)) / 8).requires_grad_()
    misfit = system.misfit(g)
    assert abs(misfit.item()) < 1e-12
    (slope,) = torch.autograd.grad(misfit, [g])
    assert float(slope.abs().max()) < 1e-10
    assert float(system.misfit(g.detach().flip(0))) > 1e-3


def test_the_bias_gradient_counts_classes() -> None:
    """T19: the gradient of the last bias is the mean of p - y over the batch."""
    view, y = one_step(20, 4, 3)
    update = view.updates[PARTY][0]
    peer = torch.randn(20, 3, generator=rng(3), dtype=torch.float64)
    z = view.models[PARTY]["bottom"](view.columns[PARTY])
    p = torch.softmax(z + peer, 1)
    expected = (p - nn.functional.one_hot(y, 3)).mean(0)
    assert update.gradients["bottom.0.bias"] == pytest.approx(expected.detach())


def test_gradients_that_are_noise_say_nothing() -> None:
    view, y = one_step(60, 12, 2, hidden=16, batches=12, noise=5.0)
    accuracy = measure(bli(method="closed").infer(view, rng()), y, "accuracy")
    assert abs(accuracy - 0.5) < 4 * (0.25 / 720) ** 0.5


def test_basis_adds_up_to_zero_and_is_orthonormal() -> None:
    q = zero_sum_basis(5)
    assert q.sum(0) == pytest.approx(torch.zeros(4, dtype=torch.float64))
    assert q.T @ q == pytest.approx(torch.eye(4, dtype=torch.float64))


def test_steps_are_recorded_with_their_batches_only_where_asked() -> None:
    algorithm = registry.algorithms.create(
        "splitnn", {"epochs": 3, "batch_size": 48, "top": (), "linear_top": False,
                    "aggregation": "sum"}
    )  # fmt: skip
    key = Recorder.wants(PARTY, as_needs(bli().needs)[0])
    assert key == (PARTY, "own", "parameter_gradient", "first")
    run = train(algorithm, small_stack([0, 1]), [0, 1], wanted=[key])
    updates = run.fed.channel.recorder.updates(1, [PARTY], "train")[PARTY]
    task = run.fed.stack.tasks[1]
    assert [u.epoch for u in updates] == [0, 0, 0]
    seen = torch.cat([u.rows for u in updates]).sort().values
    assert torch.equal(seen, task.sets["labelled"])
    first = run.initial[PARTY]
    assert torch.equal(updates[0].weights["bottom.1.weight"], first["1.weight"][1])
    assert updates[0].gradients["bottom.1.weight"].shape == first["1.weight"][1].shape
    plain = train(algorithm, small_stack([0, 1]), [0, 1])
    assert plain.fed.channel.recorder.updates(1, [PARTY], "train") == {}


def test_behind_a_top_model_and_without_own_gradients_it_is_refused() -> None:
    facts = Facts("splitnn", "train", "a", ("a", "b"), 3, aggregation="sum", top=True)
    assert "trainable top model" in bli().applicable(facts)
    assert bli().applicable(replace(facts, top=False)) == ""
    with pytest.raises(ThreatModelError, match="own parameters"):
        bli().infer(make_view(torch.arange(10) % 2), rng())


@pytest.mark.parametrize(("rank", "tiny", "determined"), [(24, 1e-3, True), (24, 1e-7, False),
                                                          (20, 1.0, False)])  # fmt: skip
def test_what_is_determined_is_told_without_an_eigendecomposition(
    rank: int, tiny: float, determined: bool
) -> None:
    """Equations of known singular values: the verdict, and the solution, are those of eigh."""
    q, _ = torch.linalg.qr(torch.randn(24, 24, generator=rng(), dtype=torch.float64))
    values = torch.linspace(1, 2, 24, dtype=torch.float64)
    values[0], values[rank:] = tiny, 0.0
    v = torch.linalg.qr(torch.randn(24, 24, generator=rng(1), dtype=torch.float64)).Q
    a = (q * values) @ v
    g = torch.randn(24, generator=rng(2), dtype=torch.float64)
    logits = torch.zeros(12, 3, dtype=torch.float64)
    system = System(a @ a.T, a @ (g @ a), zero_sum_basis(3), logits, 1.0, 24)
    assert system.determined is determined
    found = torch.linalg.eigh(system.gram)
    use = found.eigenvalues > 1e-10 * found.eigenvalues[-1]
    assert bool(use.all()) is determined
    inverse = torch.where(use, 1 / found.eigenvalues, 0.0)
    flat = found.eigenvectors @ (inverse * (found.eigenvectors.T @ system.right))
    expected = flat.reshape(12, 2) @ system.basis.T
    assert system.solve() == pytest.approx(expected, abs=1e-6)


def test_fewer_equations_than_unknowns_are_never_determined() -> None:
    logits = torch.zeros(4, 3, dtype=torch.float64)
    eye = torch.eye(8, dtype=torch.float64)
    assert System(eye, eye[0], zero_sum_basis(3), logits, 1.0, 8).determined
    assert not System(eye, eye[0], zero_sum_basis(3), logits, 1.0, 7).determined
