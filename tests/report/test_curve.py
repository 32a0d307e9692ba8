"""The one table that an audit prints: who learns what under each training, and the utility."""

from __future__ import annotations

import copy
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from first_screens import LIMIT, NONE
from generated import draw_summary, make_point, make_summary
from printed import html, markdown_summary, print_curves, print_summary, statement
from rich.console import Console

from vflsec.audit.leakage_claims import Quantity
from vflsec.audit.point import Estimate, Point
from vflsec.audit.result import Audit
from vflsec.audit.tradeoff_curves import find_improvements
from vflsec.report.curve import FEW, build_curve, find_gains
from vflsec.report.tree import Paragraph, Tone
from vflsec.runtime.typed_values import write_plain


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    planted = Planted(LEAKY, SEALED)
    return audited(tmp_path_factory.mktemp("curve"), planted, gate(max=0.1, strength=5))


def printed(summary: dict[str, Any], width: int = 100, **how: Any) -> str:
    out = io.StringIO()
    if how:
        print_summary(summary, Console(file=out, width=width), **how)
    else:
        print_curves(summary, Console(file=out, width=width))
    return out.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each training."""
    found = (line.split("  ") for line in text.splitlines() if re.search(r"\d\.\d\d", line))
    return {parts[0].strip(): " ".join(parts[1:]).split() for parts in found}


def test_each_training_has_the_strongest_attack_on_each_target(summary: dict[str, Any]) -> None:
    found = rows(printed(summary))
    best = {r["strength"]: r for r in summary["strongest"]}
    of = {p["strength"]: p["utility"] for p in summary["points"] if p["attack"]}
    assert {k: found[k] for k in ("none", "iso 5")} == {
        k: [f"{best[s]['advantage']:+.2f}*", f"{of[s]:.3f}"]
        for k, s in (("none", 0.0), ("iso 5", 5.0))
    }
    assert (best[0.0]["attack"], best[5.0]["attack"]) == ("norm", "model_completion")


@pytest.mark.parametrize(("unmade", "lines"), [(0, 0), (FEW, FEW), (FEW + 1, 1), (24, 1)])
def test_many_attacks_that_cannot_be_made_are_counted_on_one_line(unmade: int, lines: int) -> None:
    """Not what failed, nor what has a figure elsewhere."""
    made = make_point(NONE, "norm", "label", 0.01)
    gone = replace(made, status="not-observable", leakage=None, reason="nothing came")
    other = replace(gone, status="not-applicable", reason="of no meaning")
    points = [
        made, replace(gone, defense="iso", strength=5.0),
        replace(gone, attack="cluster", status="error", reason="out of memory"),
        *(replace(gone if i % 3 else other, attack=f"a{i}") for i in range(unmade)),
    ]  # fmt: skip
    blocks = build_curve(make_summary(points, [LIMIT]), "loans")
    said = [b.text for b in blocks if isinstance(b, Paragraph) and b.tone is Tone.WARNING]
    assert len(said) == 2 + lines
    counts = [int(n) for n in re.findall(r"\d+", said[-1])] if unmade > FEW else []
    others = (unmade + 2) // 3
    assert counts == ([unmade, others, unmade - others] if counts else [])


@pytest.mark.parametrize("width", [60, 80, 100])
def test_many_trainings_are_set_below_each_other(summary: dict[str, Any], width: int) -> None:
    many = copy.deepcopy(summary)
    strong = [p for p in summary["points"] if p["strength"] == 5 and p["attack"]]
    for k in range(6, 30):
        many["points"] += [{**p, "strength": float(k)} for p in strong]
    out = printed(many, width)
    assert max(map(len, out.splitlines())) <= width
    table, _, _ = out.partition("CAP")
    assert sorted(map(int, re.findall(r"iso (\d+)", table))) == list(range(5, 30))


def test_several_algorithms_are_named(summary: dict[str, Any]) -> None:
    two = copy.deepcopy(summary)
    two["points"] += [{**p, "algorithm": "fedbcd"} for p in summary["points"]]
    named = [f"{a}, {d}" for a in ("fedbcd", "splitnn") for d in ("none", "iso 5")]
    assert [n for n in rows(printed(two)) if n.startswith(("fedbcd, ", "splitnn, "))] == named


def test_relative_improvement_stands_beside_utility(summary: dict[str, Any]) -> None:
    """0.9 over 0.7 is twice as far from chance; the defended have none, and no name has none."""
    one = next(p for p in map(Point.read, summary["points"]) if p.is_undefended and p.attack)
    better = [replace(one, utility=Estimate(0.9)), replace(one, defense="iso", strength=5.0)]
    base = replace(one, algorithm="fpd", utility=Estimate(0.7))
    found = find_improvements([*better, base], "fpd")
    assert [(i.algorithm, i.baseline) for i in found] == [("splitnn", "fpd")]
    assert found[0].value == pytest.approx(1.0)
    for useless in (
        replace(base, utility=Estimate(0.5)), replace(base, failed_trainings=1),
        replace(base, utility_metric="accuracy"), replace(base, dataset="other"),
    ):  # fmt: skip
        assert not find_improvements([*better, useless], "fpd")
    assert not find_improvements([*better, base], None)
    assert summary["improvements"] == []
    lifted = {**summary, "improvements": write_plain(found)}
    assert rows(printed(lifted))["none"][-1] == "+100.0%"
    assert "RelaImp over fpd" in " ".join(printed(lifted).split())
    assert "RelaImp" not in printed(summary)


def test_an_audit_prints_its_answers_and_a_report_every_figure(
    summary: dict[str, Any], tmp_path: Path
) -> None:
    """A first audit of two tables printed 236 lines, and its answers stood at the end of them."""
    short, whole = printed(summary, whole=False), printed(summary, whole=True)
    assert "Findings" not in short
    assert "DCS" not in short
    assert "CAP" not in short
    assert "Findings" in whole
    assert "CAP" in whole
    wanted = ("Does it leak", "What does it cost", "utility (AUC)", "What was not tested", "Gates",
              "Next", "Every attack and finding")  # fmt: skip
    order = [short.index(title) for title in wanted]
    assert order == sorted(order)
    folder = summary["command"]["folder"]
    assert f"and finding: vflsec report {folder}" in short
    nowhere = {**summary, "command": {}}
    assert "Findings" in printed(nowhere, whole=False)


def test_hostile_names_print_as_text(summary: dict[str, Any]) -> None:
    odd = copy.deepcopy(summary)
    for p in odd["points"]:
        p["adversary"] = p["adversary"] and "[red]\x1b[31mshop"
    out = printed(odd)
    assert "\x1b" not in out
    assert "[red]" in out


def test_every_report_has_the_table(summary: dict[str, Any]) -> None:
    best = {r["strength"]: r for r in summary["strongest"]}
    bare, defended = (f"{best[s]['advantage']:+.2f}" for s in (0.0, 5.0))
    text = markdown_summary(summary)
    assert f"| none | {bare}\\* |" in text
    assert f"| iso 5 | {defended}\\* |" in text
    for page in (html(summary), statement(summary)):
        assert f'<th scope="row">none</th><td class="n l2">{bare}*</td>' in page


def test_a_secret_in_two_metrics_is_one_column(summary: dict[str, Any]) -> None:
    two = copy.deepcopy(summary)
    for p in two["points"]:
        if p["attack"] and p["strength"] == 5:
            p |= {"metric": "accuracy", "primary": "accuracy"}
    text = markdown_summary(two)
    assert "labels of bank to shop (AUC, accuracy)" in text


def test_every_training_that_leaks_on_average_has_a_star() -> None:
    """One that leaked with labels flipped alone had none, below an answer that named it."""
    flipped = 0
    reverse = make_summary([make_point(NONE, "norm", "label", -0.5)], [LIMIT])
    for found in (*map(draw_summary, range(60)), reverse):
        leaks = [c for c in found.claims if c.is_leak and c.quantity is not Quantity.EXPOSED]
        shown = {at for (_, at), c in find_gains(found.claims).items() if c.is_leak}
        assert shown == {c.training for c in leaks}
        straight = {c.training for c in leaks if c.quantity is Quantity.LEAKAGE}
        flipped += len(shown - straight)
    assert flipped > 0
