"""Of several attacks under one gate, which one a verdict is about, by the rule that decides."""

from __future__ import annotations

from typing import Any

import pytest
from gate_rows import STEADY, WIDE, Live, one, record, rows

from vflsec.audit.gate import Gate, Rule
from vflsec.audit.result_row import ResultRow
from vflsec.audit.validated import Validation

Rows = list[ResultRow]
ANY = Gate(max=0.05)
IDLE = {
    "a0": Validation(True, "shown"), "a1": Validation(False, "not shown"),
    "a2": Validation(False, "not shown"), "gone": Validation(True, "shown"),
}  # fmt: skip


def beside(mean: float, own: float, attack: str, **more: Any) -> Rows:
    """An attack that reaches `mean` beside a control that reaches `own`."""
    controls = {"controls": {"own": {"value": own, "cv": own}}}
    return rows(mean - 0.5, [e / 100 for e in STEADY], attack=attack, **controls, **more)


CASES: dict[str, tuple[Rows, Rows, Rows, Live, Rule]] = {
    "the largest of those beyond": (
        rows(0.3, attack="a0"), rows(0.2, attack="a1"), [], None, Rule.EXCEEDED,
    ),
    "the largest beside a failed one": (
        rows(0.02, attack="a0"), rows(0.0, attack="a1"),
        [record(s, None, attack="gone") for s in range(5)], None, Rule.FAILED_RUNS,
    ),
    "the largest of those flipped": (
        rows(-0.3, attack="a0"), rows(-0.2, attack="a1"), [], None, Rule.REVERSED_RANKING,
    ),
    "the largest that is not shown to work": (
        rows(0.02, attack="a1"), rows(0.0, attack="a2"), rows(0.03, attack="a0"), IDLE,
        Rule.NOT_VALIDATED,
    ),
    "the largest that is open": (
        rows(0.04, WIDE, attack="a0"), rows(0.0, WIDE, attack="a1"), rows(0.0, attack="a2"), None,
        Rule.UNDECIDED,
    ),
    "the largest that flipped is open": (
        rows(-0.04, WIDE, attack="a0"), rows(-0.03, WIDE, attack="a1"), [], None,
        Rule.EITHER_DIRECTION,
    ),
    "the largest of those with one seed": (
        rows(0.4, (0.0,), attack="a0"), rows(0.0, (0.0,), attack="a1"),
        rows(0.01, attack="a2"), None, Rule.SINGLE_SEED,
    ),
    "the largest of those with too few seeds": (
        rows(0.0, (0.0, 0.001), attack="a0"), rows(-0.01, (0.0, 0.001), attack="a1"), [], None,
        Rule.UNDERPOWERED,
    ),
    "the one with the least room": (
        beside(0.99, 0.99, "a0"), beside(0.98, 0.98, "a1"), [], None, Rule.NO_ROOM,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_attack_decides_in_whatever_order_they_stand(name: str) -> None:
    first, second, more, live, rule = CASES[name]
    for records in ([*first, *second, *more], [*more, *second, *first]):
        found = one(records, ANY, live)
        assert (found.rule, found.attack) == (rule, first[0].attack)


def test_evidence_is_that_of_the_attack_that_decides() -> None:
    live = {f"a{i}": Validation(False, f"evidence {i}") for i in range(3)}
    every = [rows(0.01 * mean, attack=f"a{i}") for i, mean in enumerate((1, 3, 2))]
    said = one([r for of in every for r in of], ANY, live).reason
    assert "evidence 0" not in said
    assert said.index("a1") < said.index("evidence 1") < said.index("a0")


@pytest.mark.parametrize(("mean", "curable"), [(-0.03, True), (-0.3, False)])
def test_seeds_are_advised_of_a_flipped_ranking_only_where_they_may_settle_it(
    mean: float, curable: bool
) -> None:
    """Within the limit it may be settled; beyond it, or where no figure can be turned, never."""
    found = one(rows(mean, [3 * e for e in STEADY], attack="a0"), ANY)
    assert found.rule == Rule.REVERSED_RANKING
    assert (found.more_seeds is not None) == curable
    assert (f"{found.more_seeds} more" in found.reason) == curable


def test_the_primary_figure_may_decide_where_that_of_the_gate_has_no_room() -> None:
    hits = beside(0.99, 0.99, "a0", metric="tpr_at_1pct_fpr", primary="auc")
    auc = rows(0.0, attack="a0", primary="auc")
    found = one([*hits, *auc], Gate(max=0.05, of="tpr_at_1pct_fpr"))
    assert (found.rule, found.detail, found.stuck) == (Rule.NO_ROOM, "auc", True)


def test_what_a_figure_lacks_is_its_own_and_not_that_of_the_primary_one() -> None:
    """Equal on every seed, beside an AUC that varies."""
    same = rows(0.0, (0.0,) * 5, attack="a0", metric="balanced_accuracy", primary="auc")
    auc = rows(0.0, attack="a0", primary="auc")
    found = one([*same, *auc], Gate(max=0.05, of="balanced_accuracy"))
    assert (found.rule, found.detail) == (Rule.UNDERPOWERED, "equal_figures")


def test_a_reason_that_attacks_share_is_given_once() -> None:
    """None of these had rows of two classes to score."""
    none = [
        record(s, None, status="ok", reason="", attack=f"b{i}") for i in range(7) for s in range(5)
    ]
    found = one([*rows(0.0, attack="a0"), *none], ANY)
    assert found.rule == Rule.FAILED_RUNS
    assert all(found.reason.count(f"b{i}") == (i < 5) for i in range(7))
    assert "2 more" in found.reason
    assert found.reason.count("one class") == 1
