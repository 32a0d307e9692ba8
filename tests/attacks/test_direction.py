"""The direction attack: gradients that point like a known positive's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from attack_views import binary_gradients, iso, made, make_view, measure, rng, same
from cohorts import cohort

from vflsec.core.view import Known
from vflsec.data.prepare import make_task
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec

direction = partial(made, "direction")


@pytest.mark.parametrize("positive_rate", [0.1, 0.5, 0.9])
def test_collinear_gradients_have_cosine_one(positive_rate: float) -> None:
    """Rows (p - y) v give +1 for positives and -1 for negatives, whatever the balance."""
    g, y = binary_gradients(1000, 16, positive_rate)
    guess = direction().infer(make_view(y, gradients=g.double(), known=2), rng())
    expected = 2.0 * y[torch.from_numpy(guess.rows)].double() - 1
    assert torch.from_numpy(guess.scores) == pytest.approx(expected, abs=1e-12)
    assert measure(guess, y) == 1.0


def test_inner_product_is_the_plain_one() -> None:
    g, y = binary_gradients(200, 4)
    view = make_view(y, gradients=g.double(), known=4)
    guess = direction(measure="inner", positives=2).infer(view, rng())
    known = view.require_known()
    hints, against = known.of_class(1)[:2], known.of_class(0)[:2]
    asked = g.double()[guess.rows]
    expected = (asked @ g.double()[hints].T).sum(1) - (asked @ g.double()[against].T).sum(1)
    assert torch.from_numpy(guess.scores) == pytest.approx(expected / 4, abs=1e-12)
    guess = direction(measure="inner", positives=2, negatives=False).infer(view, rng())
    expected = (g.double()[guess.rows] @ g.double()[hints].T).mean(1)
    assert torch.from_numpy(guess.scores) == pytest.approx(expected, abs=1e-12)


def test_reference_rows_are_not_in_the_answer() -> None:
    g, y = binary_gradients(200, 4)
    view = make_view(y, gradients=g, known=10)
    guess = direction(positives=3).infer(view, rng())
    hints = view.require_known().of_class(1)[:3]
    assert not set(hints.tolist()) & set(guess.rows.tolist())
    assert set(view.targets["train"].tolist()) <= set(guess.rows.tolist())


def test_known_rows_beyond_the_reference_change_nothing() -> None:
    """Only the references are read; labels of targets are not in the view at all."""
    g, y = binary_gradients(300, 8)
    view = make_view(y, gradients=g, known=10)
    known = view.require_known()
    assert same(
        direction().infer(view, rng()),
        direction().infer(replace(view, known=Known(known.rows[:2], known.labels[:2])), rng()),
    )


def test_too_few_positives_are_refused_with_both_numbers() -> None:
    g, y = binary_gradients(100, 4)
    with pytest.raises(ThreatModelError, match="needs 5 known positives, got 2"):
        direction(positives=5).infer(make_view(y, gradients=g, known=4), rng())


def test_on_a_recorded_run_under_iso_the_accumulating_attacker_wins() -> None:
    """Gradients of a real training under noise: all epochs together against the last one."""
    source = registry.datasets.create("leaky", {"rows": 600})
    seeds = (0, 1)
    tasks = {s: make_task(source.load(s), s) for s in seeds}
    iso3 = [DefenseSpec("iso", strength=3.0)]
    attacks = [
        AttackSpec("direction", {"positives": 3, "accumulate": a}, (tasks[0].passive[0],))
        for a in (True, False)
    ]
    gained = []
    for result in cohort(attacks, tasks, iso3, epochs=25, patience=0, cut=4, top=(8,)):
        auc = [m.value for m in result.measures if m.metric == "auc" and m.split == "train"]
        assert len(auc) == 2
        gained.append(auc[0] - auc[1])
    assert min(gained) > 0
    assert sum(gained) / len(gained) > 0.1


def test_negatives_point_the_other_way() -> None:
    """Balanced classes under noise: ten references instead of five raise the AUC, and known
    positives that are far off their kind matter less."""
    g, y = binary_gradients(2000, 16, 0.5)
    gained = []
    for seed in range(6):
        view = make_view(y, gradients=iso(g, 2.0, seed), known=10)
        rows = view.targets["train"]
        both, alone = (
            measure(direction(positives=5, negatives=n).infer(view, rng()), y, rows=rows)
            for n in (True, False)
        )
        gained.append(both - alone)
    assert sum(gained) / 6 > 0.01


def test_without_a_known_negative_the_positives_serve_alone() -> None:
    g, y = binary_gradients(300, 8)
    view = make_view(y, gradients=g, known=6)
    positives = view.require_known().of_class(1)
    alone = replace(view, known=Known(positives, torch.ones_like(positives)))
    guess = direction(positives=3).infer(alone, rng())
    other = direction(positives=3, negatives=False).infer(alone, rng())
    assert same(guess, other)
    assert measure(guess, y) == 1.0


def test_scaled_epochs_count_alike() -> None:
    """One loud epoch of noise drowns the plain mean; divided by its batch it is one of eight."""
    g, y = binary_gradients(1000, 8, 0.5)
    noise = torch.randn(1000, 8, generator=rng(5))
    epochs = [*(iso(g, 2.0, s) for s in range(7)), 1000 * noise]
    view = make_view(y, gradients=epochs, known=20, batch=1000)
    plain, scaled = (
        measure(direction(positives=5, accumulate=a).infer(view, rng()), y,
                rows=view.targets["train"])
        for a in (True, "scaled")
    )  # fmt: skip
    assert plain < 0.6
    assert scaled > 0.9
