"""An attack that chooses its question has the same controls by name on every seed."""

from __future__ import annotations

import math

import numpy as np

from vflsec.core.guess import Guess
from vflsec.measure.controls import Control, name_alike


def control(name: str, cv: float = 0.7) -> Control:
    rows = np.arange(4)
    return Control(name, Guess("label", rows, np.full(4, float(len(name)))), cv)


def test_where_no_value_is_behind_the_question_the_learner_of_the_answer_stands_in() -> None:
    """A control with a figure on some seeds only let no gate on the attack pass."""
    answers = ["majority", "scratch", "logistic(C=0.1)", "logistic", "trees", "principal"]
    own = [control(n) for n in (*answers, "labelled, logistic", "labelled, trees")]
    plain = {c.name: c for c in name_alike(own)}
    of_values = ("linear", "network", "trees", "principal")
    ask = [control(n, math.nan) for n in answers]
    ask += [control(f"value, {way}{n}", 0.4) for way in ("", "labelled, ") for n in of_values]
    asked = {c.name: c for c in name_alike([*ask, *own[-2:]])}
    assert set(plain) == set(asked)
    same = {
        "value, linear": "logistic", "value, network": "scratch", "value, trees": "trees",
        "value, labelled, trees": "labelled, trees", "value, labelled, network": "scratch",
        "value, labelled, principal": "principal",
    }  # fmt: skip
    for name, like in same.items():
        assert plain[name].guess is plain[like].guess
        assert plain[name].cv == 0.7
        assert asked[name].cv == 0.4  # what is there stays


def test_of_an_attacker_without_columns_the_majority_stands_for_all() -> None:
    found = {c.name: c for c in name_alike([control("majority", 0.5)])}
    assert {c.guess.scores[0] for c in found.values()} == {8.0}
    assert len(found) == 5
