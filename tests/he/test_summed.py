"""Batch label inference is what `he_gradient` leaves: known answer, null, and larger batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.he.summed import SummedGradient
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec

WORLD = {"rows": 240, "test_rows": 50, "validation_rows": 50, "d_passive": 12, "d_active": 6}
NET = {"hidden": [], "top": [], "linear_top": False, "aggregation": "sum", "epochs": 1}
SEEDS = (0, 1, 2)


def auc(batch: int, *, null: bool = False, mode: str = "emulated") -> list[float]:
    """AUC of batch label inference by the passive party on training rows, by seed."""
    made = registry.datasets.create("control_gaussian", WORLD)
    seeds = SEEDS if mode == "emulated" else SEEDS[:1]
    tasks = {s: make_task(made.load(s), s, shuffle_labels=null) for s in seeds}
    cells = [
        CellSpec(
            {"name": "control_gaussian"}, "splitnn", {**NET, "batch_size": batch},
            (DefenseSpec("he_gradient", {"mode": mode}),), s,
        )
        for s in seeds
    ]  # fmt: skip
    attack = AttackSpec("batch_inference", {}, ("passive",))
    found = run_cohort(cells, [attack], tasks, device="cpu")
    return [
        float(m.value)
        for r in found
        for m in r.measures
        if m.attack_key == attack.key and m.metric == "auc" and m.value is not None
    ]


def test_a_batch_no_wider_than_the_columns_gives_every_label() -> None:
    assert min(auc(8)) > 0.999


def test_labels_that_were_not_trained_on_are_not_found() -> None:
    """The null: the active party trains on permuted labels, the truth stays."""
    assert abs(np.mean(auc(8, null=True)) - 0.5) < 0.08  # 3 x 240 rows: 4 standard errors


def test_a_large_batch_hides_most_of_it() -> None:
    """Twelve columns and a bias are at most 13 equations for 120 rows."""
    large = auc(120)
    assert max(large) < 0.95
    assert min(large) > 0.5


@pytest.mark.slow
def test_real_ciphertexts_leave_the_same() -> None:
    pytest.importorskip("tenseal")
    assert auc(40, mode="real")[0] == pytest.approx(auc(40)[0], abs=1e-3)


def test_measured_seconds_are_added_up() -> None:
    pytest.importorskip("tenseal")
    from vflsec.he.layer import Settings

    rng = np.random.default_rng(0)
    spent: dict[str, float] = {"encrypt": 1.0}
    pair: Any = SummedGradient(0, "p", Settings())
    g, x = rng.normal(size=(6, 2)), rng.normal(size=(6, 3))
    total, _ = pair.run(g, x, spent)
    assert 1e-5 < np.abs(total[:-1] - x.T @ g).max() < 5 * 2.0**-12
    assert spent["encrypt"] > 1.0
    assert min(spent["multiply"], spent["decrypt"]) > 0
