"""The truth an attack is scored against: labels, columns of other parties, or one attribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.core.attack import Attack, describe_scoring
from vflsec.core.feature_schema import columns_of
from vflsec.core.guess import Guess, Truth
from vflsec.core.task import Task
from vflsec.specs import AttackSpec, list_victims

SCORED = ("label", "feature", "attribute", "membership", "property", "presence")
"""Targets of attacks whose answers are compared with a truth."""

ONE_COLUMN = ("attribute", "property")
"""Targets of which there is one column of one party."""

_INSIDE = {"membership": ("labelled",), "presence": ("aligned", "validation", "test")}
"""Sets of rows of which each target asks whether a row is in one."""

MEMBERSHIP = ("auc", "balanced_accuracy", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr")
"""Metrics of membership: a mean over records hides the few that are certain."""


@dataclass(frozen=True)
class Goal:
    """The truth of one attack on one task, and what chance knows.

    `truth.target` is ``label`` (also for an attribute, whose classes it holds, for membership: 1 if
    the row was trained on, and for presence: 1 if all parties have the row), ``value`` for a label
    that is a quantity, ``labels`` for several, ``feature``, or ``property``, whose mean is the
    share. `metrics` are those of the target, None for all. `column` is the one of the answer's that
    is compared, None for all.
    """

    truth: Truth
    classes: int
    prior: NDArray[np.float64]
    metrics: tuple[str, ...] | None = None
    column: int | None = None

    def select(self, guess: Guess) -> Guess:
        """What is compared of an answer, as a guess of this truth."""
        scores = guess.scores if self.column is None else guess.scores[:, [self.column]]
        return replace(guess, scores=scores, target=self.truth.target)


def choose_goal(
    attack: Attack, spec: AttackSpec, task: Task, guessed: NDArray[np.int64] | None = None
) -> Goal:
    """What `attack` is to be compared with; of columns that of the rows `guessed`, None for all."""
    rows = np.arange(len(task.y))
    if attack.target == "feature":
        at = rows if guessed is None else np.unique(guessed)
        whose = list_victims("feature", spec.adversary, task.parties, spec.victim)
        parts = [task.schema[p].design(task.x[p][at]) for p in whose]
        columns = columns_of(task.schema[p] for p in whose)
        truth = Truth("feature", at, torch.cat(parts, dim=1).double().numpy(), columns)
        return Goal(truth, task.classes, task.prior.numpy())
    if attack.target in ONE_COLUMN:
        whose = list_victims("feature", spec.adversary, task.parties, spec.victim)
        victim = with_columns(whose, task)
        x, labelled = task.x[victim], task.sets["labelled"]
        codes, classes = task.schema[victim].attribute(
            x, *describe_scoring(attack), cut=x[labelled]
        )
        if attack.target == "property":
            has = (codes == int(getattr(attack, "value", 1))).double()
            share = float(has[labelled].mean())
            truth = Truth("property", rows, has)
            return Goal(truth, 2, np.array([1 - share, share]), ("share_error",))
        train = torch.bincount(codes[labelled], minlength=classes).double()
        truth = Truth("label", rows, codes, people=task.people)
        return Goal(truth, classes, (train / train.sum()).numpy())
    if attack.target in _INSIDE:
        sets = [task.sets[k].numpy() for k in _INSIDE[attack.target]]
        inside = np.isin(rows, np.concatenate(sets)).astype(np.int64)
        return Goal(Truth("label", rows, inside), 2, np.array([0.5, 0.5]), MEMBERSHIP)
    return Goal(label_truth(task), task.classes, task.prior.numpy())


def with_columns(parties: Sequence[str], task: Task) -> str:
    """The first of these parties that has columns, else the first."""
    return next((p for p in parties if not task.schema[p].empty), parties[0])


def label_truth(task: Task) -> Truth:
    """The labels of all rows (N,), several of each (N, L), or values where it is a quantity."""
    rows = np.arange(len(task.y))
    return Truth(task.label.target, rows, task.truth, people=task.people)
