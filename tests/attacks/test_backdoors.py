"""Attacks on predictions: gradient replacement and replay."""

from __future__ import annotations

from typing import Any

import pytest
from cohorts import cohort
from sampled import sampled

from vflsec.audit.leakage import complete_rows, list_rows
from vflsec.specs import AttackSpec, CellResult
from vflsec.testing import small_task

TASKS = {s: small_task(s, n=600, signal=2.0) for s in (0, 1)}


def run(name: str, params: dict[str, Any], **spec: Any) -> list[CellResult]:
    attack = AttackSpec(name, params, ("passive1",), **spec)
    return cohort(attack, TASKS, epochs=12, batch_size=32)


@pytest.mark.parametrize(
    ("name", "params"), [("replay", {}), ("gradient_replacement", {"value": 6.0})]
)
@pytest.mark.parametrize("goal", sampled([1, 0]))
def test_predictions_are_turned_and_the_main_task_lives(
    name: str, params: dict[str, Any], goal: int
) -> None:
    for result in run(name, {"goal": goal, **params}):
        found = {m.metric: m for m in result.measures}
        rate, clean = found["success_rate"], found["clean_accuracy"]
        assert rate.value is not None
        assert clean.value is not None
        assert rate.value > rate.controls["clean"]["value"] + 0.3  # type: ignore[operator]
        assert clean.value > 0.75
        assert rate.target == "integrity"
        task = TASKS[result.spec.seed]
        assert rate.n == int((task.y[task.sets["test"]] != goal).sum())


def test_without_poisoned_rows_the_trigger_does_little() -> None:
    """The null of the backdoor: no row is trained with the trigger."""
    with_it = run("gradient_replacement", {"value": 6.0, "columns": 1})
    without = run("gradient_replacement", {"value": 6.0, "columns": 1, "share": 0.0})
    for a, b in zip(with_it, without):
        assert a.measures[0].value is not None
        assert b.measures[0].value is not None
        assert b.measures[0].value < a.measures[0].value - 0.2


def test_a_goal_that_is_no_class_is_not_applicable() -> None:
    (measure,) = run("replay", {"goal": 7})[0].measures
    assert (measure.status, measure.value) == ("not-applicable", None)
    assert "there are 2" in measure.reason


def test_the_figures_fit_the_results_table() -> None:
    rows = complete_rows(r for result in run("replay", {}) for r in list_rows(result))
    rate = [r for r in rows if r.metric == "success_rate"]
    assert rate
    assert all(r.advantage > 0.3 and r.control in ("clean", "chance") for r in rate)
