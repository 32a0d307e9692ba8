"""The statement answers five questions above its appendix, without a word of statistics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from first_screens import CASES, ISO, NONE, OFF, passes_at_a_strength
from generated import draw_summary, expose, make_point, make_summary

from vflsec.audit.gate import Gate, Warn
from vflsec.audit.leakage_claims import LeakageClaim, Quantity
from vflsec.audit.metrics import METRICS
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.summary import Summary
from vflsec.report import statement
from vflsec.report.build import OUTLINES, build_report
from vflsec.report.statement import build_price, build_receivers
from vflsec.report.tree import Bullets, Cell, Table, View

STATISTICS = re.compile(
    r"\b(AUC|R²|accuracy|advantage|baseline|bounds?|confidence|control|corrected|error|interval|"
    r"(?<!NO )gates?|mean|metric|p-value|percentile|sd|seeds?|significant|standard|strength|"
    r"utility|95 ?%|"
    + "|".join(METRICS) + r")\b|\[[-+\d]", re.IGNORECASE,
)  # fmt: skip


def read_texts(part: object) -> Iterator[str]:
    """Every text of a part of the tree, names of sections and their like aside."""
    if is_dataclass(part):
        yield from (t for f in fields(part) if f.name not in ("key", "nav", "tone")
                    for t in read_texts(getattr(part, f.name)))  # fmt: skip
    elif isinstance(part, tuple | list):
        yield from (t for item in part for t in read_texts(item))
    elif isinstance(part, str):
        yield part


def split(summary: Summary) -> tuple[str, str]:
    """The text above the appendix, and that of the appendix."""
    sections = build_report(summary, View.STATEMENT).seen_by(View.STATEMENT)
    at = [s.key for s in sections].index("system")
    above, below = ("\n".join(read_texts(part)) for part in (sections[:at], sections[at:]))
    return above, below


def above(summary: Summary) -> str:
    return split(summary)[0]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_no_statistics_attack_or_parameter_stands_above_the_appendix(
    case: Callable[[], Summary],
) -> None:
    summary = case()
    text = above(summary)
    assert STATISTICS.findall(text) == []
    names = {n for p in summary.points for n in (p.attack, p.defense) if n not in ("", "none")}
    assert names
    assert [n for n in names if re.search(rf"\b{re.escape(n)}\b", text)] == []


def test_drawn_evaluations_have_none_either() -> None:
    assert [STATISTICS.findall(above(draw_summary(seed))) for seed in range(10)] == [[]] * 10


def test_the_appendix_has_what_the_page_leaves_out() -> None:
    """So the expression finds something where there is something."""
    _, below = split(passes_at_a_strength())
    assert len(STATISTICS.findall(below)) > 5
    assert re.search(r"\bnorm\b", below)


def test_the_sections_answer_the_five_questions_first() -> None:
    keys = OUTLINES[View.STATEMENT]
    assert keys[:4] == ("tested", "receivers", "price", "left")


def test_a_pass_with_warnings_is_not_signed_as_one_without() -> None:
    """Above the appendix a PASS read alike where a leak above the limit could be missed."""
    found = passes_at_a_strength()
    texts = [
        above(replace(found, gates=tuple(replace(v, warnings=w) for v in found.gates)))
        for w in ((), (Warn.INSENSITIVE,))
    ]
    assert [t.count("(Appendix D)") for t in texts] == [0, 1]


def test_how_much_is_counted_in_people() -> None:
    """AUC 0.9 beside 0.6, and 240 of 4,500 people named beside 10."""
    (table, *_) = build_receivers(passes_at_a_strength()).blocks
    assert isinstance(table, Table)
    cell = table.rows[0][2]
    assert isinstance(cell, Cell)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", cell.text)]
    assert numbers == [90, 100, 60, 52, 1000, 2]


@pytest.mark.parametrize(
    ("before", "after", "sd", "cell"),
    [
        (0.3, 0.01, 0.01, statement._LESS),
        (0.3, 0.25, 0.4, statement._NOT_LESS),  # as much, and too few repetitions to show it
        (0.3, 0.25, 0.01, statement._INFERS),
        (0.0, 0.01, 0.01, statement._NOT_SHOWN),
        (0.0, 0.01, 1.0, statement._TOO_FEW),  # even the largest leak is within the interval
    ],
)
def test_what_is_no_longer_shown_is_less_only_where_that_is_shown(
    before: float, after: float, sd: float, cell: str
) -> None:
    points = [make_point(OFF, "norm", "label", before, 0.01),
              make_point(ISO, "norm", "label", after, sd)]  # fmt: skip
    (table, *_) = build_receivers(make_summary(points, [Gate(max=0.1, strength=5.0)])).blocks
    assert isinstance(table, Table)
    found = table.rows[0][3]
    assert (found.text if isinstance(found, Cell) else found).split(";")[0] == cell


def test_every_leak_must_be_tested_again_and_shown_to_be_less() -> None:
    def claim(quantity: Quantity, low: float | None, most: float | None, n: int = 2) -> Any:
        """Of the strongest of some tests, whose largest upper bound is `most`."""
        return LeakageClaim(quantity=quantity, advantage=0.2, low=low, high=0.0, most=most, tried=n)

    one, two = Quantity.LEAKAGE, Quantity.EXPOSED
    before = [claim(one, 0.2, 0.3), claim(two, 0.1, 0.2), claim(Quantity.REVERSED, -0.2, 0.1)]

    def is_less(*after: LeakageClaim) -> bool:
        return statement._is_less(after, before)

    assert is_less(claim(one, -0.1, 0.1), claim(two, -0.1, 0.09))
    assert not is_less(claim(one, -0.1, 0.1), claim(two, -0.1, 0.1))
    assert not is_less(claim(one, None, None), claim(two, -0.1, 0.09))
    assert not is_less(claim(one, -0.1, 0.1))  # nobody looked for exposed rows again
    assert not is_less(claim(one, -0.1, 0.1, 1), claim(two, -0.1, 0.09))  # an attack is gone


def test_a_claim_knows_the_largest_bound_of_its_tests() -> None:
    points = [make_point(ISO, "norm", "label", 0.02, 0.4),
              make_point(ISO, "cluster", "label", 0.03, 0.03)]  # fmt: skip
    (found,) = (c for c in make_summary(points, []).claims if c.quantity is Quantity.LEAKAGE)
    assert found.attack == "cluster"
    assert found.most is not None
    assert found.high is not None
    assert found.most > 0.3 > found.high


@pytest.mark.parametrize("named", [20.0, 60.0])
def test_a_claim_excludes_what_a_gate_on_the_same_rows_excludes(named: float) -> None:
    """A gate passed at 0.02 beside `up to 22 more of 1,000 rows are not excluded`."""
    point = expose(make_point(ISO, "norm", "label", 0.02), named)
    gate = Gate(max=0.5, of="exposed", target="label")
    found = make_summary([point], [gate])
    (claim,) = (c for c in found.claims if c.quantity is Quantity.EXPOSED)
    assert found.gates[0].high is not None
    assert claim.most == pytest.approx(found.gates[0].high)


def price(*rows: GridRow) -> str:
    made = build_price(replace(passes_at_a_strength(), grid=rows)).blocks[0]
    assert isinstance(made, Bullets)
    (said,) = made.items
    return said


def row(at: object, passed: int, drop: float | None = 0.0, *, cheapest: bool = False) -> GridRow:
    known = {n: getattr(at, n) for n in ("dataset", "algorithm", "defense", "strength")}
    return GridRow(**known, gates=2, passed=passed, utility_drop=drop, cheapest=cheapest)


def test_what_stops_it_is_said_with_what_it_costs() -> None:
    stops = price(row(OFF, 0), row(ISO, 2, 0.034, cheapest=True))
    assert re.findall(r"[\d.]+\d", stops) == ["3.4", "100"]
    assert re.findall(r"[\d.]+\d", price(row(ISO, 2, -0.01, cheapest=True))) == ["0.0", "100"]


def test_the_price_is_that_of_the_protection_that_is_signed_for() -> None:
    weaker = replace(ISO, strength=1.0)  # meets every limit, too, and no gate names it
    cheap = row(weaker, 2, 0.01, cheapest=True)
    assert re.findall(r"[\d.]+\d", price(cheap, row(ISO, 2, 0.034))) == ["3.4", "100"]
    assert price(cheap, row(ISO, 1, 0.034)) == price(row(OFF, 0), row(ISO, 1))


def test_what_stops_nothing_or_is_not_needed_is_told_apart() -> None:
    cases = [price(), price(row(OFF, 0), row(ISO, 1)), price(row(NONE, 2, cheapest=True)),
             price(row(OFF, 0), row(ISO, 2, cheapest=True)),
             price(row(OFF, 0), row(ISO, 2, None))]  # fmt: skip
    assert len(set(cases)) == 5
    assert price(row(NONE, 0)) == cases[0]
    other = replace(row(OFF, 0), algorithm="secureboost")  # of which nothing is enough
    assert price(row(ISO, 2, cheapest=True), other) == cases[1]
    assert "cost" not in cases[1]  # of what meets no limit
