"""The one table that an audit prints: who learns what under each training, and the utility."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from printed import curves, html, markdown_summary, print_curves, print_summary, statement
from rich.console import Console

pytestmark = pytest.mark.figures


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    planted = Planted(LEAKY, SEALED)
    return audited(tmp_path_factory.mktemp("curve"), planted, gate(max=0.1, strength=5)).summary


def printed(summary: dict[str, Any], width: int = 100, **how: Any) -> str:
    out = io.StringIO()
    if how:
        print_summary(summary, Console(file=out, width=width), **how)
    else:
        print_curves(summary, Console(file=out, width=width))
    return out.getvalue()


def test_each_secret_has_its_strongest_attack_at_each_strength(summary: dict[str, Any]) -> None:
    lines = printed(summary).splitlines()
    best = {r["strength"]: r for r in summary["strongest"]}
    assert re.split(r"\s{2,}", lines[1].strip()) == ["none", "iso 5"]
    row = next(line for line in lines if line.startswith("labels of bank to shop (AUC)"))
    assert row.split()[-2:] == [f"{best[s]['advantage']:+.2f}*" for s in (0.0, 5.0)]
    assert (best[0.0]["attack"], best[5.0]["attack"]) == ("norm", "model_completion")
    utility = next(line for line in lines if line.startswith("utility (AUC)"))
    of = {p["strength"]: p["utility"] for p in summary["points"] if p["attack"]}
    assert utility.split()[-2:] == [f"{of[s]:.3f}" for s in (0.0, 5.0)]


def test_a_star_is_what_stands_the_correction(summary: dict[str, Any]) -> None:
    """Three in a hundred that five seeds are sure of, and after widening the spread are not."""
    loud = copy.deepcopy(summary)
    for p in loud["points"]:
        for control in (p.get("controls") or {}).values():
            control["sd"] = 0.5
    assert "+0.03*" in printed(summary)
    assert "*" not in printed(loud).split("Gain of the")[0]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_many_trainings_are_set_below_each_other(summary: dict[str, Any], width: int) -> None:
    many = copy.deepcopy(summary)
    strong = [p for p in summary["points"] if p["strength"] == 5 and p["attack"]]
    for k in range(6, 30):
        many["points"] += [{**p, "strength": float(k)} for p in strong]
    out = printed(many, width)
    (curve,) = curves(many)
    assert len(curve.trainings) == 26
    assert max(map(len, out.splitlines())) <= width
    assert sorted(map(int, re.findall(r"iso (\d+)", out))) == list(range(5, 30))
    assert out.count("utility (AUC)") == out.count("labels of bank to shop (AUC)") > 1


def test_an_algorithm_and_a_long_defense_are_named_once(summary: dict[str, Any]) -> None:
    two = copy.deepcopy(summary)
    two["points"] += [{**p, "algorithm": "fedbcd"} for p in summary["points"]]
    heads = [re.split(r"\s{2,}", line.strip()) for line in printed(two).splitlines()]
    assert [h for h in heads if h[-1:] == ["5"]] == [
        ["fedbcd, iso at", "none", "5"], ["splitnn, iso at", "none", "5"],
    ]  # fmt: skip
    long = copy.deepcopy(summary)
    for p in long["points"]:
        if p["strength"] == 5:
            p["defense"] = "iso(phase=finetune)"
    assert re.split(r"\s{2,}", printed(long).splitlines()[1].strip()) == [
        "iso(phase=finetune) at", "none", "5",
    ]  # fmt: skip
    other = [p for p in long["points"] if p["strength"] == 5]
    long["points"] += [{**p, "defense": "iso + noise(strength=2.0)"} for p in other]
    assert "(strength=2.0)" in printed(long)
    assert "at" not in printed(long).splitlines()[1].split()


def test_an_audit_prints_its_answers_and_a_report_every_figure(
    summary: dict[str, Any], tmp_path: Path
) -> None:
    """A first audit of two tables printed 236 lines, and its answers stood at the end of them."""
    short, whole = printed(summary, whole=False), printed(summary, whole=True)
    assert "Findings" not in short
    assert "CAP" not in short
    assert "Findings" in whole
    assert "CAP" in whole
    wanted = ("Does it leak", "What does it cost", "utility (AUC)", "What was not tested", "Gates",
              "Next", "Every attack beside")  # fmt: skip
    order = [short.index(title) for title in wanted]
    assert order == sorted(order)
    folder = summary["command"]["folder"]
    assert f"and the findings: vflsec report {folder}" in short
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
    assert f"| labels of bank to shop (AUC) | {bare}\\* | {defended}\\* |" in text
    for page in (html(summary), statement(summary)):
        cells = page.split("What the strongest attack gains, training by training")[1]
        cells = cells.split("</table>")[0]
        assert f'<td class="n l2">{bare}*</td>' in cells
        assert "* is significant (95 %" in page
    nothing = {**summary, "points": [p for p in summary["points"] if not p["attack"]]}
    assert "training by training" not in html(nothing)


def test_a_secret_in_two_metrics_is_one_line(summary: dict[str, Any]) -> None:
    two = copy.deepcopy(summary)
    for p in two["points"]:
        if p["attack"] and p["strength"] == 5:
            p |= {"metric": "accuracy", "primary": "accuracy"}
    (curve,) = curves(two)
    ((name, cells),) = curve.lines
    assert name == "labels of bank to shop (AUC, accuracy)"
    assert None not in cells
