"""What makes figures say little stands on the first screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vflsec.audit.point import Estimate, Point
from vflsec.audit.summary import Summary
from vflsec.data.table_facts import ColumnFacts, UserTable, UserTables
from vflsec.report.first_screen import DOUBT, LEAKS, build_answer, find_doubts

NUMBER = ColumnFacts("age", "shop", "feature", "number", 40)
NOTE = ColumnFacts("note", "shop", "feature", "category", 95, warning="95 different texts")
POOLED = Point(
    dataset="t", algorithm="pooled_boosting", metric="auc", primary="auc", chance=0.5,
    value=Estimate(mean=0.47, low=0.44, high=0.5),
)  # fmt: skip


def summary(*columns: ColumnFacts, points: tuple[Point, ...] = ()) -> Summary:
    table = UserTable("shop.csv", ("shop",), 100, "", columns)
    return Summary(tables={"t": UserTables((table,))}, points=points)


def test_a_category_of_nearly_every_row_is_doubted_unless_declared() -> None:
    (said,) = find_doubts("t", summary(NUMBER, NOTE))
    assert "shop.csv" in said
    assert "note" in said
    for other in (replace(NOTE, warning=""), replace(NOTE, distinct=70),
                  replace(NOTE, kind="number"), replace(NOTE, role="dropped")):  # fmt: skip
        assert find_doubts("t", summary(NUMBER, other)) == []
    assert find_doubts("t", summary(NUMBER, replace(NOTE, distinct=70, missing=20))) != []


def test_a_party_of_constants_is_named() -> None:
    flat, gone = replace(NUMBER, distinct=1), replace(NUMBER, distinct=0, missing=100)
    (said,) = find_doubts("t", summary(flat, gone))
    assert "columns of shop" in said
    gap = replace(NUMBER, kind="category", distinct=1, missing=5)
    for other in (NUMBER, gap, replace(NUMBER, party="bank")):
        assert len(find_doubts("t", summary(flat, other))) == (other.party == "bank")


@pytest.mark.parametrize(
    ("value", "doubted"),
    [
        (Estimate(mean=0.47, low=0.44, high=0.5), True),
        (Estimate(mean=0.53, low=0.49, high=0.57), True),
        (Estimate(mean=0.53, low=0.51, high=0.55), False),
        (Estimate(mean=0.53), False),
        (Estimate(mean=0.49), True),
        (Estimate(), False),
    ],
)
def test_pooled_tables_that_teach_nothing_are_doubted(value: Estimate, doubted: bool) -> None:
    found = find_doubts("t", summary(NUMBER, points=(replace(POOLED, value=value),)))
    assert [f"pooled_boosting: auc {value.mean:.3f}" in text for text in found] == [True] * doubted
    good = replace(POOLED, algorithm="pooled_logistic", value=Estimate(mean=0.8, low=0.7))
    both = (replace(POOLED, value=value), good)
    assert find_doubts("t", summary(NUMBER, points=both)) == [], "one that learns is enough"
    other = replace(POOLED, value=value, algorithm="local")
    assert find_doubts("t", summary(NUMBER, points=(other,))) == []


def test_doubts_come_before_the_answers() -> None:
    found = build_answer(summary(NOTE, points=(replace(POOLED, value=Estimate(mean=0.9)),)))
    assert [a.question for a in found["t"]] == [DOUBT, LEAKS]
