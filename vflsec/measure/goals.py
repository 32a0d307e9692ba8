"""What an attack is scored against: labels, columns of other parties, or one attribute of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vflsec.attack import Attack
from vflsec.cell import AttackSpec
from vflsec.guess import Truth
from vflsec.measure.controls import Control, controls, feature_controls
from vflsec.task import Task
from vflsec.train.views import victims
from vflsec.view import View

__all__ = ["SCORED", "Goal", "controls_for", "goal_of"]

SCORED = ("label", "feature", "attribute")
"""Targets of attacks whose answers are compared with a truth."""


@dataclass(frozen=True)
class Goal:
    """The truth of one attack on one task, and what chance knows.

    `truth.target` is ``label`` (also for an attribute, whose classes it holds) or ``feature``.
    """

    truth: Truth
    classes: int
    prior: NDArray[np.float64]


def goal_of(attack: Attack, spec: AttackSpec, task: Task) -> Goal:
    """What `attack` is to be compared with."""
    rows = np.arange(len(task.y))
    if attack.target == "feature":
        parts = [task.schema[p].design(task.x[p]) for p in victims(spec, task)]
        truth = Truth("feature", rows, torch.cat(parts, dim=1).double().numpy())
        return Goal(truth, task.classes, task.prior.numpy())
    if attack.target == "attribute":
        (victim, *_) = victims(spec, task)
        column = str(getattr(attack, "column", ""))
        codes, classes = task.schema[victim].attribute(task.x[victim], column)
        train = torch.bincount(codes[task.sets["labelled"]], minlength=classes).double()
        return Goal(Truth("label", rows, codes), classes, (train / train.sum()).numpy())
    return Goal(Truth("label", rows, task.y), task.classes, task.prior.numpy())


def controls_for(
    attack: Attack,
    views: Sequence[View],
    rngs: Sequence[torch.Generator],
    alone: Sequence[nn.Module] = (),
) -> list[list[Control]]:
    """The controls of `attack` for each view: the same grants, and no message.

    `alone` gives the bottoms that adversaries could have trained without the federation.
    """
    if attack.target == "feature":
        return [feature_controls(v) for v in views]
    if attack.target == "attribute":
        column = str(getattr(attack, "column", ""))
        return controls([v.for_attribute(column) for v in views], rngs, alone)
    return controls(views, rngs, alone)
