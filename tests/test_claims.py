"""What the package says of its own worlds, with seeds and intervals: leaks found, nulls calm."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from vflsec.audit.leakage import complete_rows, list_rows
from vflsec.audit.result_row import results_table
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec

pytestmark = pytest.mark.slow  # tests/conformance says the same of small worlds
ATTACKS = (
    AttackSpec("model_completion", adversary=("passive",)),
    AttackSpec("norm", adversary=("passive",)),
    AttackSpec("direction", {"positives": 5}, adversary=("passive",)),
)


@cache
def audit(name: str, strengths: tuple[float, ...], seeds: int, null: bool = False) -> pd.DataFrame:
    made = registry.datasets.create(name)
    tasks = {s: make_task(made.load(s), s, shuffle_labels=null) for s in range(seeds)}
    cells = [
        CellSpec({"name": name}, "splitnn", {"epochs": 15}, (DefenseSpec("iso", strength=x),), s)
        for x in strengths
        for s in range(seeds)
    ]
    results = run_cohort(cells, ATTACKS, tasks, device="cpu")
    rows = (r for result in results for r in list_rows(result))
    return results_table(complete_rows(rows))


def advantages(
    frame: pd.DataFrame, attack: str, split: str, strength: float, metric: str
) -> np.ndarray:
    at = frame[
        frame.attack.str.startswith(attack) & (frame.split == split)
        & (frame.strength == strength) & (frame.metric == metric) & (frame.status == "ok")
    ]  # fmt: skip
    return at.sort_values("seed").advantage.to_numpy(float)


def bounds(values: np.ndarray) -> tuple[float, float]:
    """One-sided 95 % bounds of the mean over seeds."""
    half = stats.t.ppf(0.95, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return values.mean() - half, values.mean() + half


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("metric", ["auc", "accuracy"])
def test_completion_finds_the_planted_leak(split: str, metric: str) -> None:
    undefended = advantages(
        audit("control_gaussian", (0.0, 25.0), 10), "model_completion", split, 0.0, metric
    )
    assert len(undefended) == 10
    assert bounds(undefended)[0] >= 0.08
    assert bounds(undefended[:5])[0] >= 0.08


@pytest.mark.parametrize("split", ["train", "test"])
def test_noise_of_25_leaves_completion_a_trace(split: str) -> None:
    """It does not stop a head that shrinks: AUC 0.055 (train) and 0.041 (test) above the strongest
    control remain, significantly above 0 and below 0.1.
    """
    frame = audit("control_gaussian", (0.0, 25.0), 10)
    for metric in ("auc", "accuracy"):
        low, high = bounds(advantages(frame, "model_completion", split, 25.0, metric))
        assert low > 0
        assert high <= 0.1


def test_noise_of_1_does_not_stop_direction() -> None:
    frame = audit("control_gaussian", (1.0,), 5)
    assert bounds(advantages(frame, "direction", "train", 1.0, "auc"))[0] >= 0.2


def test_nothing_is_found_where_nothing_leaks() -> None:
    """Ten sealed worlds with permuted training labels: every two-sided interval covers zero."""
    frame = audit("sealed", (0.0,), 10, null=True)
    for attack, split in [
        ("model_completion", "train"), ("model_completion", "test"), ("norm", "train"),
        ("direction", "train"),
    ]:  # fmt: skip
        values = advantages(frame, attack, split, 0.0, "auc")
        assert len(values) == 10
        low, high = bounds(values)
        assert low <= 0 <= high, f"{attack} on {split}: [{low:.3f}, {high:.3f}]"
