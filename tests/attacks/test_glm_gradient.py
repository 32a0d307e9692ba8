"""A party's own gradient in a linear model: known answers, the null, and what it does not need."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from vflsec.algorithms.vertical_glm import COORDINATOR
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.label import Counts, Quantity
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.train.views import make_view

NEEDED = ("model_gradient", "ids", "derivative")


@cache
def cancer(seed: int = 0) -> Task:
    """Breast cancer: the active party has the first 10 of 30 columns; all rows are trained on.

    Its first 31 rows stand there again as test rows.
    """
    x, y = load_breast_cancer(return_X_y=True)
    at = np.arange(600) % 569
    x, y = ((x - x.mean(0)) / x.std(0)).astype(np.float32)[at], y[at]
    task = small_task(seed, n=600, widths=(10, 20))
    every, again = torch.arange(569), torch.arange(569, 600)
    return replace(
        task, x={"active": torch.from_numpy(x[:, :10]), "passive1": torch.from_numpy(x[:, 10:])},
        y=torch.from_numpy(y),
        sets={**task.sets, "labelled": every, "aligned": every, "validation": again, "test": again},
    )  # fmt: skip


def look(task: Task, *who: str, known: int = 0, **params: Any) -> View:
    """What a party, or several, have of one training on a task."""
    who = who or ("passive1",)
    algorithm = registry.algorithms.create("vertical_glm", {"epochs": 2, **params})
    wanted = [(p, "received", kind, "all") for p in who for kind in NEEDED]
    trained = train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], wanted=wanted)
    spec = AttackSpec("glm_gradient", adversary=who, known_rows=known)
    return make_view(algorithm, trained.fed, {}, spec, 0)


def attack(view: View) -> Any:
    return registry.attacks.create("glm_gradient").infer(view, torch.Generator())


def share_right(guess: Any, task: Task) -> float:
    y = task.y[torch.from_numpy(guess.rows)].numpy()
    return float(((guess.scores > 0) == (y == 1)).mean())


@pytest.mark.parametrize("batch", [8, 16, 20])
def test_batches_up_to_its_columns_name_every_label(batch: int) -> None:
    guess = attack(look(cancer(), batch_size=batch, rate=0.001))
    assert len(guess.rows) == 569
    assert share_right(guess, cancer()) == 1.0
    batches = -(-569 // batch)
    assert guess.notes == {"batches": batches, "no_larger_than_columns": batches}


@pytest.mark.parametrize(("batch", "right"), [(24, 1.0), (64, 0.981), (0, 0.972)])
def test_larger_batches_name_most(batch: int, right: float) -> None:
    """0.627 are of the larger class. The whole batch has one answer, 553 of 569 rows."""
    found = share_right(attack(look(cancer(), batch_size=batch, rate=0.001)), cancer())
    assert found == pytest.approx(right, abs=5e-4 if batch == 0 else 0.01)


def test_long_steps_hide_nothing() -> None:
    """Scores of the other parties shift what is read; order and nearly all signs stay."""
    guess = attack(look(cancer(), batch_size=20))
    y = cancer().y[torch.from_numpy(guess.rows)].numpy()
    assert roc_auc_score(y, guess.scores) > 0.999
    assert share_right(guess, cancer()) > 0.99


def test_a_whole_batch_gives_the_least_squares_fit_to_all_labels() -> None:
    task = cancer()
    guess = attack(look(task, batch_size=0))
    x, y = task.x["passive1"].double().numpy()[:569], task.y.numpy()[:569] - 0.5
    fitted = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert np.allclose(guess.scores, fitted, atol=1e-9)


def test_columns_that_say_nothing_hide_labels_in_large_batches_alone() -> None:
    task = small_task(0, n=2000, widths=(4, 6))
    noise = torch.randn(2000, 6, generator=torch.Generator().manual_seed(1))
    task = replace(task, x={**task.x, "passive1": noise})
    auc = {}
    for batch in (6, 0):
        guess = attack(look(task, batch_size=batch, rate=0.01))
        auc[batch] = roc_auc_score(task.y[torch.from_numpy(guess.rows)], guess.scores)
    assert auc[6] == 1.0
    assert auc[0] < 0.6


def test_it_needs_no_label_no_answer_and_one_pass() -> None:
    """The same guess without known labels, prior and columns of others, after one epoch or five."""
    task = cancer()
    one, five = (attack(look(task, batch_size=32, epochs=e)) for e in (1, 5))
    assert np.array_equal(one.scores, five.scores)
    known = attack(look(task, batch_size=32, known=20))
    here = np.isin(one.rows, known.rows)
    assert here.sum() == 549
    assert np.array_equal(one.scores[here], known.scores)
    bare = replace(look(task, batch_size=32), prior=None, known=None)
    assert np.array_equal(attack(bare).scores, one.scores)


def test_without_the_rate_scores_are_taken_as_0() -> None:
    view = look(cancer(), batch_size=20, rate=0.01)
    told, bare = attack(view), attack(replace(view, facts=replace(view.facts, extra={})))
    assert not np.array_equal(told.scores, bare.scores)
    assert share_right(bare, cancer()) > 0.98


def test_two_parties_together_have_all_their_columns() -> None:
    task = small_task(0, widths=(4, 3, 5))
    alone = attack(look(task, "passive2", batch_size=8, rate=0.01))
    both = attack(look(task, "passive1", "passive2", batch_size=8, rate=0.01))
    assert share_right(both, task) == 1.0
    assert share_right(alone, task) < 1.0


def test_several_classes_have_a_column_each() -> None:
    task = small_task(0, classes=4, widths=(5, 6))
    guess = attack(look(task, batch_size=6, rate=0.01))
    y = task.y[torch.from_numpy(guess.rows)].numpy()
    assert guess.scores.shape == (len(y), 4)
    assert (guess.scores.argmax(1) == y).all()


@pytest.mark.parametrize(("label", "shift"), [(Quantity(), 0.0), (Counts(), 1.0)])
def test_a_number_is_read_but_for_a_constant(label: Any, shift: float) -> None:
    task = small_task(0)
    values = torch.randint(0, 5, (len(task.y),), generator=torch.Generator().manual_seed(0))
    task = replace(task, label=label, values=values.double(), y=torch.zeros_like(task.y))
    guess = attack(look(task, batch_size=6, rate=1e-9))
    assert np.allclose(guess.scores + shift, values[torch.from_numpy(guess.rows)], atol=1e-5)


def by_batch(task: Task, view: View) -> dict[int, np.ndarray]:
    """Labels of the rows of each batch."""
    ids = view.received("ids", "all", view.adversary[0])
    return {int(s): task.y[ids.rows[ids.step == s]].numpy() for s in ids.step.unique()}


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_the_coordinator_alone_learns_the_mean_label_of_each_batch(batch: int) -> None:
    """Of rows by themselves their labels; of more, an AUC that is counted out here."""
    task = small_task(0)
    view = look(task, COORDINATOR, batch_size=batch, rate=1e-9, coordinator_knows="rows")
    assert view.columns[COORDINATOR].shape == (len(task.y), 0)
    guess = attack(view)
    ids = view.received("ids", "all", COORDINATOR)
    share = {
        int(i): y.mean() - 0.5
        for s, y in by_batch(task, view).items() for i in ids.rows[ids.step == s]
    }  # fmt: skip
    assert np.allclose(guess.scores, [share[i] for i in guess.rows], atol=1e-6)
    auc = roc_auc_score(task.y[torch.from_numpy(guess.rows)], guess.scores.round(6))
    assert auc == 1.0 if batch == 1 else 0.5 < auc < 1.0


@pytest.mark.parametrize("batch", [64, 0])
def test_with_the_coordinators_key_a_party_reads_every_label(batch: int) -> None:
    """Of batches of any size, in which its own columns alone name 97 or 98 in 100."""
    task, settings = cancer(), {"batch_size": batch, "rate": 1e-6}
    both = attack(look(task, COORDINATOR, "passive1", **settings))
    y = task.y[torch.from_numpy(both.rows)].numpy()
    assert np.abs(both.scores - (y - 0.5)).max() < 1e-3
    alone = look(task, "passive1", **settings)
    assert ("received", "derivative", "all", "passive1") not in alone.tables
    assert share_right(attack(alone), task) < 1.0


def test_without_rows_the_coordinator_alone_is_not_asked() -> None:
    assert ("received", "ids", "all", COORDINATOR) not in look(cancer(), COORDINATOR).tables
