"""Yes/no questions about a quantity: their cuts, the rows that are granted, nulls and planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from attack_views import make_view, measure, rng
from cohorts import cohort
from sampled import sampled
from torch import Tensor

from vflsec.api import infer, train
from vflsec.audit import intervals
from vflsec.core.attack import Attack
from vflsec.core.quantity_questions import answer_question, assign_turns, find_unclear
from vflsec.core.task import Task
from vflsec.core.view import Known, View
from vflsec.data.prepare import make_task
from vflsec.errors import ConfigError
from vflsec.measure.controls import controls_for
from vflsec.plugins import registry
from vflsec.specs import QUESTIONS, AttackSpec, DefenseSpec
from vflsec.train.views import draw_known_rows

FAR, LARGEST, SMALLEST = QUESTIONS


def tasks(seeds: int, rows: int = 300) -> dict[int, Task]:
    made = registry.datasets.create("quantity_gaussian", {"rows": rows, "test_rows": 50})
    return {s: make_task(made.load(s), s) for s in range(seeds)}


def test_ties_stay_together_at_a_cut() -> None:
    cut = torch.arange(100.0).double()
    values = torch.cat([cut, torch.tensor([500.0, float("nan")]).double()])
    far, largest, smallest = (answer_question(q, values, cut) for q in QUESTIONS)
    assert far[:101].nonzero().squeeze(1).tolist() == [*range(25), *range(74, 101)]
    assert largest.nonzero().squeeze(1).tolist()[:3] == [90, 91, 92]
    assert smallest[:101].nonzero().squeeze(1).tolist() == list(range(10))
    assert all(int(t[101]) == -1 for t in (far, largest, smallest))
    tied = torch.tensor([0.0] * 70 + [1.0] * 30).double()
    assert int(answer_question(LARGEST, tied, tied).sum()) == 30


def test_cuts_and_grants_are_of_training_rows_and_one_grant_answers_all() -> None:
    (task,) = tasks(1, 200).values()
    assert task.values is not None
    moved = task.values.clone()
    moved[task.sets["test"]] = 99.0
    other = replace(task, values=moved)
    train = task.sets["labelled"]
    grants = []
    for q in QUESTIONS:
        assert torch.equal(task.of_label(q).y[train], other.of_label(q).y[train])
        known = draw_known_rows(task.of_label(q), 0, 20)
        assert known.values is not None
        assert torch.equal(known.labels, answer_question(q, known.values, task.values[train]))
        assert torch.equal(known.rows[:8], draw_known_rows(task.of_label(q), 0, 8).rows)
        grants.append(known)
    assert all(torch.equal(k.rows, grants[0].rows) for k in grants)
    assert [int(k.labels.sum()) for k in grants] == [10, 5, 5]
    plain = draw_known_rows(task, 0, 20)
    assert torch.equal(plain.labels, task.values[plain.rows])
    with pytest.raises(ConfigError, match="the label must be one of"):
        task.of_label("largest half")


def test_half_of_the_rows_of_a_kind_stay_to_be_guessed() -> None:
    turn = assign_turns(torch.arange(40.0).double())
    first = torch.argsort(turn, stable=True)
    assert first[:4].tolist() == [36, 10, 0, 11]
    granted = turn < 160
    assert granted[36:].tolist() == [True, True, False, False]
    assert granted[:4].tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("zeros", "asked"), [(0, [FAR, LARGEST, SMALLEST]), (70, [FAR, LARGEST]), (92, [LARGEST])]
)
def test_a_question_that_equal_values_make_another_is_not_asked(
    zeros: int, asked: list[str]
) -> None:
    values = torch.cat([torch.zeros(zeros), 1 + torch.arange(100.0 - zeros)]).double()
    assert [q for q in QUESTIONS if not find_unclear(q, values)] == asked
    if zeros == 70:
        assert "it would be true of 70% of rows" in find_unclear(SMALLEST, values)
        view = replace(asking(SMALLEST, values, torch.zeros(100, 2))[0])
        facts = replace(view.facts, extra={"unclear": find_unclear(SMALLEST, values)})
        assert "in the smallest tenth is not asked" in zero_pattern().pointless(facts)


def test_which_attacks_are_asked() -> None:
    of = {n: registry.attacks.get(n) for n in ("message_completion", "zero_pattern", "residual")}
    asked = {n: list(kind.each_label((), 1)) for n, kind in of.items()}  # type: ignore[attr-defined]
    assert asked == {
        "message_completion": ["", *QUESTIONS], "zero_pattern": list(QUESTIONS), "residual": [""],
    }  # fmt: skip
    assert Attack.each_label(()) == ("",)


def zero_pattern() -> Attack:
    return registry.attacks.create("zero_pattern", {})


def asking(question: str, values: Tensor, gradients: Tensor) -> tuple[View, Tensor]:
    """A view in which this is asked of messages (n, d), with 20 known rows, and the answers."""
    y = answer_question(question, values, values)
    rows = torch.argsort(assign_turns(values), stable=True)[:20]
    view = make_view(y, gradients=gradients, known=20)
    facts = replace(view.facts, extra={"question": question})
    return replace(view, known=Known(rows, y[rows], values[rows]), facts=facts), y


def zeroed(hidden: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Values (400,), and gradients (400, 4) that are 0 for the rows that `hidden` names."""
    g = rng(seed)
    values = torch.randn(400, generator=g, dtype=torch.float64)
    gradient = torch.randn(400, 4, generator=g)
    gradient[hidden(values, g)] = 0.0
    return values, gradient


@pytest.mark.parametrize("question", QUESTIONS)
def test_zero_rows_of_those_with_a_yes_are_found(question: str) -> None:
    values, gradient = zeroed(lambda v, _: answer_question(question, v, v) == 1, 0)
    view, y = asking(question, values, gradient)
    guess = zero_pattern().infer(view, rng())
    assert not np.isin(guess.rows, view.require_known().rows.numpy()).any()
    assert measure(guess, y) == 1.0


@pytest.mark.parametrize("question", sampled(QUESTIONS))
def test_zero_rows_that_have_nothing_to_do_with_values_tell_none(question: str) -> None:
    found = []
    for seed in range(20):
        made = zeroed(lambda v, g: torch.randperm(len(v), generator=g)[:40], seed)
        view, y = asking(question, *made)
        assert not zero_pattern().declines(view)
        found.append(measure(zero_pattern().infer(view, rng(seed)), y))
    low, high = intervals.t_interval(found, 0.99)
    assert low is not None
    assert high is not None
    assert low < 0.5 < high
    assert abs(np.mean(found) - 0.5) < 0.04


def told(
    of: dict[int, Task], strength: float, epochs: int = 3
) -> dict[str, list[tuple[float, float]]]:
    """AUC on training rows, and of the strongest control, by question and seed."""
    defense = (DefenseSpec("iso", strength=strength),)
    specs = [AttackSpec("message_completion", {}, ("passive",), of_label=q) for q in QUESTIONS]
    found: dict[str, list[tuple[float, float]]] = {q: [] for q in QUESTIONS}
    for result in cohort(specs, of, defense, main=True, epochs=epochs):
        for m in result.measures:
            if m.attack and m.metric == "auc":
                question = m.attack.partition("=")[2].rstrip(")")
                control = max(c["value"] for c in m.controls.values())
                found[question].append((float(m.value or math.nan), control))
    return found


def nothing(values: list[float], question: str) -> None:
    low, high = intervals.t_interval(values, 0.99)
    assert low is not None, question
    assert high is not None, question
    assert low < 0.5 < high, question
    assert abs(np.mean(values) - 0.5) < 0.06, question


@pytest.mark.slow
def test_nothing_is_found_under_heavy_noise() -> None:
    """Noise of 1,000 times the messages, six worlds."""
    trained = train(
        {"name": "quantity_gaussian", "params": {"rows": 250, "test_rows": 50}}, seeds=6,
        epochs=2, defenses={"iso": 1000.0}, attacks=["message_completion"],
    )  # fmt: skip
    for question in QUESTIONS:
        found = []
        for seed, task in trained.tasks.items():
            view = trained.view("passive", seed=seed, of_label=question)
            found.append(measure(infer(view, "message_completion"), task.of_label(question).y))
        nothing(found, question)


@pytest.mark.slow
def test_nothing_is_found_where_the_labels_were_dealt_out_anew() -> None:
    """The training is told shuffled values, the truth and known rows are the true ones."""
    of = tasks(12)
    for s, task in of.items():
        assert task.values is not None
        order = torch.randperm(len(task.values), generator=rng(s))
        of[s] = replace(task, given=task.values[order])
    for question, pairs in told(of, 0.0).items():
        assert len(pairs) == 12
        nothing([v for v, _ in pairs], question)


@pytest.mark.slow
def test_an_undefended_residual_answers_every_question() -> None:
    for pairs in told(tasks(3), 0.0, 8).values():
        assert np.mean([v for v, _ in pairs]) > 0.85
        assert np.mean([v - c for v, c in pairs]) > 0.15


def test_controls_of_a_question_are_named_by_how_well_the_value_is_told() -> None:
    """20 rows hold 5 of a tenth, which name nothing; own columns that tell the value answer it."""
    values = torch.randn(400, generator=rng(), dtype=torch.float64)
    noise = torch.randn(400, 3, generator=rng(1))
    best = []
    own = noise[:, :1]
    for columns in (own, own + values.unsqueeze(1).float()):
        view, y = asking(LARGEST, values, noise)
        (found,) = controls_for(
            zero_pattern(), [replace(view, columns={view.party: columns})], [rng()]
        )
        cv = {c.name: c.cv for c in found}
        assert cv["majority"] == 0.0
        assert {n for n in cv if not math.isnan(cv[n])} == {
            "majority", *(f"value, {n}" for n in ("linear", "network", "trees", "principal")),
        }  # fmt: skip
        best.append(max((c for c in found if not math.isnan(c.cv)), key=lambda c: c.cv))
    assert best[0].cv < 0.2
    assert best[1].cv > 0.3
    assert measure(best[1].guess, y) > 0.85
