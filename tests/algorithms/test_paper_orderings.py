"""What the source papers claim of their algorithms, in worlds where the claim has room.

Settings were chosen on worlds of the seeds 0 to 4 and 100 to 105; those of the seeds here had not
been drawn before the settings were fixed. Every ordering is a paired difference on test rows over
eight worlds with its 95 % interval (Student's t).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from by_hand import trained
from torch import Tensor

from vflsec.core.task import Stack
from vflsec.data.prepare import make_task
from vflsec.plugins import registry
from vflsec.train.loop import compute_auc, predict

pytestmark = [pytest.mark.slow, pytest.mark.long]

SEEDS = tuple(range(10, 18))
STUDENT = 2.365
"""97.5 % quantile of Student's t with seven degrees of freedom."""

OPTIONS: dict[str, dict[str, Any]] = {
    "two_views": {"aligned": 0.4, "labelled": 100},
    "imitation": {"aligned": 1200},
}
NET: dict[str, dict[str, Any]] = {
    "two_views": {"hidden": (64,), "cut": 64, "batch_size": 64, "epochs": 40, "patience": 10},
    "imitation": {"epochs": 100, "patience": 30, "lr": 3e-3},
}
PRETRAINING: dict[str, Any] = {
    "projector_hidden": 64, "projector_out": 64, "predictor_hidden": 16,
    "pretrain_iterations": 15, "pretrain_batch_size": 128, "pretrain_lr": 0.2,
}  # fmt: skip


@cache
def stack(world: str) -> Stack:
    made = registry.datasets.create(world, {})
    tasks = {s: make_task(made.load(s), s, **OPTIONS[world]) for s in SEEDS}
    return Stack.build(tasks, list(SEEDS))


@cache
def utility(world: str, algorithm: str, settings: tuple[tuple[str, Any], ...]) -> Tensor:
    """Accuracy (two_views) or AUC (imitation) on test rows by seed, (8,)."""
    made = registry.algorithms.create(algorithm, {**NET[world], **dict(settings)})
    fed = trained(made, stack(world), list(SEEDS))
    rows = fed.stack.rows("test")
    logits = predict(made, fed, rows)
    truth = torch.stack([t.y for t in fed.stack.tasks]).gather(1, rows)
    if world == "two_views":
        return (logits.argmax(2) == truth).double().mean(1)
    return compute_auc(logits[..., 1] - logits[..., 0], truth)


def found(world: str, algorithm: str, **settings: Any) -> Tensor:
    return utility(world, algorithm, tuple(sorted(settings.items())))


def interval(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean of a - b over seeds."""
    d = a - b
    mean, half = float(d.mean()), STUDENT * float(d.std()) / len(d) ** 0.5
    return mean - half, mean + half


VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedSplitNN": ("splitnn", {}),
    "FedLocalSSL": ("fedlocal_ssl", PRETRAINING),
    "FedCSSL": ("fedcssl", PRETRAINING),
    "FedHSSL": ("fedhssl", PRETRAINING),
}
STUDENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Local": ("local", {"own_labels": True}),
    "teacher": ("splitnn", {}),
    "FPD": ("fpd", {"alpha": 0.1, "student_epochs": 100}),
    "FPD, beta 1": ("fpd", {"alpha": 0.1, "beta": 1.0, "student_epochs": 100}),
    "FPD, no teacher": ("fpd", {"alpha": 1.0, "student_epochs": 100}),
    "JPL": ("jpl", {"student_epochs": 100}),
}


def of(name: str) -> Tensor:
    world = "two_views" if name in VIEWS else "imitation"
    algorithm, settings = (VIEWS | STUDENTS)[name]
    return utility(world, algorithm, tuple(sorted(settings.items())))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("FedCSSL", "FedSplitNN"), ("FedHSSL", "FedSplitNN"), ("FedHSSL", "FedLocalSSL"),
        ("teacher", "Local"), ("FPD", "Local"), ("FPD", "FPD, beta 1"), ("JPL", "FPD, beta 1"),
        ("JPL", "Local"),
    ],
)  # fmt: skip
def test_the_ordering_holds(better: str, worse: str) -> None:
    """Measured, in this order: +0.045 [0.029, 0.061], +0.034 [0.019, 0.050], +0.076 [0.053, 0.099]
    accuracy; +0.047 [0.038, 0.056], +0.013 [0.008, 0.018], +0.021 [0.009, 0.034], +0.015
    [0.006, 0.024] AUC; JPL - Local is above 0.006.

    On the seeds 0 to 4 FedHSSL - FedSplitNN was +0.029 [-0.002, 0.059] and, with a patience of 10
    epochs, FPD - Local +0.011 [-0.001, 0.023].
    """
    assert interval(of(better), of(worse))[0] > 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("FedHSSL", "FedCSSL"), ("JPL", "FPD"), ("FPD, beta 1", "Local"),
        ("FPD, no teacher", "Local"),
    ],
)  # fmt: skip
def test_no_difference_is_told_apart(one: str, other: str) -> None:
    """Measured, in this order: -0.011 [-0.028, 0.007] accuracy; -0.006 [-0.015, 0.002] (with a
    ranking of 1, where it is 0.1 here), -0.009 [-0.024, 0.007], -0.003 [-0.013, 0.006] AUC.

    The first two are orderings that the papers claim, and these worlds do not show them; a change
    that makes one of them clear, either way, should be noticed. The last is a null: without its
    teacher FPD has nothing that Local has not.
    """
    low, high = interval(of(one), of(other))
    assert low < 0 < high
