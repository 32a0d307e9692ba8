"""Yes/no questions about a quantity: their cuts, grants, and nulls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vflsec import registry
from vflsec.api import infer, train
from vflsec.attack import Attack
from vflsec.cell import QUESTIONS
from vflsec.data.prepare import make_task
from vflsec.errors import ConfigError
from vflsec.questions import answers
from vflsec.train.views import known_rows


def test_cuts_are_those_of_labelled_rows_and_ties_stay_together() -> None:
    values = torch.cat([torch.arange(100.0), torch.tensor([500.0, float("nan")])]).double()
    told = {q: answers(q, values, values, torch.arange(100)) for q in QUESTIONS}
    far, largest, smallest = (told[q] for q in QUESTIONS)
    assert far[:101].nonzero().squeeze(1).tolist() == [*range(25), *range(74, 101)]
    assert largest.nonzero().squeeze(1).tolist()[:3] == [90, 91, 92]
    assert smallest[:101].nonzero().squeeze(1).tolist() == list(range(10))
    assert all(int(t[101]) == -1 for t in told.values())
    tied = torch.tensor([0.0] * 70 + [1.0] * 30).double()
    assert int(answers("largest tenth", tied, tied, torch.arange(100)).sum()) == 30


def test_half_of_a_tail_at_most_is_granted() -> None:
    made = registry.datasets.create("quantity_gaussian", {"rows": 100, "test_rows": 50})
    task = make_task(made.load(0), 0).of_label("largest tenth")
    known = known_rows(task, 0, 20)
    there = int((task.y[task.sets["labelled"]] == 1).sum())
    assert there == 10
    assert int((known.labels == 1).sum()) == 5
    assert known.values is not None
    assert bool((known.values[known.labels == 1] > 1).all())
    with pytest.raises(ConfigError, match="the label must be one of"):
        make_task(made.load(0), 0).of_label("largest half")


def test_which_attacks_are_asked() -> None:
    of = {n: registry.attacks.get(n) for n in ("message_completion", "zero_pattern", "residual")}
    asked = {n: list(kind.each_label((), 1)) for n, kind in of.items()}  # type: ignore[attr-defined]
    assert asked == {
        "message_completion": ["", *QUESTIONS], "zero_pattern": list(QUESTIONS), "residual": [""],
    }  # fmt: skip
    assert Attack.each_label(()) == ("",)


@pytest.mark.parametrize("question", QUESTIONS)
def test_nothing_is_found_under_heavy_noise(question: str) -> None:
    """The mean over 20 worlds of an AUC that knows nothing; known rows are in no answer."""
    trained = train(
        {"name": "quantity_gaussian", "params": {"rows": 300, "test_rows": 50}}, seeds=20,
        epochs=3, defenses={"iso": 1000.0}, attacks=["message_completion"],
    )  # fmt: skip
    found = []
    for seed, whole in trained.tasks.items():
        view = trained.view("passive", seed=seed, of_label=question)
        guess = infer(view, "message_completion")
        y = whole.of_label(question).y[guess.rows].numpy() == 1
        assert not np.isin(guess.rows, view.require_known().rows.numpy()).any()
        s = guess.scores
        found.append(float((s[y][:, None] > s[~y][None]).mean()))
    assert abs(np.mean(found) - 0.5) < 3 * np.std(found, ddof=1) / np.sqrt(20)
