"""What a gate asks about is the same in plans, verdicts and reports."""

from __future__ import annotations

from typing import Any

import pytest
from gate_rows import at, one, points_of, rows
from printed import attacks_of, beyond

from vflsec.audit.baseline import Baseline, group_advantages
from vflsec.audit.baseline_verdicts import judge_regressions
from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.gate_selection import is_named
from vflsec.audit.leakage import complete_rows, summarise
from vflsec.audit.point import write_points
from vflsec.audit.result_row import ResultRow
from vflsec.runtime.typed_values import write_plain


@pytest.mark.parametrize(
    ("label", "wanted", "found"),
    [
        ("direction(positives=5)", "direction", True),
        ("direction(label=fraud + default, positives=5)", "direction", True),
        ("attribute(column=income (net) + bonus)", "attribute", True),
        ("attribute(column=a) income)", "attribute", True),
        ("attribute(column=:( + b)", "attribute", True),
        ("direction", "norm", False),
        ("direction(label=fraud + default)", "direction(label=fraud + default)", True),
    ],
)
def test_a_bare_name_is_what_stands_before_the_brackets(
    label: str, wanted: str, found: bool
) -> None:
    assert is_named(label, wanted) == found


def test_a_label_column_with_a_plus_does_not_hide_from_the_gate_on_its_attack() -> None:
    """Of two labels the harmless one alone was weighed, and the gate passed over a leak of 0.4."""
    records = [
        *rows(0.4, attack="direction(label=fraud + default)", attack_key="a", of_label="f"),
        *rows(0.0, attack="direction(label=other)", attack_key="b", of_label="other"),
    ]
    found = one(records, Gate(max=0.1, attack="direction"))
    assert (found.verdict, found.attack) == ("FAIL", "direction(label=fraud + default)")


def of_columns(gain: float) -> list[ResultRow]:
    return rows(gain, attack="hints", attack_key="c", target="feature", metric="r2",
                primary="r2", chance=0.0, adversary="shop")  # fmt: skip


def summary_of(records: list[ResultRow], verdicts: list[Verdict]) -> dict[str, Any]:
    points = write_points(points_of(records))
    return {"points": points, "gates": write_plain(verdicts)}


def test_a_gate_on_one_metric_says_which_attacks_have_none() -> None:
    """'advantage in auc of any attack' passed over columns that leak, and no report named them."""
    records = [*rows(0.0, primary="auc"), *of_columns(0.3)]
    v = one(records, Gate(max=0.1, of="auc"))
    assert v.verdict == "PASS"
    assert v.warnings == ("other_metric",)
    assert "hints (r2)" in v.warning
    assert v.reason.endswith(f"{v.warning[1:]}.")
    found = summary_of(records, [v])
    (line,) = beyond(found)
    assert line == "toy: the columns to shop, +0.30 without a defense (hints, judged)"
    assert attacks_of(found["gates"][0] | {"detectable": {}}, found) == ["direction"]
    for gate in (Gate(max=0.1, of="auc", target="label"), Gate(max=0.1, of="auc", attack="norm"),
                 Gate(max=0.1, of="auc", attack="direction")):  # fmt: skip
        assert one(records, gate).warnings == ()  # that is what was asked
    whole = one(records, Gate(max=0.1))
    assert whole.verdict == "FAIL"
    assert beyond(summary_of(records, [whole])) == []


def test_a_gate_on_another_metric_of_the_same_answer_judges_it() -> None:
    auc = rows(0.3, primary="auc")
    share = rows(0.0, primary="auc", metric="accuracy")
    v = one([*auc, *share], Gate(max=0.1, of="accuracy"))
    assert "no accuracy" not in v.reason
    assert beyond(summary_of([*auc, *share], [v])) == []


def test_a_baseline_judges_what_it_compares_alone() -> None:
    """Beside one attack that is compared every other at that point counted as judged."""
    old, new = rows(0.1), rows(0.3, attack="norm", attack_key="n")
    before = Baseline(group_advantages(complete_rows(old)))
    now = complete_rows([*old, *new])
    (v,) = judge_regressions(now, before, at(summarise(now)))
    assert v.verdict == "PASS"
    found = summary_of([*old, *new], [v])
    assert beyond(found) == ["toy: the labels to bank, +0.30 without a defense (norm, judged)"]
    assert attacks_of(found["gates"][0], found) == ["direction"]
