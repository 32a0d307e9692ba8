"""A PASS that says nothing of a system that works carries a plain warning."""

from __future__ import annotations

from typing import Any

import pytest
from gate_rows import one, rows, task
from printed import next_steps

from vflsec.audit.gate import Gate, Verdict
from vflsec.engine.run import run_audit
from vflsec.report.tree import StepKind

RISING = (0.0, 0.001, 0.002)


def verdict(utility: tuple[float, ...], gate: Gate) -> Verdict:
    """Of an attack that is alive and 0.01 above its control, in a system of that utility."""
    return one([*task(0.0, utility), *rows(0.01, RISING, attack="norm")], gate)


@pytest.mark.parametrize(
    ("utility", "said"),
    [
        ((0.50, 0.49, 0.52), "auc 0.50, guessing 0.50"),
        ((0.50, 0.95, 0.60), "auc 0.68, guessing 0.50"),  # not shown: its bound is below
        ((0.70, 0.72, 0.74), ""),
    ],
)
def test_nothing_leaks_from_a_system_that_learned_nothing(
    utility: tuple[float, ...], said: str
) -> None:
    found = verdict(utility, Gate(max=0.1))
    assert found.verdict == "PASS"
    assert said in found.warning
    assert found.warnings == ("model_at_chance",) * bool(said)


@pytest.mark.parametrize(("limit", "warns"), [(0.3, True), (0.5, True), (0.51, False)])
def test_a_limit_that_guessing_meets_asks_for_nothing(limit: float, warns: bool) -> None:
    found = verdict((0.70, 0.72, 0.74), Gate("utility", min=limit))
    assert (found.verdict, found.warnings) == ("PASS", ("limit_at_chance",) * warns)
    assert ("auc 0.5" in found.warning) == warns
    assert verdict((0.70, 0.72, 0.74), Gate("utility_drop", max=0.1)).warning == ""


@pytest.fixture(scope="module")
def null_world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    small = {"rows": 300, "test_rows": 300, "validation_rows": 60, "d_passive": 6, "d_active": 4}
    audit = run_audit(
        {
            "data": {"name": "control_gaussian", "params": small, "shuffle_labels": True},
            "algorithm": {"name": "splitnn", "epochs": 2, "hidden": [8], "cut": 4, "lr": 0.01},
            "attack": [{"name": "norm"}],
            "audit": {"seeds": 3, "references": [], "positive_control": False},
            "gate": [{"max": 0.4}],
        },
        tmp_path_factory.mktemp("null"),
    )
    return audit.summary


@pytest.mark.slow
def test_permuted_labels_are_said(null_world: dict[str, Any]) -> None:
    """The null world, left in a scenario by mistake, passed every gate without a word."""
    assert any(n.startswith("control_gaussian: shuffle_labels") for n in null_world["notes"])


@pytest.mark.parametrize(
    ("warning", "cures"),
    [("insensitive", True), ("question_underpowered", True), ("model_at_chance", False)],
)
def test_seeds_are_a_cure_for_unfound_leaks_alone(
    null_world: dict[str, Any], warning: str, cures: bool
) -> None:
    gate = {**null_world["gates"][0], "verdict": "PASS", "warnings": [warning], "more_seeds": None}
    summary = {**null_world, "gates": [gate], "exit_code": 0}
    assert (StepKind.UNDETECTED in {step.kind for step in next_steps(summary)}) == cures


@pytest.mark.parametrize(("limit", "found"), [(3.0, "PASS"), (1.0, "FAIL")])
def test_a_measured_epsilon_within_a_limit_is_no_bound(limit: float, found: str) -> None:
    """gradperturb at epsilon 40 passed a maximum of 3: canaries measure 2.4 of it at most."""
    seen = task(2.4, (0.0, 0.01, 0.02), metric="epsilon_lower", target="claim", chance=None,
                defense="gradperturb", strength=0.1)  # fmt: skip
    v = one(seen, Gate("epsilon_lower", max=limit), {})
    assert v.verdict == found
    assert v.gate.label == f"epsilon_lower <= {limit:g}"
    assert v.reason.startswith("The epsilon_lower is 2.410 over 3 seeds")
    assert v.warnings == ("lower_bound_only",) * (found == "PASS")


def test_an_attack_beside_a_measured_epsilon_and_no_main_task_is_judged() -> None:
    """As of a recorded trace, which has no utility."""
    seen = task(0.4, (0.0,) * 3, metric="epsilon_lower", target="claim", chance=0.1)
    v = one([*seen, *rows(0.01, RISING, attack="norm")], Gate(max=0.1))
    assert (v.verdict, v.warning) == ("PASS", ""), v.reason


@pytest.mark.parametrize(
    ("of", "limit", "said"),
    [("accuracy", 0.05, "the baseline of norm (majority) leaves at most 0.020 of accuracy to gain"),
     ("accuracy", 0.015, ""), ("auc", 0.45, "")],
)  # fmt: skip
def test_at_few_positives_accuracy_cannot_rise_by_the_limit(
    of: str, limit: float, said: str
) -> None:
    """Of 2 % every one is named (AUC 0.9), and accuracy rises from 0.98 to 0.99."""
    most = {"majority": {"value": 0.98, "cv": None}}
    seen = rows(0.4, RISING, attack="norm", primary="auc") + rows(
        0.489, RISING, attack="norm", primary="auc", metric="accuracy", chance=0.98, controls=most
    )
    v = one(seen, Gate(max=limit, of=of))
    found = ("INCONCLUSIVE", "no_room", "auc") if said else ("PASS", "within", "")
    assert (v.verdict, v.rule, v.detail) == found
    assert said in v.reason
    assert ('of = "auc" would decide' in v.reason) == bool(said)


def test_where_a_control_ranks_the_labels_no_metric_has_room() -> None:
    """Own columns tell the label (AUC 0.98, accuracy 0.93): only counted people would decide."""
    seen = [
        r
        for metric, value in (("accuracy", 0.93), ("auc", 0.98))
        for r in rows(value - 0.5, RISING, attack="norm", primary="auc", metric=metric,
                      controls={"logistic": {"value": value, "cv": 0.9}})
    ]  # fmt: skip
    v = one(seen, Gate(max=0.1, of="accuracy"))
    assert (v.verdict, v.rule, v.detail) == ("INCONCLUSIVE", "no_room", "exposed")
    assert "at most 0.070 of accuracy to gain" in v.reason


@pytest.mark.parametrize(("utility", "warns"), [(0.5, True), (0.8, False)])
def test_where_nothing_was_learned_a_defense_costs_nothing(utility: float, warns: bool) -> None:
    """The undefended training stands at guessing, and every defense passed as free."""
    noise = (-0.01, 0.0, 0.01)
    seen = [r for x in (0.0, 5.0) for r in task(utility, noise, defense="iso", strength=x)]
    v = one(seen, Gate("utility_drop", max=0.1, strength=5.0), {})
    assert (v.verdict, v.warnings) == ("PASS", ("nothing_to_lose",) * warns)
