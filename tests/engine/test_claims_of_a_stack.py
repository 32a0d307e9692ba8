"""Claims of several defenses of one training: each is kept, measured and judged by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audited import quick

from vflsec.cli import main
from vflsec.engine.run import run_audit
from vflsec.epsilon.measured_claims import check_planned
from vflsec.specs import Claim, number_repeats

pytestmark = pytest.mark.usefixtures("no_reports")

STACKS: dict[str, tuple[list[dict[str, Any]], dict[str, float]]] = {
    "a label's and a row's": (
        [{"name": "label_dp", "strength": [0.25]}, {"name": "embedding_noise", "strength": [8.0]}],
        {" of label_dp": 4.0, " of embedding_noise": 1.993},
    ),
    "one defense twice": (
        [{"name": "label_dp", "strength": [0.25]}, {"name": "label_dp", "strength": [1.0]}],
        {" of label_dp": 4.0, " of label_dp #2": 1.0},
    ),
    "one alone": ([{"name": "label_dp", "strength": [0.25]}], {"": 4.0}),
}


@pytest.mark.parametrize("name", STACKS)
def test_an_audit_of_several_claims_judges_each(tmp_path: Path, name: str) -> None:
    """It ended in an internal error when the first cell was stored: two measures, one identity."""
    defenses, claims = STACKS[name]
    made = run_audit(quick(*defenses, gate=[{"metric": "epsilon_lower", "max": 1.5}]), tmp_path)
    (asked, *beside) = [v for v in made.verdicts if v.gate.metric == "epsilon_lower"]
    assert {v.gate.name: round(v.threshold, 3) for v in beside} == {
        f"claimed epsilon {epsilon:.4g}{whose} is not contradicted": epsilon
        for whose, epsilon in claims.items()
    }
    assert {v.verdict for v in beside} == {"PASS"}
    found = made.results[made.results.metric == "epsilon_lower"]
    assert len(found) == 3 * len(claims)
    assert found.target.nunique() == len(claims)
    # 2.2 of the label and nothing of the row are no 1.1 of both
    assert asked.verdict == ("PASS" if name == "one defense twice" else "FAIL")
    if asked.verdict == "FAIL":
        assert asked.value is not None
        assert asked.value > 2


def test_defenses_of_one_name_keep_their_own_plans() -> None:
    """Both were held to what was planned of the last, and the smaller epsilon to the larger."""
    assert number_repeats(["noise", "mid", "noise"]) == ["noise", "mid", "noise #2"]
    rows = [Claim("label", 1.0, releases=n, defense="noise") for n in (4, 8)]
    kept = check_planned(rows, {"noise": 4, "noise #2": 8})
    assert [(r.epsilon, r.planned) for r in kept] == [(1.0, 4), (1.0, 8)]
    assert [r.epsilon for r in check_planned(rows, {"noise": 4, "noise #2": 4})] == [1.0, None]


@pytest.mark.parametrize("later", ["alibi", "learned_prior", "coae"])
def test_class_shares_made_of_a_first_stage_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], later: str
) -> None:
    """The second stage ended in an internal error, after the first was trained."""
    path = tmp_path / "case.toml"
    path.write_text(
        f"""data.name = "leaky"
algorithm.name = "splitnn"
audit = {{seeds = 3, references = []}}
attack = [{{name = "norm"}}]
defense = [{{name = "lp_mst", strength = [0.25]}}, {{name = "{later}", strength = 0.5}}]
""",
        encoding="utf-8",
    )
    assert main.main(["check", str(path)]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert f"lp_mst: releases classes, and {later} makes shares" in err
