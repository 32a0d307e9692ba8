"""A training that diverged is no system: it has no figure, passes nothing, and ends no audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gate_rows import points_of, record, task_record

from vflsec.audit.gate import Gate, Rule
from vflsec.audit.judge import judge
from vflsec.audit.pareto_front import trials
from vflsec.audit.result_row import ResultRow
from vflsec.audit.tradeoff_curves import build_curves
from vflsec.engine import tune_search as module
from vflsec.engine.run import run_audit
from vflsec.epsilon.inserted_rows import _evidence, _Look

pytestmark = pytest.mark.usefixtures("no_reports")

DIVERGED = "the training diverged: its numbers are not finite"
SMALL = {"rows": 200, "test_rows": 100, "validation_rows": 50, "d_passive": 10, "d_active": 4}


def scenario(defense: list[dict[str, Any]], **algorithm: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "data": [{"name": "control_gaussian", "params": SMALL}],
        "algorithm": [
            {"name": "splitnn", "epochs": 2, "hidden": [8], "cut": 4, "lr": 0.01} | algorithm
        ],
        "defense": defense,
        "attack": [{"name": "model_completion"}],
        "audit": {"seeds": 3, "references": [], "positive_control": False},
        "gate": [
            {"metric": "advantage", "max": 0.4, "defense": "defended"},
            {"metric": "utility_drop", "max": 0.4, "defense": "defended"},
        ],
    }


def test_one_strength_that_diverges_ends_no_audit(tmp_path: Path) -> None:
    noise = {"name": "noise", "distribution": "gaussian", "strength": [0, 1e38]}
    audit = run_audit(scenario([noise], select=False), tmp_path)
    frame = audit.results
    main = frame[(frame["attack"] == "") & (frame["metric"] == "auc") & (frame["split"] == "test")]
    by = dict(iter(main.groupby("strength")))
    assert (by[0.0]["status"] == "ok").all()
    assert by[0.0]["value"].between(0, 1).all()
    assert by[1e38]["value"].isna().all()
    assert by[1e38]["reason"].tolist() == [DIVERGED] * 3
    assert [v.verdict for v in audit.verdicts] == ["INCONCLUSIVE"] * 2
    assert all("the training diverged" in v.reason for v in audit.verdicts)
    assert audit.exit_code == 3
    found = [c for c in audit.summary["curves"] if c["defense"].startswith("noise")]
    assert found
    assert [c["cap"] for c in found] == [None] * len(found), found
    assert any("failed on 3 seeds: the training diverged" in f for f in audit.findings)


def test_first_weights_that_are_put_back_are_no_evidence(tmp_path: Path) -> None:
    """No epoch had a finite loss, so what is attacked was never trained; it leaked nothing."""
    spec = scenario([], optimizer="sgd", lr=1e30)
    spec["gate"] = [{"metric": "advantage", "max": 0.4}, {"metric": "utility", "min": 0.2}]
    audit = run_audit(spec, tmp_path)
    frame = audit.results
    attack = frame[(frame["attack"] != "") & (frame["status"] == "error")]
    assert attack["seed"].tolist() == [0, 1, 2]
    assert [v.verdict for v in audit.verdicts] == ["INCONCLUSIVE"] * 2
    assert audit.verdicts[0].rule == "failed_runs"
    assert f"3 seeds of model_completion failed ({DIVERGED})" in audit.verdicts[0].reason


def test_what_could_not_be_seen_is_no_failure_of_a_training_that_diverged(tmp_path: Path) -> None:
    """FALSE-VFL sends no gradient in its second phase; two rows said so under one identity."""
    spec = scenario([])
    spec |= {"algorithm": [{"name": "falsevfl", "epochs": 1, "pretrain_epochs": 1, "noise": 1e-30}]}
    spec |= {"attack": [{"name": "norm"}], "gate": []}
    frame = run_audit(spec, tmp_path, seeds=1).results
    found = frame[frame["attack"] != ""].set_index("phase")["status"]
    assert found.to_dict() == {"pretrain": "error", "train": "not-observable"}


def of(seed: int, attack: str, value: float | None, **extra: Any) -> ResultRow:
    """Of an attack, or of the task where it has no name."""
    made = record if attack else task_record
    return made(seed, value, n=500, **{"attack": attack, **extra})


def some_lost() -> list[ResultRow]:
    """Undefended 0.9; at strength 1 two of five trainings diverge, the others lose nothing."""
    out = []
    for s in range(5):
        wobble = 0.001 * s
        out += [of(s, "", 0.9 + wobble), of(s, "norm", 0.8 + wobble)]
        there = {"defense": "iso", "strength": 1.0}
        bad = s in (1, 3)
        out += [
            of(s, "", None if bad else 0.9 + wobble, **there),
            of(s, "norm", 0.5 + wobble, **there),
        ]
    return out


def test_what_survivors_cost_is_not_the_cost() -> None:
    summary = points_of(some_lost())
    (point,) = [p for p in summary if p.attack == "norm" and p.strength == 1]
    assert (point.utility.mean, point.failed_trainings) == (pytest.approx(0.902), 2)
    (verdict,) = judge(summary, [Gate("utility_drop", max=0.1, defense="iso")], {})
    assert (verdict.verdict, verdict.rule) == ("INCONCLUSIVE", "failed_runs")
    assert "2 seeds of auc failed (diverged)" in verdict.reason
    (curve,) = [c for c in build_curves(summary) if c.defense == "iso"]
    assert (curve.cap, curve.dcs) == (None, (None,))


def test_a_drop_against_some_seeds_alone_does_not_pass() -> None:
    """The undefended training diverged on two seeds, so that two drops are unknown."""
    turned = [
        replace(r, defense="none" if r.strength else "iso", strength=1.0 - r.strength)
        for r in some_lost()
    ]
    summary = points_of(turned)
    (verdict,) = judge(summary, [Gate("utility_drop", max=0.1, defense="iso")], {})
    assert (verdict.verdict, verdict.detail) == ("INCONCLUSIVE", "missing_seeds")
    assert verdict.n == 3
    assert [c.dcs for c in build_curves(summary) if c.defense == "iso"] == [(None,)]


def test_no_strength_is_chosen_at_which_something_failed() -> None:
    found = {t.strength: t for t in trials(points_of(some_lost()), Gate(max=0.05))}
    assert found[1.0].leak_high < 0.01
    broken = found[1.0].failed
    assert broken is not None
    assert (broken.rule, "2 seeds" in broken.reason) == (Rule.FAILED_RUNS, True)
    assert found[0.0].failed is None
    strength, reason = module._choose(list(found.values()), 0.05, 0.2)
    assert strength is None
    assert "At strength 1: Cannot pass: 2 seeds of auc failed (diverged)" in reason


def test_an_attack_that_failed_everywhere_is_no_gap_in_the_trials() -> None:
    lost = [of(s, "norm", None, defense="iso", strength=2.0, metric="", split="") for s in range(5)]
    found = {t.strength: t for t in trials(points_of([*some_lost(), *lost]), Gate(max=0.05))}
    broken = found[2.0].failed
    assert broken is not None
    assert (broken.rule, "5 seeds" in broken.reason) == (Rule.FAILED_RUNS, True)
    assert not found[2.0].meets(0.4)
    assert found[0.0].meets(0.4)


def test_the_canaries_of_a_training_that_diverged_tell_nothing() -> None:
    ways = torch.randn(40, 90, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ways[3] = torch.nan
    look = _Look(torch.zeros(1, 1), {}, {}, torch.ones(1))
    assert _evidence(torch.full((90,), torch.inf).double(), ways, ways, look).tolist() == [0.0] * 40
