"""Questions about a quantity at a gate: they may fail it, and keep it open where they can pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gate_rows import SHOWN, one, rows

from vflsec.audit.gate import Gate
from vflsec.audit.point import Point
from vflsec.audit.result_row import ResultRow
from vflsec.audit.underpowered import Unanswered, explain_unanswered, find_unanswered
from vflsec.audit.validated import Validation

ASKED = "message_completion(question=largest tenth)"
FAR = "message_completion(question=far from the median)"
VALUE = "message_completion"
NOISE = (0.15, -0.2, 0.1, -0.1, 0.05)
"""Of mean 0: its upper bound at five seeds is 0.14."""


def value() -> list[ResultRow]:
    return rows(0.0, attack=VALUE, n=200, metric="concordance")


def asked(mean: float, noise: Any = NOISE, label: str = ASKED, n: int = 200) -> Any:
    question = label.partition("=")[2].rstrip(")")
    return rows(mean, noise, attack=label, of_label=question, n=n)


def test_a_question_that_few_rows_cannot_answer_keeps_no_gate_open() -> None:
    """20 of 200 rows are in a tenth, of which five seeds promise bounds 0.09 away; limit 0.1."""
    verdict = one([*value(), *asked(0.0)], Gate(max=0.1))
    assert (verdict.verdict, verdict.attack) == ("PASS", VALUE)
    assert (verdict.rule, verdict.warnings) == ("within", ("question_underpowered",))
    assert verdict.warning.endswith(
        "5 seeds of 200 rows for values in the largest tenth (message_completion); add seeds (13) "
        "or rows"
    )
    assert verdict.more_seeds == 8
    assert "5 seeds of 200 rows" in verdict.reason
    wide = one([*value(), *asked(0.0, n=400)], Gate(max=0.2))
    assert wide.verdict == "PASS"
    assert ASKED in wide.detectable
    many = one([*value(), *asked(0.0, n=2000)], Gate(max=0.1))
    assert (many.verdict, many.attack) == ("INCONCLUSIVE", ASKED)
    half = one([*value(), *asked(0.0, label=FAR, n=400)], Gate(max=0.1))
    assert (half.verdict, half.attack) == ("INCONCLUSIVE", FAR)


def test_it_fails_a_gate_on_as_few_rows() -> None:
    verdict = one([*value(), *asked(0.4, (0.02, -0.02, 0.0, 0.01, -0.01))], Gate(max=0.1))
    assert (verdict.verdict, verdict.attack) == ("FAIL", ASKED)
    assert verdict.reason.endswith("reveals whether a value is in the largest tenth.")


@pytest.mark.parametrize("more", [{"attack": ASKED}, {"detect": 0.5}])
def test_a_gate_that_asks_for_it_has_it_judged(more: dict[str, Any]) -> None:
    verdict = one([*value(), *asked(0.0)], Gate(max=0.1, **more))
    assert (verdict.verdict, verdict.attack) == ("INCONCLUSIVE", ASKED)


def test_it_is_weighed_where_nothing_else_answers_the_gate() -> None:
    verdict = one(asked(0.0), Gate(max=0.1))
    assert (verdict.verdict, verdict.attack) == ("INCONCLUSIVE", ASKED)


def test_one_that_is_not_shown_to_be_alive_is_set_aside_beside_others_that_are() -> None:
    live = {VALUE: SHOWN, ASKED: Validation(False, "advantage +0.01")}
    verdict = one([*value(), *asked(0.0, n=2000)], Gate(max=0.1), live)
    assert (verdict.verdict, verdict.attack) == ("PASS", VALUE)
    assert verdict.warnings == ("question_not_validated",)
    assert verdict.warning.endswith(
        "message_completion for values in the largest tenth (advantage +0.01)"
    )
    dead = one([*value(), *asked(0.0)], Gate(max=0.1), {**live, VALUE: Validation(False, "broken")})
    assert (dead.verdict, dead.rule) == ("INCONCLUSIVE", "not_validated")


def test_a_gate_that_names_the_attack_does_not_wait_for_a_question_that_is_not_asked() -> None:
    gone = [
        replace(r, status="not-applicable", reason="equal values", value=None, split="")
        for r in asked(0.0)
    ]
    assert one([*value(), *gone], Gate(max=0.1, attack=VALUE)).verdict == "PASS"
    assert one([*value(), *gone], Gate(max=0.1, attack=ASKED)).verdict == "INCONCLUSIVE"
    gone = [replace(r, of_label="") for r in gone]
    assert one([*value(), *gone], Gate(max=0.1, attack=VALUE)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("question", "n", "seeds", "limit", "judged"),
    [
        ("largest tenth", 2200, 3, 0.1, True), ("largest tenth", 2000, 3, 0.1, False),
        ("far from the median", 800, 3, 0.1, True), ("far from the median", 740, 3, 0.1, False),
        ("largest tenth", 700, 5, 0.1, True), ("largest tenth", 660, 5, 0.1, False),
        ("largest tenth", 50, 100, 0.1, True), ("largest tenth", 10**6, 1, 0.1, False),
        ("", 10, 2, 0.1, True),
    ],
)  # fmt: skip
def test_rows_seeds_and_the_limit_say_whether_it_is_judged(
    question: str, n: int, seeds: int, limit: float, judged: bool
) -> None:
    point = Point(of_label=question, attack=ASKED, metric="auc", n=n)
    assert (find_unanswered(point, seeds, None, Gate(max=limit)) is None) is judged


def test_other_attacks_wait_as_they_did() -> None:
    made = rows(0.0, NOISE, n=200)
    assert one(made, Gate(max=0.1)).verdict == "INCONCLUSIVE"


def test_what_is_not_answered_is_said_once_for_all() -> None:
    left = [
        Unanswered(a, q, None, 340, 3, k)
        for a in ("message_completion", "zero_pattern")
        for q, k in (("far from the median", 4), ("largest tenth", 8))
    ]
    (said,) = explain_unanswered(left)
    assert said.code == "question_underpowered"
    assert said.text.endswith(
        "3 seeds of 340 rows for values far from the median or in the largest "
        "tenth (message_completion and zero_pattern); add seeds (8) or rows"
    )
    assert explain_unanswered([]) == []
