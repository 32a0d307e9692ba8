"""What leaks where the system is judged although no gate limits it is said beside every PASS."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from generated import expose, make_point, make_summary
from printed import (
    above_appendix,
    advice,
    answers,
    beyond,
    deployed,
    first_screen,
    headline,
    html,
    junit_xml,
    markdown_summary,
    unjudged,
    unstopped,
    workflow_commands,
)

from vflsec.audit.gate import Gate, Origin, Rule, exit_code
from vflsec.audit.leakage_claims import Quantity
from vflsec.audit.point import Training
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.summary import Summary, read_summary
from vflsec.report.advice import next_steps
from vflsec.report.first_screen import describe_scope
from vflsec.report.tree import StepKind, Tone
from vflsec.report.ungated_leaks import find_deployed, find_tone, find_ungated
from vflsec.report.verdicts import format_headline

COLUMNS = """
[[attack]]
name = "attribute"
adversary = "active"
known_rows = 0
aux_rows = 30
column = "a"
"""
LIMITS = gate(max=0.1, target="label", defense="defended") + gate(
    metric="utility_drop", max=0.1, defense="defended"
)
AT = Training("toy", "splitnn", "iso")
SECRET = "the values of one column of shop to bank"


def summary_of(folder: Path, defended: float) -> dict[str, Any]:
    """Noise hides the labels, and one column of the shop is told as it is without any."""
    planted = Planted({**LEAKY, "attribute": 0.25}, {**SEALED, "attribute": defended})
    return audited(folder, planted, COLUMNS + LIMITS).summary


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return summary_of(tmp_path_factory.mktemp("told"), 0.25)


def test_a_pass_says_what_it_does_not_limit_where_it_judges(told: dict[str, Any]) -> None:
    """The verdict, the page to sign and the next step said nothing of it: columns that are told at
    the strength that is deployed stood in a list of what leaks at other strengths.
    """
    assert headline(told)[0] == "PASS"
    (p,) = deployed(told)
    assert (p.attack, p.strength, p.is_leak) == ("attribute(column=a)", 5.0, True)
    gain = f"{p.advantage:+.2f}"
    clause = f"No gate limits {SECRET} ({gain}) there"
    assert clause in first_screen.describe_scope(told)
    assert "for which no limit was set" in above_appendix(told)
    assert clause in markdown_summary(told)
    assert clause in html(told)
    assert unjudged(told) == [f"Leaks at iso 5, and no gate limits it: {SECRET} ({gain})."]
    assert unjudged(told)[0] in junit_xml(told)


def test_a_gain_within_the_limits_of_other_gates_is_no_headline(tmp_path: Path) -> None:
    """A sure +0.03 beside gates of 0.1 stays in the list."""
    planted = Planted({**LEAKY, "attribute": 0.25}, {**SEALED, "attribute": 0.04})
    small = audited(tmp_path, planted, COLUMNS + LIMITS).summary
    assert deployed(small) == unjudged(small) == []
    assert f"{SECRET}, +0.03 with iso 5" in beyond(small)[0]
    assert "no gate limits" not in first_screen.describe_scope(small)


def test_a_minimum_of_what_attacks_gain_limits_nothing(tmp_path: Path) -> None:
    """A gate that asks for attacks which work took their leaks out of what no gate limits."""
    floor = gate(min=0.05, attack="norm") + gate(metric="auc", min=0.6, attack="norm")
    found = audited(tmp_path / "a", Planted(LEAKY, SEALED), floor + gate(metric="utility", min=0.5))
    (line,) = beyond(found.summary)
    assert "the labels of bank to shop, +0.29 without a defense" in line
    (p,) = deployed(found.summary)
    assert (p.attack, p.strength) == ("norm", 0.0)
    both = audited(tmp_path / "b", Planted(LEAKY, SEALED), floor + gate(max=0.4))
    assert beyond(both.summary) == deployed(both.summary) == []


@pytest.mark.parametrize(("of", "limited"), [("exposed", False), ("", True), ("auc", True)])
def test_a_limit_on_exposed_people_is_none_on_what_leaks_of_the_many(
    of: str, limited: bool
) -> None:
    """A PASS on people alone stood on every page without a word of an AUC of 0.85 beside 0.6."""
    at = Training("toy", "splitnn", "iso", 5.0)
    mean = make_point(at, "norm", "label", 0.25)
    summary = make_summary([mean, expose(mean, 12.0)], [Gate(max=0.4 if limited else 0.1, of=of)])
    assert [v.verdict for v in summary.gates] == ["PASS"]
    assert bool(find_deployed(summary)) is not limited
    assert (find_tone(summary) is Tone.GOOD) is limited


def test_a_limit_on_the_mean_is_none_on_exposed_rows() -> None:
    """A gate of +0.1 passed in green where a fifth of the rows are named with certainty."""
    mean = make_point(Training("toy", "splitnn", "iso", 5.0), "norm", "label", 0.05)
    points = [mean, expose(mean, 900.0)]
    limits = [Gate(max=0.1), Gate(max=0.3, of="exposed")]
    for gates, limited in (limits[:1], False), (limits, True):
        summary = make_summary(points, gates)
        assert {v.verdict for v in summary.gates} == {"PASS"}
        assert [c.quantity for c in find_deployed(summary)] == [Quantity.EXPOSED] * (not limited)
        assert (find_tone(summary) is Tone.GOOD) is limited
        assert ("198 more of 1,000 rows named" in describe_scope(summary)) is not limited
    (step,) = (
        s for s in next_steps(make_summary(points, limits[:1])) if s.kind is StepKind.UNGATED
    )
    assert 'of = "exposed"' in step.text


def test_a_wide_limit_on_one_secret_excuses_no_leak_of_another() -> None:
    """Columns revealed at +0.25 went unnamed beside a limit of 0.4 on labels."""
    at = Training("toy", "splitnn", "iso", 5.0)
    points = [make_point(at, "norm", "label", 0.05), make_point(at, "grn", "feature", 0.25)]
    summary = make_summary(points, [Gate(max=0.4, target="label")])
    assert [c.target for c in find_deployed(summary)] == ["feature"]


FAILS = {
    Origin.GATE: Rule.EXCEEDED,
    Origin.BASELINE: Rule.REGRESSION,
    Origin.CLAIM: Rule.CLAIM_CONTRADICTED,
}


def asked(limit: str, rise: str, claim: str) -> Summary:
    """A leak of 0.35 without a defense, judged at iso 5 by those that are named."""
    points = [
        make_point(replace(AT, strength=s), "norm", "label", g)
        for s, g in ((0.0, 0.35), (5.0, 0.01))
    ]
    found = make_summary(points, [Gate(max=0.1, strength=5.0)])
    (v,) = found.gates
    verdicts = []
    for origin, code in zip(FAILS, (limit, rise, claim), strict=True):
        rule = {"FAIL": FAILS[origin], "INCONCLUSIVE": Rule.UNDECIDED}.get(code, Rule.WITHIN)
        at = 0.0 if origin is Origin.BASELINE else 5.0
        verdicts += (
            [replace(v, verdict=code, rule=rule, origin=origin, strength=at)] if code else []
        )
    return replace(found, gates=tuple(verdicts))


@pytest.mark.parametrize(("limit", "rise", "claim", "said", "deployed"), [
    ("", "PASS", "", "NO RISE", 1), ("", "FAIL", "", "FAIL", 1),
    ("", "INCONCLUSIVE", "", "INCONCLUSIVE", 1), ("", "", "PASS", "NO GATE", 0),
    ("", "PASS", "PASS", "NO RISE", 1), ("", "PASS", "FAIL", "FAIL", 1),
    ("PASS", "PASS", "PASS", "PASS", 0), ("PASS", "FAIL", "PASS", "FAIL", 0),
    ("PASS", "", "PASS", "PASS", 0),
])  # fmt: skip
def test_only_a_limit_passes(limit: str, rise: str, claim: str, said: str, deployed: int) -> None:
    """A baseline alone, and a claimed epsilon alone, read "PASS with no defense (1 of 1 gate
    passed)" above a leak that nothing limits.
    """
    summary = asked(limit, rise, claim)
    assert format_headline(summary)[0] == said
    assert exit_code(summary.gates) == {"FAIL": 1, "INCONCLUSIVE": 3}.get(said, 0)
    assert describe_scope(summary).startswith(said)
    assert len(find_deployed(summary)) == deployed
    kinds = {s.kind for s in next_steps(summary)}
    assert (StepKind.KEEP_BASELINE in kinds) is (said == "PASS" and not rise)
    assert bool(kinds & {StepKind.SET_LIMIT, StepKind.UNGATED}) is not bool(limit)
    assert (StepKind.ROSE in kinds) is (rise == "FAIL")
    assert (find_tone(summary) is Tone.GOOD) is False


@pytest.mark.parametrize(("limit", "leak"), [("", []), ("FAIL", ["--leak=0.1"])])
def test_a_rise_that_is_tolerated_is_no_limit_of_a_search(limit: str, leak: list[str]) -> None:
    """`tune --leak` asked for what a baseline tolerates, where no gate limits a leak."""
    grid = (GridRow("toy", "splitnn", "iso", 5.0, gates=1),)
    found = replace(asked(limit, "PASS", "FAIL"), grid=grid)
    words = [s.command.split() for s in next_steps(found) if s.command.startswith("vflsec tune")]
    assert [[w for w in of if w.startswith("--leak")] for of in words[:1]] == [leak]


def test_what_may_not_rise_above_a_baseline_is_not_limited() -> None:
    """A PASS against a baseline that leaked everything stood as a limit on it."""
    at = Training("toy", "splitnn", "none", 0.0)
    summary = make_summary([make_point(at, "norm", "label", 0.35)], [Gate(max=0.4)])
    assert find_ungated(summary) == []
    kept = tuple(replace(v, origin=Origin.BASELINE) for v in summary.gates)
    (claim,) = find_ungated(replace(summary, gates=kept))
    assert (claim.attack, claim.training) == ("norm", at)


def test_a_gate_is_advised_for_every_target_that_none_limits(tmp_path: Path) -> None:
    """Of columns and of questions about one: the gate that was named limits the first alone."""
    planted = Planted({**LEAKY, "attribute": 0.25}, {**LEAKY, "attribute": 0.25})
    found = audited(tmp_path, planted, COLUMNS + gate(metric="utility", min=0.5)).summary
    (step,) = [s for s in advice.next_steps(found) if s.kind is StepKind.UNGATED]
    assert {*re.findall(r'target = "(\w+)"', step.text)} == {"label", "attribute"}


def test_a_build_is_told(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (notice,) = [x for x in workflow_commands(told) if "no gate limits it" in x]
    assert notice.startswith("::notice title=vflsec::No verdict speaks of this. Leaks at iso 5")


def test_a_failed_audit_says_it_on_the_page_to_sign(told: dict[str, Any]) -> None:
    lost = copy.deepcopy(told)
    lost["gates"][0]["verdict"] = "FAIL"
    assert "no gate limits" not in first_screen.describe_scope(lost)
    assert "for which no limit was set" in above_appendix(lost)


def test_what_nothing_stops_is_part_of_the_price(told: dict[str, Any], tmp_path: Path) -> None:
    """It said "iso 5 already passes both gates", as if that stopped what the first screen names."""
    low = told["points"]
    gain = next(p["advantage"] for p in low if p["target"] == "attribute" and p["strength"] == 5)
    (said,) = unstopped(told, "breast_cancer")
    assert f"{SECRET}: {gain:+.2f} with iso 5" in said
    assert answers(told)["What does it cost to stop?"].endswith(said)
    stopped = summary_of(tmp_path, 0.0)
    assert unstopped(stopped, "breast_cancer") == deployed(stopped) == []
    assert "no gate limits" not in first_screen.describe_scope(stopped)


def test_what_is_left_within_the_limits_of_other_gates_was_stopped(tmp_path: Path) -> None:
    """Labels told at +0.29 are told at +0.03 under noise, and "nothing that was tried stops" them,
    of an audit whose gates allow 0.1 of columns.
    """
    planted = Planted({**LEAKY, "attribute": 0.25}, {**SEALED, "attribute": 0.0})
    found = audited(tmp_path, planted, COLUMNS + gate(max=0.1, target="attribute")).summary
    (line,) = [x for x in beyond(found) if "the labels of bank to shop" in x]
    assert "+0.03 with iso 5" in line
    assert unstopped(found, "breast_cancer") == []
    for p in found["points"]:  # a small leak that noise leaves as it is
        if p["target"] == "label" and p["attack"]:
            p |= {"advantage": 0.03}
    assert len(unstopped(found, "breast_cancer")) == 1


def test_the_next_step_leads_to_a_defense_of_what_is_read(told: dict[str, Any]) -> None:
    step = next(s for s in advice.next_steps(told) if s.kind is StepKind.UNGATED)
    assert 'target = "attribute"' in step.text
    words = step.command.split()
    assert words[:2] == ["vflsec", "tune"]
    assert words[3:] == [
        "--defense", "embedding_noise", "--leak=0.1", "--drop=0.1", "--target", "attribute",
    ]  # fmt: skip
    unknown = {**told, "acting": {}}
    step = next(s for s in advice.next_steps(unknown) if s.kind is StepKind.UNGATED)
    assert step.command.split()[3:5] == ["--defense", "iso"]  # may act on embeddings


def test_lines_name_each_secret_once_and_judged_points_first(told: dict[str, Any]) -> None:
    columns, labels = beyond(told)
    of = {
        p["strength"]: p["advantage"] for p in told["points"]
        if p["target"] == "attribute" and p["metric"] == p["primary"]
    }  # fmt: skip
    assert columns == (
        f"breast_cancer: {SECRET}, {of[5.0]:+.2f} with iso 5 (attribute(column=a), judged), "
        f"{of[0.0]:+.2f} without a defense (attribute(column=a))"
    )
    assert labels.startswith("breast_cancer: the labels of bank to shop, +0.29")


def test_a_verdict_on_attacks_is_not_said_of_points_where_a_claim_alone_was_judged(
    told: dict[str, Any],
) -> None:
    """ "PASS for 8 attacks at X 25, X 0", of which the second was judged by its epsilon only."""
    claim = copy.deepcopy(told["gates"][0])
    claim |= {"strength": 99.0, "verdict": "PASS", "attack": "", "detectable": {}}
    claim["origin"] = "claim"
    claim["gate"] |= {"metric": "epsilon_lower", "max": 9.0}
    said = first_screen.describe_scope({**told, "gates": [*told["gates"], claim]})
    assert said.startswith("PASS with iso 5 (")


def test_a_pass_is_good_news_only_where_nothing_warns_and_nothing_else_leaks(
    told: dict[str, Any],
) -> None:
    assert find_tone(read_summary(told)) == "warning"
    nothing = copy.deepcopy(told)
    for p in nothing["points"]:
        p |= {"advantage": 0.0} if p["attack"] else {}
    assert find_tone(read_summary(nothing)) == "good"
    nothing["gates"][0]["warnings"] = ["insensitive"]
    assert find_tone(read_summary(nothing)) == "warning"
    nothing["gates"][0]["verdict"] = "FAIL"
    assert find_tone(read_summary(nothing)) == "leak"
