"""Impossible requests: listed with a reason before training, and never a number after it."""

from __future__ import annotations

from typing import Any

import pytest

from vflsec.config.scenario import load_scenario
from vflsec.engine.cohort import run_cohort
from vflsec.engine.dry_run import make_plan
from vflsec.specs import AttackSpec, CellSpec
from vflsec.testing import small_task

pytestmark = pytest.mark.usefixtures("no_reports")

SUMMED: dict[str, Any] = {"top": [], "linear_top": False, "aggregation": "sum"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    "norm on ten classes": (
        "digits", {}, {"name": "norm"}, "not-applicable", "two classes, got 10",
    ),
    "direct behind a trainable top": (
        "leaky", {}, {"name": "direct"}, "not-applicable", "summed logits",
    ),
    "batch inference without parameter gradients": (
        "leaky", {"name": "local", **SUMMED}, {"name": "batch_inference"}, "not-observable",
        "passive trains none under local",
    ),
    "batch inference behind a top": (
        "leaky", {}, {"name": "batch_inference"}, "not-applicable", "summed logits",
    ),
    "more known rows than exist": (
        "leaky", {}, {"name": "model_completion", "known_rows": 100_000}, "not-applicable",
        "known_rows must be < ",
    ),
    "all known rows there are": (
        "digits", {}, {"name": "similarity", "known_rows": 1078}, "not-applicable",
        "known_rows must be < 1078, the number of labelled training rows, got 1078",
    ),
    "more auxiliary rows than exist": (
        "leaky", {}, {"name": "embedding_inversion", "adversary": "active", "aux_rows": 100_000},
        "not-applicable", "known_rows + aux_rows must be < ",
    ),
    "unsplit behind hidden layers": (
        "leaky", {"top": [8]}, {"name": "unsplit"}, "not-applicable", "one linear top layer",
    ),
    "output where none is returned": (
        "leaky", {}, {"name": "output"}, "not-observable", "receives none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_plan_names_it_with_a_reason(case: str) -> None:
    data, algorithm, attack, status, reason = CASES[case]
    plan = make_plan(load_scenario(_sections(data, algorithm, attack), []))
    (refused,) = plan.refused
    assert refused.status == status
    assert reason in refused.reason
    assert sum(len(g.attacks) for g in plan.groups) == 0


def test_the_engine_refuses_too_where_no_plan_was_made() -> None:
    tasks = {s: small_task(s) for s in (0, 1)}
    n = len(tasks[0].sets["labelled"])
    cells = [CellSpec({"name": "s"}, "splitnn", {"epochs": 1}, seed=s) for s in tasks]
    attacks = [
        AttackSpec("spectral", adversary=("passive1",), known_rows=k) for k in (n, n - 1, 10**6)
    ]
    for result in run_cohort(cells, attacks, tasks, device="cpu", main=False):
        by = {a.key: [m for m in result.measures if m.attack_key == a.key] for a in attacks}
        for attack in (attacks[0], attacks[2]):
            assert [(m.status, m.value) for m in by[attack.key]] == [("not-applicable", None)]
        assert {m.status for m in by[attacks[1].key]} == {"ok"}


def _sections(data: str, algorithm: dict[str, Any], attack: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {"name": data},
        "algorithm": {"name": "splitnn", "epochs": 1, **algorithm},
        "attack": [attack],
        "audit": {"seeds": 2, "positive_control": False, "references": []},
    }
