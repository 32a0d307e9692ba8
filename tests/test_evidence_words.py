"""The words of the evidence on few aligned rows follow from its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def words(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("few_overlap.words")


def found(words: Any, **utility: list[float]) -> dict[str, Any]:
    return {name: words.Found(values) for name, values in utility.items()}


@pytest.mark.parametrize(
    ("better", "worse", "equal", "word"),
    [
        ([0.8, 0.81, 0.82], [0.7, 0.72, 0.71], False, "confirmed"),
        ([0.7, 0.72, 0.71], [0.8, 0.81, 0.82], False, "refuted"),
        ([0.7, 0.9, 0.8], [0.8, 0.81, 0.82], False, "undecided"),
        ([0.7, 0.9, 0.8], [0.7, 0.9, 0.8], False, "the same"),
        ([0.800, 0.811, 0.820], [0.801, 0.810, 0.821], True, "confirmed"),
        ([0.8, 0.81, 0.82], [0.7, 0.72, 0.71], True, "refuted"),
        ([0.7, 0.9, 0.8], [0.8, 0.81, 0.82], True, "undecided"),
    ],
)
def test_a_claim_is_judged_by_its_paired_interval(
    words: Any, better: list[float], worse: list[float], equal: bool, word: str
) -> None:
    claim = words.Claim("a beats b", "", "a", "b", equal)
    assert words.judge(claim, found(words, a=better, b=worse))[1] == word


@pytest.mark.parametrize(
    ("at", "verdict"),
    [
        (["confirmed", "confirmed"], "confirmed"),
        (["confirmed", "undecided"], "confirmed in part"),
        (["refuted", "undecided"], "refuted in part"),
        (["refuted", "refuted"], "refuted"),
        (["refuted", "confirmed"], "mixed"),
        (["the same", "undecided"], "undecided"),
    ],
)
def test_a_claim_is_judged_over_all_worlds(words: Any, at: list[str], verdict: str) -> None:
    assert words.overall(at) == verdict
