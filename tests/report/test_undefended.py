"""What is said of the run without a defense: what leaks there turned round, and gates on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from printed import above_appendix, advice, answers, claims, first_screen
from sampled import sampled

from vflsec.audit.intervals import holds_zero
from vflsec.audit.strength_grid import GridRow
from vflsec.report.tree import StepKind


def test_what_leaks_in_reverse_is_not_said_to_leak_nothing(tmp_path: Path) -> None:
    """Labels ranked at an AUC of 0.1 were "no leak" on the first screen and on the page to sign."""
    low = {"norm": -0.45, "model_completion": 0.0}
    found = audited(tmp_path / "a", Planted(low)).summary
    line = answers(found)["How much, to whom?"]
    point = next(p for p in found["points"] if p["attack"] == "norm" and p["strength"] == 0)
    assert point["mirrored"] == pytest.approx(0.355, abs=0.02)
    labels = "labels of bank to shop"
    assert claims(found)["reversed", labels, 0.0] == "significant"
    assert claims(found)["leakage", labels, 0.0] == "not_significant"
    assert f"{point['mirrored']:+.2f} of AUC [+0.3" in line
    assert "shop labels of bank Can infer it, once it knows which label is which" in above_appendix(
        found
    )
    both = audited(tmp_path / "b", Planted({**low, "model_completion": 0.3})).summary
    assert claims(both)["leakage", labels, 0.0] == "significant"
    assert f"{point['mirrored']:+.2f} of AUC" not in answers(both)["How much, to whom?"]
    noisy = audited(tmp_path / "c", Planted({**low, "norm": -0.2}, sd=0.12)).summary
    assert max(p["mirrored"] or 0.0 for p in noisy["points"]) > 0.05
    assert claims(noisy)["reversed", labels, 0.0] == "not_significant"  # of few seeds


@pytest.mark.parametrize(
    ("apart", "holds"),
    sampled(
        [
            ({"min": 0.05, "defense": "none", "attack": "norm"}, True),
            ({"metric": "utility", "min": 0.95, "defense": "none"}, False),
            ({"metric": "utility", "min": 0.8, "defense": "none"}, True),
        ],
        2,
    ),
)
def test_a_gate_on_the_undefended_run_is_no_gate_that_a_strength_meets(
    tmp_path: Path, apart: dict[str, Any], holds: bool
) -> None:
    """Beside a gate on what is defended, "the gate passes without a defense" was said of a leak of
    0.3 there, and strength 5 "passes every gate" where the other one fails.
    """
    gates = gate(**apart) + gate(max=0.1, defense="defended")
    leaky = audited(tmp_path / "leaky", Planted(LEAKY), gates).summary
    assert [(r["strength"], r["gates"], r["passed"]) for r in leaky["grid"]] == [(5.0, 2, holds)]
    assert not any(r["cheapest"] for r in leaky["grid"])
    assert advice.next_steps(leaky)[0].kind is StepKind.STRONGER
    sealed = audited(tmp_path / "sealed", Planted(LEAKY, SEALED), gates).summary
    (line, *_) = first_screen.describe_cheapest(sealed, "breast_cancer")
    assert ("passes every gate and costs 0.020" in line) == holds
    assert advice.next_steps(sealed)[0].kind is not StepKind.USE_POINT
    alone = audited(tmp_path / "alone", Planted(LEAKY, SEALED), gate(**apart)).summary
    assert [(r["strength"], r["gates"], r["passed"]) for r in alone["grid"]] == [(0.0, 1, holds)]


@pytest.mark.parametrize(
    ("low", "high", "open_"),
    [(0.01, 0.2, False), (-0.2, -0.01, False), (-0.1, 0.2, True), (None, None, False)],
)
def test_a_price_is_open_where_its_interval_holds_zero(
    low: float | None, high: float | None, open_: bool
) -> None:
    row = GridRow(utility_drop=0.05, utility_drop_low=low, utility_drop_high=high)
    assert holds_zero(low, high) == open_
    said = first_screen.format_price(row)
    assert said.endswith("of utility") == (not open_)
