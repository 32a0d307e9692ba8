"""Figures beside limits: a text says of a limit what the figure says."""

from __future__ import annotations

import re

import pytest
from gate_rows import one, rows

from vflsec.audit.gate import Gate
from vflsec.audit.rounding import show, show_both
from vflsec.epsilon.canary_bounds import Measured


@pytest.mark.parametrize(
    ("x", "limit", "spec", "said"),
    [
        (0.1004, 0.1, ".3f", "0.1004"),
        (0.0996, 0.1, ".3f", "0.0996"),
        (0.1, 0.1, ".3f", "0.100"),
        (0.1 - 1e-17, 0.1, ".3f", "0.100"),
        (0.1 + 1e-12, 0.1, ".3f", "0.100"),  # closer than what is added
        (0.12, 0.1, ".3f", "0.120"),
        (0.0304, 0.03, "+.2f", "+0.0304"),
        (-0.0001, 0.1, ".3f", "0.000"),
        (-0.0001, 0.0, "+.3f", "-0.0001"),
        (0.104, 0.1, ".2g", "0.104"),
        (0.096, 0.1, ".2g", "0.096"),
        (float("inf"), 0.1, ".2g", "inf"),
    ],
)
def test_a_figure_stands_on_its_side_of_the_limit(
    x: float, limit: float, spec: str, said: str
) -> None:
    assert show(x, limit, spec) == said


def test_a_limit_that_is_rounded_too_keeps_the_order() -> None:
    assert show_both(0.03462, 0.03458, "+.3f") == ("+0.03462", "0.03458")
    assert show_both(1.004, 1.0, ".3g", ".4g") == ("1.004", "1")
    assert show_both(0.05, 0.03) == ("0.050", "0.030")


def test_no_verdict_says_that_a_limit_is_above_itself() -> None:
    """A figure of 0.1004 failed a limit of 0.1 with "is 0.100 over 5 seeds, above 0.1"."""
    tight = (-1e-6, 0.0, 1e-6, 0.0, 0.0)
    failed = one(rows(0.1004, tight), Gate(max=0.1))
    assert failed.verdict == "FAIL"
    assert (
        failed.reason
        == "The advantage of direction is 0.1004 of AUC over 5 seeds, above 0.1 at 95%."
    )
    passed = one(rows(0.0996, tight), Gate(max=0.1))
    assert passed.verdict == "PASS"
    assert "is 0.0996 of AUC over 5 seeds, its upper bound 0.0996 within 0.1" in passed.reason


def test_what_would_have_been_found_is_not_rounded_to_the_limit() -> None:
    """0.104 and 0.1 were "only found a leak of 0.1 (direction), above the limit 0.1"."""
    found = one(rows(0.0, tuple(0.074 * x for x in (-1, 1, -1, 1, 0))), Gate(max=0.1))
    size = found.detectable["direction"]
    assert 0.1 < size < 0.105
    assert found.verdict == "PASS"
    shown = [float(x) for x in re.findall(r"(0\.\d+) of AUC \(direction\)", found.warning)]
    assert shown == [round(size, 3)]
    assert f"{shown[0]:g} of AUC (direction)" in found.reason


def test_confidence_is_not_rounded_up_to_certainty() -> None:
    """A gate at 99.5 % said "above 0.1 at 100%"."""
    failed = one(rows(0.4), Gate(max=0.1, confidence=0.995))
    assert failed.verdict == "FAIL"
    assert failed.reason.endswith("above 0.1 at 99.5%.")


def test_an_epsilon_that_contradicts_a_claim_is_larger_than_it() -> None:
    """1.004 contradicted 1 by "measured epsilon >= 1 ...: contradicts the claimed epsilon 1"."""
    said = Measured(epsilon=1.004, guesses=9, right=9, canaries=9, confidence=0.95, claimed=1.0)
    assert said.sentence() == (
        "measured epsilon >= 1.004 at 95% confidence: contradicts the claimed epsilon 1."
    )
