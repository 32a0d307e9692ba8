"""What a PASS says beside its figure."""

from __future__ import annotations

from typing import Any

import pytest
from gate_rows import one, rows

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.gate import Gate
from vflsec.audit.gate_candidate import Candidate
from vflsec.audit.point import Point


def test_where_controls_leave_no_room_nothing_passes() -> None:
    """A control at 0.96 by itself: nobody can gain 0.1, whatever the messages say."""

    def said(control: float, limit: float, verdict: str) -> str:
        own = {"controls": {"majority": {"value": control, "cv": None}}}
        found = one(rows(control + 0.01 - 0.5, **own), Gate(max=limit))
        assert found.verdict == verdict
        return found.reason

    assert (
        "The limit 0.1 decides nothing here: the baseline of direction (majority) leaves at most "
        "0.040 of AUC to gain. A gate with" in said(0.96, 0.1, "INCONCLUSIVE")
    )
    assert "to gain" not in said(0.8, 0.1, "PASS")
    assert "to gain" not in said(0.96, 0.03, "PASS")


def test_a_pass_says_where_a_single_training_leaked_more() -> None:
    """Nine trainings leak nothing and one 0.3: the mean is within the limit, and one is not."""
    found = one(rows(0.0, (0.3, *([0.01, -0.01] * 5)[:9])), Gate(max=0.1))
    assert found.verdict == "PASS"
    assert "; one seed reaches 0.300." in found.reason
    assert "one seed" not in one(rows(0.05), Gate(max=0.1)).reason
    two = {"own": {"value": 0.7, "cv": 0.7}, "majority": {"value": 0.5, "cv": None}}
    own = rows(0.1, (0.2, *([0.01, -0.01] * 5)[:9]), controls=two)  # 0.3 over one, 0.1 over all
    assert "one seed" not in one(own, Gate(max=0.11)).reason


@pytest.mark.parametrize(("advantage", "forecast"), [(0.09, True), (0.0999, False)])
def test_no_forecast_is_beyond_twenty_times_what_there_is(advantage: float, forecast: bool) -> None:
    """900 more seeds beside 5 are no advice."""
    lead = Candidate(
        Point(), Leakage((Against("own", 0.6, advantage, 0.02, 5),), "own"), 1, 0.1
    )  # fmt: skip
    assert (lead.seeds_until(0.05, 0.05) is not None) == forecast


def test_gates_that_ask_otherwise_are_called_otherwise() -> None:
    """Four gates had one name: JUnit showed a case four times, code scanning one alert for all."""
    asked: list[dict[str, Any]] = [
        {}, {"split": "test"}, {"split": "train"}, {"of": "accuracy"}, {"adversary": "bank"},
        {"phase": "train"}, {"confidence": 0.8}, {"detect": 0.05}, {"attack": "norm"},
        {"target": "label"},
    ]  # fmt: skip
    labels = [Gate(max=0.1, **keys).label for keys in asked]
    assert len({*labels}) == len(asked)
    assert labels[0] == "advantage of any attack <= 0.1"
    every = Gate(max=0.1, of="accuracy", adversary="bank", split="test", phase="train",
                 confidence=0.9, detect=0.05)  # fmt: skip
    assert every.label == (
        "advantage in accuracy of any attack by bank on test rows after train <= 0.1 at 90%, "
        "able to find 0.05"
    )
    assert Gate(metric="utility", min=0.6).label == "utility >= 0.6"
    assert Gate(max=0.1, split="test", name="mine").label == "mine"
