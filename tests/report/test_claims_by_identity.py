"""A verdict, a claim and a finding about one figure agree, and say nothing of another figure."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from generated import SEEDS, make_point, make_summary

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.findings import FindingKind
from vflsec.audit.gate import FAIL, Gate
from vflsec.audit.intervals import clip_bound
from vflsec.audit.leakage_claims import Quantity
from vflsec.audit.metrics import find_reach
from vflsec.audit.point import Point, Training
from vflsec.audit.summary import Summary, read_summary
from vflsec.report.build import build_report
from vflsec.report.first_screen import LEAKS, build_answer
from vflsec.report.html import render_page
from vflsec.report.junit import junit_xml
from vflsec.report.sarif import build_sarif
from vflsec.runtime.typed_values import write_plain

COUNT = 60
_APART = ("phase", "attack", "attack_key", "of_label", "known_rows", "split", "metric")
AT = Training("toy", "splitnn", "iso", 5.0)
_ALIKE = [
    {"victim": victim, "attack_key": key, "of_label": label}
    for victim in ("shop", "ins", "ins+shop") for key in ("k1", "k2") for label in ("", "churn")
]  # fmt: skip


def draw(seed: int) -> Summary:
    """Attacks that share their label, adversary, rows and phase, under gates."""
    rng = np.random.default_rng(seed)
    points = []
    for k in rng.permutation(len(_ALIKE))[: rng.integers(2, 8)]:
        gain, spread = (
            float(rng.choice((-0.05, 0.0, 0.01, 0.1, 0.3))),
            float(rng.choice((0.005, 0.05))),
        )
        p = make_point(AT, "attribute", "attribute", gain, spread, adversary="bank")
        points.append(replace(p, **_ALIKE[k]))
        if rng.random() < 0.5:
            points.append(_as_hits(points[-1], float(rng.choice((0.01, 0.2)))))
    gates = [Gate(max=0.05), Gate(max=0.005), Gate(max=0.1, of="tpr_at_1pct_fpr"), Gate(max=0.2)]
    return make_summary(points, [g for g in gates if rng.random() < 0.6])


def _as_hits(p: Point, gain: float) -> Point:
    """The same answer's point in another metric."""
    against = (Against("logistic", 0.02, gain, 0.004, SEEDS),)
    return replace(
        p, metric="tpr_at_1pct_fpr", leakage=Leakage(against, "logistic"),
        value=replace(p.value, mean=0.02 + gain),
        advantage=replace(p.advantage, mean=gain, sd=0.004), mirrored=type(p.mirrored)(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def drawn() -> list[Summary]:
    return [draw(seed) for seed in range(COUNT)]


def test_every_claim_lies_in_its_interval(drawn: list[Summary]) -> None:
    claims = [c for s in drawn for c in s.claims]
    assert len({c.victim for c in claims if c.is_leak}) == 3
    for at in claims:
        low, high = at.low or 0.0, at.high or 0.0
        assert None not in (at.low, at.advantage, at.high)
        assert low <= (at.advantage or 0.0) <= high, at


def test_no_interval_is_moved_by_a_gate_on_another_figure(drawn: list[Summary]) -> None:
    """What no gate failed on has the bound of its own test, corrected for all of its claim."""
    failed = kept = 0
    for summary in drawn:
        gated = {v.identity for v in summary.gates if v.verdict == FAIL}
        tried = {c.about: c.tried for c in summary.claims if c.quantity is Quantity.LEAKAGE}
        for p in summary.points:
            m = tried[p.without(*_APART)]
            assert p.leakage is not None
            own = p.leakage.lower(0.025 / m)
            if p.identity in gated:
                assert 0 < (p.advantage.low or 0) <= (p.leakage.lower(0.05) or 0)
                failed += 1
            elif p.is_main:
                assert p.advantage.low == clip_bound(own, find_reach("advantage", p.metric))
                kept += 1
    assert min(failed, kept) > COUNT // 2


def test_a_failed_gate_is_about_one_figure(drawn: list[Summary]) -> None:
    for summary in drawn:
        by = {p.identity: p for p in summary.points}
        for v, found in zip(
            summary.gates, [f for f in summary.findings if f.kind is FindingKind.VERDICT],
            strict=True,
        ):  # fmt: skip
            assert found.place == v.identity
            if v.verdict == FAIL:
                assert by[v.identity].advantage.mean == v.value
                assert "" not in (v.victim, v.attack_key)


def test_the_bound_of_a_smaller_attack_is_not_said_of_the_largest() -> None:
    """Both are beyond the limit; the smaller one varies less, and the verdict has its bound."""
    wide = replace(make_point(AT, "attribute", "attribute", 0.3, 0.12), victim="shop")
    tight = replace(make_point(AT, "attribute", "attribute", 0.25, 0.003), victim="ins")
    others = [make_point(AT, f"a{i}", "attribute", 0.0, 0.01) for i in range(9)]
    others = [replace(p, victim="shop") for p in others]
    (verdict,) = (s := make_summary([wide, tight, *others], [Gate(max=0.05)])).gates
    assert (verdict.verdict, verdict.victim) == ("FAIL", "shop")
    (claim,) = [c for c in s.claims if c.victim == "shop" and c.quantity == "leakage"]
    assert wide.leakage is not None
    own = wide.leakage.lower(0.05)
    assert 0 < (claim.low or 0.0) <= (own or 0.0) < (verdict.low or 0.0)


def test_a_gate_that_fails_on_one_victim_says_nothing_of_another() -> None:
    """It put a lower bound of 0.15 on an advantage of 0.01, and called that a leak."""
    shop = make_point(AT, "attribute", "attribute", 0.17, 0.01, adversary="bank", victim="shop")
    ins = make_point(AT, "attribute", "attribute", 0.01, 0.05, adversary="bank", victim="ins")
    summary = make_summary([shop, ins], [Gate(max=0.1)])
    assert {c.victim: c.is_leak for c in summary.claims if c.quantity == "leakage"} == {
        "shop": True, "ins": False,
    }  # fmt: skip
    said = {(f.place.victim, f.kind) for f in summary.findings if f.kind != FindingKind.VERDICT}
    assert ("shop", FindingKind.NOT_STOPPED) in said
    assert ("ins", FindingKind.NOT_STOPPED) not in said


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_gates_the_most_certain_one_bounds_the_claim(order: int) -> None:
    """It was the last one, so that the bound went by the order of the gates."""
    point = make_point(AT, "attribute", "attribute", 0.3, 0.02, victim="shop")
    gates = [Gate(max=0.05, confidence=0.99), Gate(max=0.04, confidence=0.8)][::order]
    summary = make_summary([point], gates)
    assert {v.verdict for v in summary.gates} == {FAIL}
    (claim,) = [c for c in summary.claims if c.quantity == "leakage"]
    assert point.leakage is not None
    assert claim.low == max(point.leakage.lower(0.01) or 0, point.leakage.lower(0.025) or 0)


def test_tables_tell_attacks_of_one_label_apart() -> None:
    shop = make_point(AT, "attribute", "attribute", 0.17, victim="shop")
    ins = make_point(AT, "attribute", "attribute", 0.01, victim="ins")
    more = replace(ins, known_rows=50.0, attack_key="more", victim="shop")
    page = render_page(
        build_report(make_summary([shop, ins, more, replace(ins, attack="norm")], []))
    )
    named = [f"attribute with {rows} labelled rows against {whom}"
             for rows, whom in ((20, "shop"), (20, "ins"), (50, "shop"))]  # fmt: skip
    assert all(name in page for name in named)
    assert "norm with" not in page
    assert "norm against" not in page


def test_programs_are_told_of_whom_a_verdict_is(drawn: list[Summary]) -> None:
    for summary in drawn[:10]:
        failed = [v for v in summary.gates if v.verdict == FAIL]
        results = [r["properties"] for r in build_sarif(summary)["runs"][0]["results"]]
        told = [{k: r.get(k) for k in ("victim", "attack_key", "metric")} for r in results]
        root = ElementTree.fromstring(junit_xml(summary).split("\n", 1)[1])
        bodies = [str(f.text).split("\n") for f in root.iter("failure")]
        for v, body in zip(failed, bodies, strict=True):
            mine = {"victim": v.victim, "attack_key": v.attack_key, "metric": v.metric}
            assert mine in told
            assert {f"{k}: {x}" for k, x in mine.items()} <= set(body)


def test_verdicts_are_read_back_with_their_identity(drawn: list[Summary]) -> None:
    for summary in drawn[:10]:
        rows = json.loads(json.dumps([write_plain(v) for v in summary.gates]))
        assert read_summary({"gates": rows}).gates == summary.gates


@pytest.mark.parametrize("gains", [(0.3, 0.0), (0.3, 0.3)])
def test_algorithms_are_named_in_both_lists_or_in_none(gains: tuple[float, float]) -> None:
    """It said "Yes, without a defense. No significant leak without a defense." of two trainings."""
    at = [Training("toy", algorithm, "none") for algorithm in ("psi", "splitnn")]
    points = [make_point(t, "norm", "label", gain) for t, gain in zip(at, gains, strict=True)]
    (answer,) = [a for a in build_answer(make_summary(points, []))["toy"] if a.question == LEAKS]
    (psi, splitnn), (line,) = [f"in {t.algorithm} without a defense" for t in at], answer.lines
    both = f"Yes, {psi}, {splitnn}."
    assert line == (both if all(gains) else f"Yes, {psi}. No significant leak {splitnn}.")
    alone = build_answer(make_summary(points[:1], []))["toy"][0]
    assert alone.lines == ("Yes, without a defense.",)
