"""Canaries that nobody tells apart: silence counts where the same ones are heard undefended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sampled import sampled

from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.run import run_audit
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec, Measure
from vflsec.testing import small_task

QUICK = {"epochs": 3, "patience": 0, "batch_size": 64, "hidden": [8], "cut": 4}


@pytest.mark.parametrize(
    ("algorithm", "verdict", "said"),
    [
        ("splitnn", "PASS", "epsilon of at least 0 (3.1"),
        ("local", "INCONCLUSIVE", "measures nothing above 0 here, nor without the defense."),
    ],
)
def test_a_claim_so_strong_that_nothing_is_found_can_pass(
    tmp_path: Path, algorithm: str, verdict: str, said: str
) -> None:
    """Epsilon 0.1 was inconclusive whatever was run, for nothing is found of it; 8 passed.

    At home labels are told by nothing that crosses: there silence is worth nothing.
    """
    made = run_audit(
        {
            "data": {"name": "leaky"},
            "algorithm": {"name": algorithm, "epochs": 3},
            "defense": [{"name": "label_dp", "epsilon": [0.1]}],
            "attack": [{"name": "norm", "known_rows": 0}] if algorithm == "splitnn" else [],
            "audit": {"seeds": 3, "references": [], "positive_control": False},
        },
        tmp_path,
    )
    (found,) = [v for v in made.verdicts if v.gate.metric == "epsilon_lower"]
    assert (found.verdict, found.value) == (verdict, 0.0)
    assert said in found.reason
    assert made.exit_code == (0 if verdict == "PASS" else 3)


def measures(
    name: str, strengths: list[float], params: dict[str, Any], party: str
) -> list[Measure]:
    """Of the last of the strengths, by seed."""
    tasks = {s: small_task(s, n=300) for s in (0, 1)}
    cells = [
        CellSpec({"name": "w"}, "splitnn", QUICK, (DefenseSpec(name, params, party, x),), s)
        for x in strengths
        for s in tasks
    ]
    results = run_cohort(cells, [], tasks, device="cpu")[-2:]
    return [m for r in results for m in r.measures if m.metric == "epsilon_lower"]


@pytest.mark.parametrize(
    ("name", "params", "party", "strength"),
    [
        ("label_dp", {}, "", 20.0),
        ("noise", {"clip": 0.05}, "", 500.0),
        ("embedding_noise", {}, "", 500.0),
        ("dpsgd", {}, "all", 500.0),
        ("dpsgd", {"accountant": "rdp"}, "all", 500.0),
    ],
)
def test_what_is_heard_without_the_defense_is_of_the_cell_alone(
    name: str, params: dict[str, Any], party: str, strength: float
) -> None:
    """The same bound whether the undefended training stands in the cohort or is made for this."""
    alone = measures(name, [strength], params, party)
    beside = measures(name, [0.0, strength], params, party)
    assert [m.notes for m in alone] == [m.notes for m in beside]
    assert len(alone) == 2
    silent = [m for m in alone if m.value == 0]
    assert silent
    assert all(m.notes["undefended"] > 0.3 for m in silent)
    assert not any("undefended" in m.notes for m in alone if m.value)


def test_dpsgd_at_its_hook_alone_is_heard_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vflsec.epsilon.measured_claims.fits", lambda *_: False)
    one, other = measures("dpsgd", [500.0], {}, "all")
    for found in (one, other):
        assert found.notes["canaries"] == "at its hook alone"
        assert found.value == 0
        assert found.notes["undefended"] > 4


@pytest.mark.parametrize("kind", ["quantity_gaussian", "several_gaussian"])
@pytest.mark.parametrize(
    ("name", "params", "party", "strength"),
    sampled(
        [
            ("dpsgd", {}, "all", 500.0),
            ("noise", {"clip": 1.0}, "", 500.0),
            ("ppdl", {}, "", 500.0),
            ("dpsgd", {"accountant": "rdp"}, "all", 500.0),
        ]
    ),
)
def test_claims_about_other_labels_than_classes_are_tested(
    kind: str, name: str, params: dict[str, Any], party: str, strength: float
) -> None:
    """A label owner with a quantity or several labels had no defense that claims anything.

    Without the defense its canaries are told: values three deviations apart, all labels or none.
    """
    source = registry.datasets.create(kind, {"rows": 600, "test_rows": 50}).load(0)
    tasks = {s: make_task(source, s) for s in (0, 1)}
    made = (DefenseSpec(name, params, party, strength),)
    cells = [CellSpec({"name": "w"}, "splitnn", QUICK, made, s) for s in tasks]
    for result in run_cohort(cells, [], tasks, device="cpu"):
        (claim,) = result.guarantees
        (found,) = [m for m in result.measures if m.metric == "epsilon_lower"]
        assert claim["epsilon"] is not None
        assert found.value is not None
        assert found.value <= claim["epsilon"]
        assert found.value > 0 or found.notes["undefended"] > 0.3
