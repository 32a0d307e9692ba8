"""Batch label inference: from the gradient of own parameters back to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import PARTY, made, make_view, measure, rng
from sampled import sampled
from torch import Tensor, nn

from vflsec.attacks.batch_inference import System, linear_system, zero_sum_basis
from vflsec.core.channel import Recorder
from vflsec.core.view import Facts, Update, View, as_needs
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.testing import small_stack, train

bli = partial(made, "batch_inference")


def with_steps(view: View, updates: Sequence[Update], factor: float = 1.0) -> View:
    """The view with these steps, their gradients times a factor."""
    steps = [replace(u, gradients={k: factor * g for k, g in u.gradients.items()}) for u in updates]
    return replace(view, updates=MappingProxyType({PARTY: steps}))


def bottom_of(columns: int, hidden: int, classes: int) -> nn.Sequential:
    """What maps own columns to logits, linear without `hidden`."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(columns, hidden or classes)]
    if hidden:
        layers += [nn.Tanh(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers).double()


def one_step(
    batch: int, columns: int, classes: int, hidden: int = 0, batches: int = 1, noise: float = 0.0
) -> tuple[View, Tensor]:
    """Recorded steps of a bottom whose logits are added to those of a peer."""
    n = batch * batches
    y = torch.arange(n) % classes
    y = y[torch.randperm(n, generator=rng(1))]
    x = torch.randn(n, columns, generator=rng(2), dtype=torch.float64)
    bottom = bottom_of(columns, hidden, classes)
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
    return with_steps(view, updates), y


@pytest.mark.parametrize(("batch", "columns", "classes"), [(16, 32, 10), (32, 32, 2), (1, 4, 3)])
def test_closed_form_is_exact_while_the_batch_fits_the_width(
    batch: int, columns: int, classes: int
) -> None:
    """One linear layer, batch <= width."""
    view, y = one_step(batch, columns, classes)
    guess = bli().infer(view, rng())
    assert (guess.scores.argmax(1) == y.numpy()[guess.rows]).all()
    assert guess.notes == {"batches": 1, "closed_form": 1, "reading": "smallest entry"}


def test_trained_twice_on_labels_in_stages_each_row_is_guessed_once_by_its_last_release() -> None:
    view, y = one_step(8, 8, 2)
    (update,) = view.updates[PARTY]
    flipped = {k: -g for k, g in update.gradients.items()}  # of the other class, for two classes
    before = replace(update, gradients=flipped)
    twice = with_steps(view, (before, update))
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


@pytest.mark.slow
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


@pytest.mark.parametrize("factor", sampled([1e-9, 1e6, 1e-6, 1e-3, 1e3]))
@pytest.mark.parametrize("method", ["closed", "search"])
def test_an_unknown_factor_hides_no_label(method: str, factor: float) -> None:
    """Taken as 1 / b the search fell from an AUC of 0.90 to 0.63 at 1e-3 and below."""
    view, y = one_step(24, 8, 2, hidden=6, batches=2)
    other = with_steps(view, view.updates[PARTY], factor)
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
    """D = 0 at the true labels and peers' logits, and its gradient is zero there."""
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
    """The gradient of the last bias is the mean of p - y over the batch."""
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
    assert key == (PARTY, "own", "parameter_gradient", "spread")
    run = train(algorithm, small_stack([0, 1]), [0, 1], wanted=[key])
    updates = run.fed.channel.recorder.updates(1, [PARTY], "train")[PARTY]
    task = run.fed.stack.tasks[1]
    assert [u.epoch for u in updates] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    seen = torch.cat([u.rows for u in updates[:3]]).sort().values
    assert torch.equal(seen, task.sets["labelled"])
    first = run.initial[PARTY]
    assert torch.equal(updates[0].weights["bottom.1.weight"], first["1.weight"][1])
    assert updates[0].gradients["bottom.1.weight"].shape == first["1.weight"][1].shape
    plain = train(algorithm, small_stack([0, 1]), [0, 1])
    assert plain.fed.channel.recorder.updates(1, [PARTY], "train") == {}


def test_behind_a_top_model_and_without_own_gradients_it_is_refused() -> None:
    facts = Facts("splitnn", "train", "a", ("a", "b"), 3, aggregation="sum", top=True)
    assert "summed logits" in bli().applicable(facts)
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


def epochs_of(
    batch: int,
    loud: Sequence[float],
    columns: int = 8,
    rows: int = 300,
    *,
    hidden: int = 0,
    classes: int = 2,
    jitter: float = 0.02,
    drawn: bool = True,
) -> tuple[View, Tensor]:
    """Steps of as many epochs as `loud`, which is how large the noise of each row's gradient is.

    Batches are `drawn` anew; own weights and the peer's logits move a little from step to step.
    """
    y = torch.arange(rows) % classes
    y = y[torch.randperm(rows, generator=rng(1))]
    x = torch.randn(rows, columns, generator=rng(2), dtype=torch.float64)
    bottom = bottom_of(columns, hidden, classes)
    peer = torch.randn(rows, classes, generator=rng(3), dtype=torch.float64)
    g, updates = rng(5), []
    for epoch, scale in enumerate(loud):
        order = torch.randperm(rows, generator=g) if drawn else torch.arange(rows)
        for at in order.split(batch):
            with torch.no_grad():
                for w in bottom.parameters():
                    w += jitter * torch.randn(w.shape, generator=g, dtype=w.dtype)
                peer += jitter * torch.randn(peer.shape, generator=g, dtype=peer.dtype)
            z = bottom(x[at])
            told = (z + peer[at]).softmax(1) - nn.functional.one_hot(y[at], classes)
            told = told.detach() + scale * torch.randn(z.shape, generator=g, dtype=z.dtype)
            found = torch.autograd.grad(z, list(bottom.parameters()), told / len(at))
            named = [(f"bottom.{k}", p) for k, p in bottom.named_parameters()]
            updates.append(
                Update(
                    epoch, len(updates), at,
                    {k: s for (k, _), s in zip(named, found)},
                    {k: p.detach().clone() for k, p in named},
                )
            )  # fmt: skip
    view = make_view(y, columns=x, bottom=bottom, batch=batch)
    return with_steps(view, updates), y


def first_epochs(view: View, epochs: int) -> View:
    kept = [u for u in view.updates[PARTY] if u.epoch < epochs]
    return with_steps(view, kept)


@pytest.mark.slow
def test_equations_of_ten_epochs_determine_what_those_of_one_do_not() -> None:
    """A linear layer of 9 parameters a class, batches of 48, no noise."""
    view, y = epochs_of(48, [0.0] * 10)
    assert measure(bli().infer(first_epochs(view, 1), rng()), y) < 0.75
    guess = bli().infer(view, rng())
    assert measure(guess, y) > 0.92
    assert guess.notes == {
        "batches": 9 * 7, "closed_form": 0, "epochs": 9, "reading": "smallest entry",
    }  # fmt: skip


@pytest.mark.parametrize(("loud", "most", "least"), sampled([(3.0, 0.62, 0.7), (1.0, 0.8, 0.9)]))
def test_noise_that_is_drawn_anew_averages_out(loud: float, most: float, least: float) -> None:
    view, y = epochs_of(30, [loud] * 10, hidden=32)
    assert measure(bli().infer(first_epochs(view, 1), rng()), y) < most
    assert measure(bli().infer(view, rng()), y) > least


@pytest.mark.slow
@pytest.mark.parametrize(("quiet", "hidden"), sampled([(3, 0), (0, 32), (0, 0), (3, 32)]))
def test_an_epoch_without_noise_is_heard_among_loud_ones(quiet: int, hidden: int) -> None:
    """Solved rows stand; of what is not determined, a loud epoch takes next to nothing."""
    loud = [20.0] * 6
    loud[quiet] = 0.0
    view, y = epochs_of(30, loud, hidden=hidden)
    only = [replace(u, epoch=0) for u in view.updates[PARTY] if u.epoch == quiet]
    alone = bli().infer(with_steps(view, only), rng())
    assert measure(bli().infer(view, rng()), y) > measure(alone, y) - 0.03


@pytest.mark.parametrize("factor", sampled([1e-6, 1e6]))
def test_a_factor_of_all_epochs_hides_no_label(factor: float) -> None:
    view, y = epochs_of(48, [0.0] * 10)
    other = with_steps(view, view.updates[PARTY], factor)
    assert measure(bli().infer(other, rng()), y) > 0.92


@pytest.mark.slow
@pytest.mark.parametrize("hidden", sampled([0, 32]))
def test_ten_epochs_of_noise_say_nothing(hidden: int) -> None:
    view, y = epochs_of(30, [1e6] * 10, rows=900, hidden=hidden)
    assert abs(measure(bli().infer(view, rng()), y) - 0.5) < 4 * 0.5774 / 900**0.5
    still, y = epochs_of(30, [0.0] * 10, rows=900, hidden=hidden)
    other = y[torch.randperm(900, generator=rng(8))]
    assert abs(measure(bli().infer(still, rng()), other) - 0.5) < 4 * 0.5774 / 900**0.5


@pytest.mark.slow
def test_ten_classes_and_a_smaller_last_batch() -> None:
    view, y = epochs_of(64, [0.0] * 10, columns=32, classes=10)
    first = bli(method="closed").infer(first_epochs(view, 1), rng())
    guess = bli().infer(view, rng())
    assert measure(guess, y, "accuracy") > max(0.95, measure(first, y, "accuracy"))


def test_of_several_epochs_too_the_last_stage_counts() -> None:
    view, y = epochs_of(30, [0.0] * 4, hidden=32)
    steps = view.updates[PARTY]
    flipped = [
        replace(u, gradients={k: -g for k, g in u.gradients.items()}) for u in steps
    ]  # of the other class, for two classes
    twice = with_steps(view, [*flipped, *steps])
    once, guess = bli().infer(view, rng()), bli().infer(twice, rng())
    assert np.array_equal(guess.rows, once.rows)
    assert guess.scores == pytest.approx(once.scores)
    assert measure(guess, y) > 0.99


def test_rows_that_come_twice_are_guessed_once() -> None:
    """In an epoch, and in a batch."""
    view, y = epochs_of(30, [0.0] * 4, hidden=32)
    steps = list(view.updates[PARTY])
    again = [replace(u, step=u.step + 1000) for u in steps if u.epoch == 1]
    at = steps.index(next(u for u in steps if u.epoch == 2))
    late = [replace(u, step=u.step + 2000) for u in steps[at:]]
    doubled = replace(
        steps[0], epoch=3, step=9999, rows=steps[0].rows.repeat(2)
    )  # its gradient is the mean over its rows, twice each
    twice = [*steps[:at], *again, *late, doubled]
    guess = bli().infer(with_steps(view, twice), rng())
    assert guess.rows.tolist() == list(range(300))
    assert measure(guess, y) > 0.99


def granted(view: View, y: Tensor, known: int) -> View:
    """The view with the labels of so many rows."""
    return replace(view, known=make_view(y, known=known).known)


@pytest.mark.parametrize(
    ("epochs", "known"), sampled([(1, 1), (10, 20), (1, 20), (10, 1), (1, 2), (10, 2)])
)
def test_an_answer_the_wrong_way_round_is_turned_where_a_row_is_known(
    epochs: int, known: int
) -> None:
    """What is left of a loss that a penalty outweighs, or of labels that are swapped."""
    view, y = epochs_of(16, [0.0] * epochs, hidden=32)
    turned = with_steps(view, view.updates[PARTY], -1.0)
    assert measure(bli().infer(turned, rng()), y) < 0.05
    guess = bli().infer(granted(turned, y, known), rng())
    assert measure(guess, y) > 0.95
    assert guess.notes["reading"] == "largest entry"
    plain = bli().infer(granted(view, y, known), rng())
    assert measure(plain, y) > 0.95
    assert plain.notes["reading"] == "smallest entry"


@pytest.mark.slow
def test_renamed_classes_are_read_from_known_rows() -> None:
    view, y = epochs_of(32, [0.0] * 10, columns=32, classes=5)
    other = (y + 1) % 5
    assert measure(bli().infer(view, rng()), other, "accuracy") < 0.05
    guess = bli().infer(granted(view, other, 20), rng())
    assert guess.notes["reading"] == "smallest entry, classes renamed"
    assert measure(guess, other, "accuracy") > 0.95


@pytest.mark.slow
def test_known_rows_make_no_answer_out_of_noise() -> None:
    view, y = epochs_of(30, [1e6] * 10, rows=900, hidden=32)
    found = [
        measure(bli().infer(granted(view, of, 20), rng()), of)
        for of in (y.roll(k) for k in range(8))
    ]
    assert abs(sum(found) / 8 - 0.5) < 4 * 0.5774 / 900**0.5
