"""Canaries that nobody tells apart: silence counts as far as more would have been heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audited import quick
from sampled import sampled

from vflsec.audit.gate import Rule
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.run import run_audit
from vflsec.epsilon.one_run_bound import Heard
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec, Measure
from vflsec.testing import small_task

pytestmark = pytest.mark.usefixtures("no_reports")

QUICK = {"epochs": 3, "patience": 0, "batch_size": 64, "hidden": [8], "cut": 4}


@pytest.mark.parametrize(
    ("epsilon", "verdict", "rule"),
    [(0.005, "INCONCLUSIVE", Rule.UNDERPOWERED), (0.1, "PASS", Rule.WITHIN),
     (12.0, "INCONCLUSIVE", Rule.UNDERPOWERED)],
)  # fmt: skip
def test_a_claim_passes_where_half_the_noise_would_have_been_found(
    tmp_path: Path, epsilon: float, verdict: str, rule: Rule
) -> None:
    """Released labels are guessed as often as epsilon lets them; some 200,000 coins are too few to
    tell 0.005 from 0.01, and 12 from 24.
    """
    made = run_audit(quick({"name": "label_dp", "epsilon": [epsilon]}), tmp_path)
    (found,) = [v for v in made.verdicts if v.gate.metric == "epsilon_lower"]
    assert (found.verdict, found.rule) == (verdict, rule)
    assert found.noise_found is not None
    assert (found.noise_found >= 0.5) == (verdict == "PASS")
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
    sampled([
        ("label_dp", {}, "", 20.0), ("noise", {"clip": 0.05}, "", 500.0),
        ("embedding_noise", {}, "", 500.0), ("dpsgd", {}, "all", 500.0),
        ("dpsgd", {"accountant": "rdp"}, "all", 500.0),
    ], every=2),
)  # fmt: skip
def test_what_is_measured_is_of_the_cell_alone(
    name: str, params: dict[str, Any], party: str, strength: float
) -> None:
    """The same bound and the same noise whatever stands beside it in the cohort."""
    alone = measures(name, [strength], params, party)
    beside = measures(name, [0.0, strength], params, party)
    assert [m.notes for m in alone] == [m.notes for m in beside]
    assert len(alone) == 2
    for m in alone:
        assert ("noise" in m.notes) != ("released" in m.notes)
        heard = m.notes.get("noise", {"numbers": 300})
        assert heard["numbers"] >= 300


def test_dpsgd_whose_steps_take_too_much_is_held_to_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vflsec.epsilon.inserted_rows.fits_in_memory", lambda *_: False)
    for found in measures("dpsgd", [2.0], {}, "all"):
        assert found.value == 0
        heard = Heard.read(found.notes["noise"])
        assert heard.numbers >= 1000
        assert min(heard.p.values()) > 1e-4


@pytest.mark.parametrize("kind", sampled(["quantity_gaussian", "several_gaussian"]))
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

    Its canaries are values three deviations apart, and all labels or none.
    """
    source = registry.datasets.create(kind, {"rows": 600, "test_rows": 50}).load(0)
    tasks = {s: make_task(source, s) for s in (0, 1)}
    made = (DefenseSpec(name, params, party, strength),)
    cells = [CellSpec({"name": "w"}, "splitnn", QUICK, made, s) for s in tasks]
    for result in run_cohort(cells, [], tasks, device="cpu"):
        (claim,) = result.guarantees
        (found,) = [m for m in result.measures if m.metric == "epsilon_lower"]
        assert claim.epsilon is not None
        assert found.value is not None
        assert found.value <= claim.epsilon
        assert ("noise" in found.notes) == (name != "ppdl")
